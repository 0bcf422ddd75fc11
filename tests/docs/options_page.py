"""The page of all options of the command `menv`, built from its parsers.

python -m tests.docs.options_page    writes docs/reference/options.md
"""

from __future__ import annotations

import argparse

from tests.house.public_names import argument, arguments_of, parsers
from tests.house.sources import ROOT

PAGE = ROOT / "docs" / "reference" / "options.md"
BEGINNING = """# Options of the command line

Every argument of every command, as `menv COMMAND --help` shows it.
[Command line](command_line.md) explains the commands with examples.
This page is built from the parsers (`python -m tests.docs.options_page`).
"""


def page() -> str:
    """Return the whole page."""
    return BEGINNING + "".join(_section(command, parser) for command, parser in parsers().items())


def _section(command: str, parser: argparse.ArgumentParser) -> str:
    rows = [
        f"| `{_escaped(argument(action).partition(' = ')[0])}` | {_escaped(_help(action))} |"
        for action in arguments_of(parser)
        if "--help" not in action.option_strings
    ]
    head = [f"\n## menv {command}\n", f"{parser.description}\n", "| argument | what it does |", "|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def _help(action: argparse.Action) -> str:
    values = {**vars(action), "prog": "menv"}
    return " ".join(((action.help or "") % values).split())


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
