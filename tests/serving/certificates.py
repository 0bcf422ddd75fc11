"""A certificate that is made for the tests."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")


def made_in(folder: Path) -> tuple[Path, Path]:
    """Return the files of a certificate for localhost, and of its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = shlex.split("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost")
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key
