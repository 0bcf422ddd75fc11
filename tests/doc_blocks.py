"""The blocks of code that a document prints, for the tests that run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.house.sources import ROOT


def blocks(document: str, language: str) -> list[str]:
    """Return the blocks of a language in a document, in order."""
    text = (ROOT / document).read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_python(script: Path, code: str) -> list[str]:
    """Write a script, run it in its folder and return the lines that it prints."""
    script.write_text(code, "utf-8")
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()
