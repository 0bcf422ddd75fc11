"""`menv serve` as a program of its own, where torch is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import menv

WITHOUT_TORCH = """
import sys
# What `import` and `find_spec` take for a package that is not installed.
sys.modules.update(dict.fromkeys(["torch", "onnxscript", "tensorboard", "rich"]))
from menv.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@contextmanager
def serving(*arguments: str, folder: Path | None = None) -> Iterator[tuple[str, IO[str]]]:
    """Run `menv serve` in a folder, where torch is not installed; give its address and what it prints and logs."""
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TORCH, "serve", *arguments, "--port", "0", "--log-level", "info"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(menv.__file__).parents[1])},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield f"http://{line_with('listening at', process.stdout).split()[-1]}", process.stdout
    finally:
        process.terminate()
        process.communicate()


def line_with(text: str, output: IO[str]) -> str:
    """Return the next line that contains a text."""
    lines = []
    for line in output:
        lines.append(line)
        if text in line:
            return line
    raise AssertionError("".join(lines))
