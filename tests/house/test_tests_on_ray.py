"""Tests that use Ray are known to `tests/conftest.py`: they run in one process, on a Ray that has room for them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.conftest import ON_RAY
from tests.house.sources import ROOT, Function, python_files, tree_of


def uses_ray(tree: ast.AST) -> bool:
    """Return whether code speaks of the engine, of its fixture or of `ray=True`; not of packages by their names."""
    lists = (node for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple | ast.Set))
    packages = {one for node in lists if "'torch'" in map(ast.unparse, node.elts) for one in node.elts}
    return any(_speaks_of_it(node) for node in ast.walk(tree) if node not in packages)


def _speaks_of_it(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg == "ray" and ast.unparse(node.value) == "True"
    return (isinstance(node, ast.Constant) and node.value in ("ray", "running_ray")) or (
        isinstance(node, ast.arg) and node.arg == "running_ray"
    )


def on_ray(place: str, tree: ast.Module) -> Iterator[str]:
    """Yield what of a file of tests uses Ray: single tests of it, or all where it is said outside of them."""
    for node in tree.body:
        if uses_ray(node):
            own = isinstance(node, Function) and node.name.startswith("test_")
            yield f"{place}::{node.name}" if own else place  # type: ignore[attr-defined]


def test_all_tests_that_use_ray_run_in_one_process() -> None:
    files = {str(path.relative_to(ROOT)): path for path in python_files(ROOT, ("tests",))}
    # Those of the house only read about it.
    tests = [name for name, path in files.items() if path.name.startswith("test_") and "/house/" not in name]
    found = {one for name in tests for one in on_ray(name, tree_of(files[name]))}
    assert [one for one in sorted(found) if not one.startswith(ON_RAY)] == []
    # Nothing is listed that is not there any more.
    assert [place for place in ON_RAY if not any(one.startswith(place) for one in found)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('@parametrize("engine", ["process", "ray"])\ndef test_it(): ...', ["a.py::test_it"]),
        ("def test_it(running_ray): ...\n\ndef test_other(): ...", ["a.py::test_it"]),
        ('pytestmark = usefixtures("running_ray")\ndef test_it(): ...', ["a.py"]),
        ('def helper():\n    return make_engine("ray")', ["a.py"]),
        ("def test_it():\n    verify_backends(env, ray=True)", ["a.py::test_it"]),
        ("def test_it():\n    verify_backends(env, ray=False)", []),
        ('HEAVY = ("torch", "ray")', []),
    ],
)
def test_tests_that_use_ray_are_found(text: str, found: list[str]) -> None:
    assert list(on_ray("a.py", ast.parse(text))) == found
