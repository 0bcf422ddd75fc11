"""What the house tests read: the Python files of the project, and each one's names and imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("menv", "tests", "examples", "benchmarks")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Import:
    """One imported name.

    Attributes:
        module: The module that imports, dotted.
        function: Qualified name of the function it happens in, "" at the top of the file.
        imported: What is imported, dotted, the name taken `from` a module included.
        line: Line number.
        for_types: True below `if TYPE_CHECKING`.
    """

    module: str
    function: str
    imported: str
    line: int
    for_types: bool


def python_files(root: Path = ROOT, folders: tuple[str, ...] = FOLDERS) -> list[Path]:
    """Return the project's own Python files, in order."""
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def module_name(path: Path, root: Path = ROOT) -> str:
    """Return the dotted name of the module in `path`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield every function below `tree` with its qualified name."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, Function):
            yield prefix + child.name, child
            yield from functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):
            yield from functions(child, prefix)


@cache
def tree_of(path: Path) -> ast.Module:
    """Return what a file of the project says; parsed once for all tests."""
    return ast.parse(path.read_text("utf-8"))


def imports(path: Path, root: Path = ROOT) -> list[Import]:
    """Return every import in the file, those inside functions and for type checking included."""
    if root != ROOT:
        return _imports_of(path, root, ast.parse(path.read_text("utf-8")))
    return _imports_here(path)


@cache
def _imports_here(path: Path) -> list[Import]:
    return _imports_of(path, ROOT, tree_of(path))


def _imports_of(path: Path, root: Path, tree: ast.Module) -> list[Import]:
    module = module_name(path, root)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return list(_imports(tree, Import(module, "", package, 0, False)))


def _imports(tree: ast.AST, at: Import) -> Iterator[Import]:
    """Yield the imports below `tree`; `at` says where that is, its `imported` being the package."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _imported_names(node, at.imported):
                yield replace(at, imported=name, line=node.lineno)
            continue
        inside = at
        if isinstance(node, Function | ast.ClassDef):
            inside = replace(at, function=f"{at.function}.{node.name}".lstrip("."))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            inside = replace(at, for_types=True)
        yield from _imports(node, inside)


def _imported_names(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        above = package.split(".")[: len(package.split(".")) + 1 - node.level]
        base = ".".join([*above, base]).rstrip(".")
    yield from (f"{base}.{alias.name}" for alias in node.names)


def called_names(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call with the dotted name of what is called, `import ... as` undone."""
    original = {
        alias.asname or alias.name: name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias, name in zip(node.names, _imported_names(node, ""), strict=True)
        if alias.asname or isinstance(node, ast.ImportFrom)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            yield original.get(first, first) + dot + rest, node
