"""Pages in a real headless Chromium: what they show after their script has run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REQUIRED = "MENV_CHROMIUM"
"""Set to `required`, this environment variable makes a machine without Chromium fail instead of skipping."""

_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")


def chromium() -> str:
    """Return the program; a machine without it skips the test."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        assert os.environ.get(REQUIRED) != "required", "Chromium is not installed"
        pytest.skip("Chromium is not installed")
    return program


def shown(url: str, folder: Path, *flags: str) -> str:
    """Return the HTML of a page after its script has run; `folder` holds the browser's profile."""
    command = [chromium(), *_FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
