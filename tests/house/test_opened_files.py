"""Files that others may have made are opened by `menv/plain_files.py` alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.sources import ROOT, called_names, python_files, tree_of

METHODS = {"read_text", "read_bytes", "hardlink_to"}
"""Calls of `pathlib.Path` that follow links, wait for pipes, and have no bound."""
FUNCTIONS = {
    "open",
    "io.open",
    "os.open",
    "numpy.load",
    "np.load",
    "json.load",
    "tomllib.load",
    "os.truncate",
}

ELSEWHERE = {
    "menv/cli/arguments.py": "/dev/null",
    "menv/inference/policy_bundle.py": "what it has just written, to sync it",
    "menv/playing/browser.py": "its own page",
    "menv/plain_files.py": "the one place",
    "menv/tracking/report.py": "its own page",
    "menv/workers/ray_engine.py": "what Ray wrote on this machine",
    "menv/workers/worker_process.py": "/dev/null",
}
"""The files that open something themselves, and what."""


def opening(tree: ast.AST) -> Iterator[str]:
    """Yield the calls below `tree` that open a file."""
    for name, call in called_names(tree):
        method = name.rpartition(".")[2]
        opens = method == "open" and (not call.args or isinstance(call.args[0], ast.Constant))
        is_method = isinstance(call.func, ast.Attribute) and (method in METHODS or opens)
        if name in FUNCTIONS or (is_method and name != "webbrowser.open"):
            yield f"line {call.lineno}: {name}"


def test_files_that_others_may_have_made_are_opened_in_one_place() -> None:
    files = {str(path.relative_to(ROOT)): path for path in python_files(ROOT, ("menv",))}
    found = {name: list(opening(tree_of(path))) for name, path in files.items()}
    assert {name: calls for name, calls in found.items() if calls and name not in ELSEWHERE} == {}
    assert [name for name in ELSEWHERE if not found[name]] == []


def test_every_way_to_open_a_file_is_found(tmp_path: Path) -> None:
    for text in (
        "open(path)",
        "path.open()",
        "path.open('rb')",
        "Path(a).read_text('utf-8')",
        "os.open(path, 0)",
    ):
        assert list(opening(ast.parse(text))), text
    for text in ("opened(path)", "handler.open(peer, token)", "read(path)"):
        assert not list(opening(ast.parse(text))), text
