"""The direction of imports in menv, as tables, and what breaks it.

    cli -> verify -> checking, playing, tune -> algorithms -> serving, workers -> sampling -> inference
    algorithms -> offline -> workers;  algorithms -> tracking -> the nouns
    inference -> adapters, connectors -> the nouns;  wrappers, envs -> the nouns

The nouns are the modules that lie directly in `menv/`. Imports for type checking count like all others: a
reader has to follow them just the same.
"""

from __future__ import annotations

import graphlib
from pathlib import Path

from tests.house.sources import ROOT, Import, imports, module_name, python_files

NOUNS = "the nouns"
FLOORS = (
    {NOUNS},
    {"adapters", "connectors", "wrappers", "envs"},
    {"inference"},
    {"sampling"},
    {"serving", "workers", "tracking"},
    {"offline"},
    {"algorithms"},
    {"checking", "playing", "tune"},
    {"verify"},
    {"cli"},
)
"""Each may import from the floors below it and from itself, never from its neighbours."""

DOORS = {
    ("menv.multi_agent_env", "with_agent_groups"): ("menv.wrappers",),
    ("menv.vector_env", "with_agent_groups"): ("menv.wrappers",),
    ("menv.policy", "from_checkpoint"): ("menv.inference",),
    ("menv.external_env", "__init__"): ("menv.adapters",),
    ("menv.registry", "wrapped_if_foreign"): ("menv.wrappers.foreign_envs", "menv.wrappers.multi_agent_gym"),
    ("menv.registry", "env_names"): ("menv.wrappers.foreign_envs",),
    ("menv.registry", "_foreign"): ("menv.wrappers.foreign_envs",),
}
"""Functions of a noun that may import from above, inside the function: (module, function) -> where from."""

TO_BASE_ENV = "menv.to_base_env"
"""The method `to_base_env` of every environment, `convert_env` in `base_env.py`, calls the public function."""

HANDS_NAMES_ON = "menv"
"""`menv/__init__.py` may tell type checkers where the names live that it hands on when they are asked for."""

CONFINED = {
    "torch": {"algorithms", "inference.heads"},
    "onnx": {"algorithms"},
    "onnxscript": {"algorithms"},
    "tensorboard": {"tracking"},
    "PIL": {"wrappers"},
    "onnxruntime": {"inference"},
    "google": {"inference"},
    "ray": {"workers", "tune"},
    "pettingzoo": {"wrappers"},
    "pygame": {"wrappers", "envs"},
    "psutil": {"verify"},
    "pyspiel": {"wrappers"},
    "vmas": {"wrappers"},
    "jax": {"wrappers"},
    "jaxmarl": {"wrappers"},
    "jumanji": {"wrappers"},
    "pgx": {"wrappers"},
    "starlette": {"serving"},
    "uvicorn": {"serving"},
    "rich": {"tracking"},
    "matplotlib": {"tracking"},
    "wandb": {"tracking"},
    "mlflow": {"tracking"},
    "optuna": {"cli"},
    "msgspec": {"serving", "workers", "inference", "sampling", "checking", "algorithms"},
    "pyarrow": {"offline"},
    "minari": {"offline"},
    "safetensors": {"serving", "inference", "algorithms"},
}
"""The only parts of menv that may import these, wherever in the file."""


def package_of(module: str) -> str:
    """Return the package directly below `menv` that `module` belongs to, or `NOUNS`."""
    parts = module.split(".")
    packages = set().union(*FLOORS) - {NOUNS}
    return parts[1] if len(parts) > 1 and parts[1] in packages else NOUNS


def floor_of(package: str) -> int:
    """Return how far above the ground `package` is."""
    return next(floor for floor, packages in enumerate(FLOORS) if package in packages)


def broken_rules(root: Path = ROOT) -> list[str]:
    """Return a sentence for every import below `root / "menv"` that no rule allows."""
    found = [entry for path in python_files(root, ("menv",)) for entry in imports(path, root)]
    problems = [complaint(entry) or detour(entry, root) for entry in found]
    return [problem for problem in problems if problem]


def detour(entry: Import, root: Path) -> str:
    """Return what is wrong if a module takes a name from `menv/__init__.py`, which hides where it lives."""
    package, _, name = entry.imported.rpartition(".")
    is_module = package_of(entry.imported) != NOUNS or (root / "menv" / f"{name}.py").exists()
    by_door = entry.imported == TO_BASE_ENV and entry.function.endswith("convert_env")
    if package != "menv" or name.startswith("__") or is_module or by_door:
        return ""
    return f"{entry.module}:{entry.line} imports {entry.imported}; import it from its own module"


def complaint(entry: Import) -> str:
    """Return what is wrong with one import, or ""."""
    importer, top = package_of(entry.module), entry.imported.partition(".")[0]
    where = f"{entry.module}:{entry.line} imports {entry.imported}"
    if top in CONFINED and not any(f"{entry.module}.".startswith(f"menv.{one}.") for one in CONFINED[top]):
        return f"{where}; only menv.{', menv.'.join(sorted(CONFINED[top]))} may import {top}"
    if top != "menv" or _is_allowed(entry, importer, package_of(entry.imported)):
        return ""
    return f"{where}; {importer} may not import {package_of(entry.imported)}"


def _is_allowed(entry: Import, importer: str, imported: str) -> bool:
    if importer == imported or floor_of(importer) > floor_of(imported):
        return True
    if entry.module.endswith(".__main__") and imported == "cli":  # `python -m menv.checking` is `menv check`
        return True
    if entry.module == HANDS_NAMES_ON and entry.for_types:
        return True
    door = DOORS.get((entry.module, entry.function.rpartition(".")[2]), ())
    return any(f"{entry.imported}.".startswith(f"{target}.") for target in door)


def circle(root: Path = ROOT) -> list[str]:
    """Return the modules of a circle of imports that run at import time, or an empty list."""
    paths = python_files(root, ("menv",))
    modules = {module_name(path, root) for path in paths}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for path in paths:
        for entry in imports(path, root):
            if not entry.function and not entry.for_types:
                target = entry.imported if entry.imported in modules else entry.imported.rpartition(".")[0]
                graph[entry.module] |= {target} & modules - {entry.module}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []
