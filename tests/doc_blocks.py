"""The blocks of code that a document prints, for the tests that run them, and pages that are followed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from glob import glob
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


def follow(document: str, folder: Path, shorter: Mapping[str, str] | None = None) -> None:
    """Do what a page says, from top to bottom, and compare what it prints with what happens.

    A block with a title is a file, or commands of sh in a terminal that stays open; another one of Python is a
    program, of sh commands, and of text lines of the last output, whose numbers and spaces may differ. `...` stands
    for lines that are left out. Blocks without a language are not looked at.

    Args:
        document: The page.
        folder: Where it is followed.
        shorter: Texts of blocks, and what stands there instead, so that it takes less time.
    """
    text = (ROOT / document).read_text("utf-8")
    for long, short in (shorter or {}).items():
        assert long in text
        text = text.replace(long, short)
    printed: list[str] = []
    with ExitStack() as terminals:
        for language, title, block in re.findall(r'```(\w*)(?: title="(.+?)")?\n(.*?)```', text, re.DOTALL):
            if title and language == "sh":
                terminals.enter_context(_open(shlex.split(block), folder))
            elif title:
                (folder / title).write_text(block, "utf-8")
            elif language == "python":
                (folder / "block.py").write_text(block, "utf-8")
                printed = _run(["python", "block.py"], folder)
            elif language == "sh":
                commands = block.replace("\\\n", " ").splitlines()
                # The last line of a block in a list is its indentation.
                words = filter(None, (shlex.split(command, True) for command in commands))
                printed = [line for command in words for line in _run(_expanded(command, folder), folder)]
            elif language == "text":
                lines = iter(map(_shape, printed))
                shown = [_shape(line) for line in block.splitlines() if line.strip() not in ("", "...")]
                missing = [line for line in shown if line not in lines]
                assert not missing, f"{document}: {missing}, expected in this order:\n" + "\n".join(printed)


def _expanded(command: list[str], folder: Path) -> list[str]:
    """Return the words of a command with the files that patterns mean, as a shell does."""
    return [one for word in command for one in sorted(glob(word, root_dir=folder)) or [word]]


@contextmanager
def _open(command: list[str], folder: Path) -> Iterator[None]:
    """Run a command in another terminal, in which Ctrl-C is pressed at the end of the page."""
    arguments = ["-m", "menv.cli", *command[1:]] if command[0] == "menv" else command[1:]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, *arguments], cwd=folder, env=environment) as terminal:
        try:
            yield
            terminal.send_signal(signal.SIGINT)
            assert terminal.wait(60) in (0, 130)
        finally:
            terminal.kill()


def _run(command: list[str], folder: Path) -> list[str]:
    """Run a command and return its lines of stdout; installing is left out."""
    program, *arguments = command
    if arguments[:1] == ["install"]:
        return []
    if program in ("menv", "python"):
        done = run_warm(["-m", "menv.cli", *arguments] if program == "menv" else arguments, folder)
    else:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout.splitlines()


def _shape(line: str) -> str:
    """Return a line without what differs between runs."""
    return re.sub(r"[-\d.,e]*\d[\d.,]*", "0", re.sub(r"\s+", " ", line)).strip()
