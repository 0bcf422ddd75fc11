"""Where Chromium is, for the tests of pages."""

from __future__ import annotations

import os
import shutil

import pytest

REQUIRED = "MENV_CHROMIUM"
"""Set to `required`, this environment variable makes a machine without Chromium fail instead of skipping."""


def chromium() -> str:
    """Return the program; a machine without it skips the test."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        assert os.environ.get(REQUIRED) != "required", "Chromium is not installed"
        pytest.skip("Chromium is not installed")
    return program
