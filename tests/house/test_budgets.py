"""Files, functions and names stay small enough to be read in one sitting."""

import ast
from pathlib import Path

from tests.house.sources import ROOT, Function, functions, python_files, tree_of

FILE_LINES = 800
EXAMPLE_LINES = 120
FUNCTION_LINES = 60
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "misc", "manager"}


def lines_without_docstring(function: Function) -> int:
    """Return the length from `def` to the last line, less the docstring."""
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        length -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return length


def lines_of(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def test_no_file_is_longer_than_800_lines() -> None:
    long = {str(path.relative_to(ROOT)): lines_of(path) for path in python_files()}
    assert {path: lines for path, lines in long.items() if lines > FILE_LINES} == {}


def test_no_example_is_longer_than_120_lines() -> None:
    long = {path.name: lines_of(path) for path in python_files(ROOT, ("examples",))}
    assert {path: lines for path, lines in long.items() if lines > EXAMPLE_LINES} == {}


def test_no_function_is_longer_than_60_lines_without_its_docstring() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{function.lineno} {name}": lines_without_docstring(function)
        for path in python_files()
        for name, function in functions(tree_of(path))
    }
    assert {name: lines for name, lines in long.items() if lines > FUNCTION_LINES} == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    named = {path: set(path.stem.lower().split("_")) | {path.parent.name} for path in python_files()}
    assert [str(path.relative_to(ROOT)) for path, words in named.items() if words & EMPTY_NAMES] == []
