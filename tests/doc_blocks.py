"""The blocks of code that a document prints, for the tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.house.sources import ROOT
from tests.warm_python import run_warm


def blocks(document: str, language: str) -> list[str]:
    """Return the blocks of a language in a document, in order."""
    text = (ROOT / document).read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_python(script: Path, code: str) -> list[str]:
    """Write a script, run it in its folder and return the lines that it prints."""
    script.write_text(code, "utf-8")
    done = run_warm([script.name], script.parent)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()
