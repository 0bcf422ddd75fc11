"""Imports point one way, and heavy packages stay where they belong."""

from pathlib import Path

import pytest

from tests.house.import_rules import FLOORS, NOUNS, broken_rules, circle
from tests.house.sources import ROOT, imports, python_files


def a_tree(root: Path, files: dict[str, str]) -> Path:
    """Write a small `menv` to `root`."""
    for name, text in files.items():
        path = root / "menv" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_imports_point_one_way_and_heavy_packages_stay_where_they_belong() -> None:
    assert broken_rules() == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle() == []


def test_every_package_of_menv_has_a_floor_and_an_init() -> None:
    floors = set().union(*FLOORS)
    for folder in {path.parent for path in python_files(ROOT, ("menv",))}:
        assert (folder / "__init__.py").exists(), f"{folder} has no __init__.py"
        package = folder.relative_to(ROOT / "menv").parts[:1]
        assert set(package) <= floors, f"{folder} is on no floor of tests/house/import_rules.py"


def test_imports_are_absolute() -> None:
    for path in python_files():
        assert not any(entry.imported.startswith(".") for entry in imports(path)), path


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("policy.py", "from menv.sampling import sampler", f"{NOUNS} may not import sampling"),
        ("policy.py", "import menv.adapters.gym", f"{NOUNS} may not import adapters"),
        (
            "policy.py",
            "def act():\n    from menv.inference.policy_bundle import load",
            f"{NOUNS} may not import inference",
        ),
        ("policy.py", "if TYPE_CHECKING:\n    import menv.sampling", f"{NOUNS} may not import sampling"),
        (
            "adapters/policy.py",
            "from menv.connectors.agent import Agent",
            "adapters may not import connectors",
        ),
        ("sampling/sampler.py", "from menv.algorithms import ppo", "sampling may not import algorithms"),
        ("wrappers/group.py", "from menv import adapters", "wrappers may not import adapters"),
        (
            "spaces.py",
            "def f():\n    import torch.nn",
            "only menv.algorithms, menv.inference.heads may import torch",
        ),
        ("algorithms/ppo.py", "import onnxruntime", "only menv.inference may import onnxruntime"),
        ("multi_agent_env.py", "def convert_env():\n    import menv.algorithms", "may not import algorithms"),
        ("policy.py", "from menv import to_base_env", "import it from its own module"),
        ("__init__.py", "from menv.sampling.sampler import Sampler", f"{NOUNS} may not import sampling"),
    ],
)
def test_an_import_against_the_direction_is_found(
    tmp_path: Path, name: str, text: str, expected: str
) -> None:
    (problem,) = broken_rules(a_tree(tmp_path, {name: text}))
    assert expected in problem


def test_an_import_cycle_is_found_unless_a_function_or_type_checking_import_closes_it(tmp_path: Path) -> None:
    files = {"a.py": "import menv.b", "b.py": "from menv.c import thing", "c.py": "from menv import a"}
    assert set(circle(a_tree(tmp_path, files))) == {"menv.a", "menv.b", "menv.c"}
    later = "def f():\n    import menv.a\nif TYPE_CHECKING:\n    import menv.a"
    assert circle(a_tree(tmp_path, {"c.py": later})) == []
