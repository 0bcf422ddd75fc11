"""What `import menv` costs, and that its packages have one name each."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

import menv
from menv import errors
from menv._lazy_names import refuse_root_import
from tests.house.sources import ROOT, module_name, python_files

HEAVY = ("torch", "onnx", "onnxruntime", "ray", "pettingzoo")
LINKED = ("wrappers", "algorithms")
REPEATS = 5
MOST_TIMES_NUMPY_AND_GYMNASIUM = 1.5


def python(code: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter that finds modules in `folder` and in the project."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, timeout=120
    )


def heavy_modules_after(code: str, heavy: tuple[str, ...] = HEAVY) -> list[str]:
    """Return which of the heavy packages are imported once `code` has run."""
    done = python(f"{code}\nimport sys\nprint(*(name for name in {heavy} if name in sys.modules))")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_menv_imports_nothing_heavy() -> None:
    assert heavy_modules_after("import menv") == []


def test_no_module_at_the_root_imports_a_heavy_package() -> None:
    nouns = [module_name(path) for path in python_files(ROOT, ("menv",)) if path.parent == ROOT / "menv"]
    assert heavy_modules_after(f"import {', '.join(nouns)}") == []


def test_reading_what_clients_send_imports_nothing_heavy() -> None:
    """Clients do it too, and they have neither torch nor the transports of the server."""
    names = ["episodes", "protocol", "value_readers"]
    code = f"import {', '.join(f'menv.serving.{name}' for name in names)}"
    assert heavy_modules_after(code) == []
    other = python(f"{code}\nimport sys\nprint(*({{'starlette', 'uvicorn', 'scipy'}} & {{*sys.modules}}))")
    assert other.stdout.split() == []


def test_a_client_needs_neither_torch_nor_a_server() -> None:
    servers = ("torch", "onnx", "ray", "starlette", "uvicorn", "asyncio")
    code = "from menv.serving.client.policy_client import PolicyClient"
    assert heavy_modules_after(code, (*servers, "onnxruntime", "safetensors")) == []
    assert heavy_modules_after(f"{code}\nimport menv.serving.client.local_actor", servers) == []


@pytest.mark.alone
def test_import_menv_takes_little_more_than_numpy_and_gymnasium() -> None:
    # Interleaved, so that a busy machine slows both sides down alike.
    seconds: dict[str, list[float]] = {"import numpy, gymnasium": [], "import menv": []}
    for _ in range(REPEATS):
        for code, measured in seconds.items():
            start = time.perf_counter()
            assert python(code).returncode == 0
            measured.append(time.perf_counter() - start)
    floor, ours = (statistics.median(measured) for measured in seconds.values())
    assert ours / floor < MOST_TIMES_NUMPY_AND_GYMNASIUM


@pytest.mark.parametrize("name", ["algorithms", "connectors", "envs", "serving", "wrappers"])
def test_import_menv_is_enough_for_its_packages(name: str) -> None:
    code = f"import menv\nassert menv.{name}.__name__ == 'menv.{name}'\nassert {name!r} in dir(menv)"
    assert heavy_modules_after(code) == []


@pytest.mark.parametrize("name", LINKED)
def test_the_root_links_to_the_parts_of_the_toolkit(name: str) -> None:
    assert (ROOT / name).is_symlink()
    assert os.readlink(ROOT / name) == f"menv/{name}"


@pytest.mark.parametrize("name", LINKED)
@pytest.mark.parametrize("folder", [ROOT, ROOT / "menv"], ids=["through the link", "beside the package"])
def test_importing_a_package_without_menv_in_front_fails_with_one_helpful_line(
    name: str, folder: Path
) -> None:
    done = python(f"import {name}", folder)
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last.startswith(f"ImportError: import {name}: got the link at the root")
    assert last.endswith(f"write `import menv.{name}`")


@pytest.mark.parametrize("name", LINKED)
def test_the_import_guard_raises_before_a_heavy_import(name: str) -> None:
    attempt = f"try:\n    import {name}\nexcept ImportError:\n    pass"
    assert heavy_modules_after(attempt) == []


@pytest.mark.parametrize("name", LINKED)
def test_the_package_can_be_imported_by_its_full_name(name: str) -> None:
    done = python(f"import menv.{name}; print(menv.{name}.__name__)")
    assert (done.stdout.strip(), done.stderr) == (f"menv.{name}", "")


def test_the_error_of_the_guard_tells_which_module_was_asked_for() -> None:
    refuse_root_import("menv.wrappers")
    with pytest.raises(ImportError, match=r"menv\.wrappers") as caught:
        refuse_root_import("wrappers")
    assert caught.value.name == "wrappers"


def test_every_error_is_a_name_of_menv() -> None:
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception | Warning)
    }
    assert {name: getattr(menv, name) for name in kinds} == kinds
    assert set(kinds) <= set(menv.__all__)
