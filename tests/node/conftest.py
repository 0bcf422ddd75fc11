"""Node.js with onnxruntime-web, which npm puts into pytest's cache once for each lock file."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REQUIRED = "MENV_NODE"
"""Set to `required`, this environment variable makes a machine without Node.js fail instead of skipping."""

OLDEST = 18


@pytest.fixture(scope="session")
def node_modules(request: pytest.FixtureRequest) -> Path:
    """The folder of installed packages; a script finds them if a link to it lies beside the script."""
    home = request.config.cache.mkdir("node")
    lock = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    stamp = home / "installed"
    if _version() < OLDEST:
        _without(f"Node.js {OLDEST} or later and npm are needed, found {_version() or 'none'}")
    if not stamp.exists() or stamp.read_text() != lock:
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(HERE / name, home / name)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            _without(f"npm ci failed: {done.stderr.strip()[-500:]}")
        stamp.write_text(lock)
    return home / "node_modules"


def _version() -> int:
    """Return the major version of Node.js, 0 if it or npm is not installed."""
    if not shutil.which("node") or not shutil.which("npm"):
        return 0
    told = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60, check=True)
    return int(told.stdout.strip().lstrip("v").partition(".")[0])


def _without(why: str) -> None:
    """Skip what needs Node.js, or fail where it has to be there."""
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{why}; {REQUIRED}=required is set", pytrace=False)
    pytest.skip(f"{why}; install them to run this test")
