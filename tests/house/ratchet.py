"""Figures about the size and the prose of menv that may fall and never rise; `tests/house/ratchet.json` holds them.

python -m tests.house.ratchet --write                          writes the figures that have fallen
python -m tests.house.ratchet --write --allow-rise menv.sampling   writes those of a package that have risen, too
python -m tests.house.ratchet --words                          lists the words to avoid
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.house.sources import ROOT, imports, module_name, python_files

BOUNDS = Path(__file__).with_suffix(".json")
HOUSE = "the whole house"
SPLINTER_LINES = 60

Figures = dict[str, dict[str, int]]
"""Figures by name, by package."""

WORDS = {
    r"mend(s|ed|ing)?": "fix",
    "anew": "again",
    "whoever|whomever|somebody": "name the subject",
    "nobody|anybody": "no agent, any client, ...",
    "those (that|who|which|of)": "name the noun",
    "what (of|comes|came|goes|went|lies|lay|stands|stood|has|had|is known)": "name the noun",
    "to the last bit": "bit-identical",
    "go(es)? on|going on": "continue, resume",
    "told": "reported, passed",
    "shall": "should, will",
    "likewise": "repeat it",
    "for want of": "without",
    "by (itself|themselves)": "automatically",
    "one's own|of (their|its|your) own": "custom, your own",
    "besides?": "also, next to",
    "lies? (in|before|behind|beside|below)": "is, lives",
    "noted?": "recorded",
    "take(s|n)? (up|in|back|over)|took": "name the operation",
    "as (it|they) (is|are|stands?)": "unchanged",
    "over there": "in the remote process",
    "the way (round|there|out)": "name the path",
    "made (of|up)": "built from, invented",
    "has to do|have to do": "concerns",
}
"""What not to write, as patterns of whole words, and what is usually meant."""
_AVOIDED = [(re.compile(rf"\b({pattern})\b", re.I), meant) for pattern, meant in WORDS.items()]


def measured(root: Path = ROOT) -> Figures:
    """Return the figures of each package of menv and those of the whole house."""
    figures: Figures = defaultdict(lambda: {"lines": 0, "files": 0, "classes": 0})
    classes: Counter[str] = Counter()
    lines, importers = {}, defaultdict(set)
    doors = set()
    for path in python_files(root, ("menv",)):
        module, text = module_name(path, root), path.read_text("utf-8")
        names = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
        lines[module] = len(text.splitlines())
        classes.update(name for name in names if not name.startswith("_"))
        own = figures[".".join(path.parent.relative_to(root).parts[:2])]
        for figure, value in (("lines", lines[module]), ("files", 1), ("classes", len(names))):
            own[figure] += value
        for entry in imports(path, root):
            importers[entry.imported].add(module)
            importers[entry.imported.rpartition(".")[0]].add(module)
            if entry.function and entry.imported.split(".")[0] == "menv":
                doors.add((module, entry.line))
    modules = {
        module: len(importers[module] - {module})
        for module in lines
        if not (root / Path(*module.split("."))).is_dir() and not module.endswith(".__main__")
    }
    figures[HOUSE] = {
        "files directly in menv": len(list((root / "menv").glob("*.py"))),
        f"files below {SPLINTER_LINES} lines with at most one importer": sum(
            lines[module] < SPLINTER_LINES and count <= 1 for module, count in modules.items()
        ),
        "modules with one importer": sum(count == 1 for count in modules.values()),
        "imports of menv inside functions": len(doors),
        "class names used twice": sum(count > 1 for count in classes.values()),
        "words to avoid": len(list(words(root))),
    }
    return dict(figures)


def words(root: Path = ROOT) -> Iterator[str]:
    """Yield where each word to avoid stands, in the library, the examples and the pages."""
    pages = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
    for path in [*python_files(root, ("menv", "examples")), *pages]:
        text = path.read_text("utf-8")
        prose = python_prose(text) if path.suffix == ".py" else enumerate(text.splitlines(), 1)
        for line, part in prose:
            for pattern, meant in _AVOIDED:
                for found in pattern.finditer(part):
                    yield f"{path.relative_to(root)}:{line} {found[0]!r}: {meant}"


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the texts and the comments of a Python file, with their lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for number, line in enumerate(text.splitlines(), 1):
        if comment := re.search(r"(?:^|\s)#\s(.*)$", line):
            yield number, comment[1]


def risen(now: Figures, bounds: Figures) -> list[str]:
    """Return a sentence for each figure that is above its bound, and for each package that has none."""
    found = []
    for package, figures in now.items():
        if package not in bounds:
            found.append(f"{package} has no budget, state it in {BOUNDS.name}: {json.dumps(figures)}")
            continue
        found += [
            f"{package}: {name} rose from {bounds[package][name]} to {value}"
            for name, value in figures.items()
            if value > bounds[package][name]
        ]
    return found


def lowered(now: Figures, bounds: Figures, may_rise: list[str]) -> Figures:
    """Return the next bounds: those of `bounds` or lower, and the figures of `now` for packages that may rise."""
    return {
        package: figures
        if package in may_rise
        else {name: min(value, bounds[package][name]) for name, value in figures.items()}
        for package, figures in sorted(now.items())
        if package in may_rise or package in bounds
    }


def read_bounds() -> Figures:
    """Return what the file says."""
    bounds: Figures = json.loads(BOUNDS.read_text("utf-8"))
    return bounds


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        "python -m tests.house.ratchet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--write", action="store_true", help="write the figures that have fallen")
    parser.add_argument("--allow-rise", action="append", default=[], metavar="PACKAGE")
    parser.add_argument("--words", action="store_true", help="list the words to avoid")
    given = parser.parse_args()
    if given.words:
        sys.exit("\n".join(words()) or None)
    now, bounds = measured(), read_bounds()
    if given.write:
        bounds = lowered(now, bounds, given.allow_rise)
        BOUNDS.write_text(json.dumps(bounds, indent=2) + "\n", "utf-8")
    sys.exit("\n".join(risen(now, bounds)) or None)


if __name__ == "__main__":
    main()
