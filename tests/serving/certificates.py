"""A certificate that is made for the tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")


def made_in(folder: Path) -> tuple[Path, Path]:
    """Return the files of a certificate for localhost, and of its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key


_AUTHORITY = """[ca]
default_ca = own
[own]
database = {folder}/index
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = names
copy_extensions = copy
[names]
commonName = supplied
"""


def dated_in(folder: Path, begins: int, ends: int, host: str = "localhost") -> tuple[Path, Path]:
    """Return the files of a certificate that holds from the start of one year to that of another, and of its key."""
    request, certificate, key = (folder / name for name in ("request.pem", "certificate.pem", "key.pem"))
    (folder / "index").touch()
    (folder / "authority").write_text(_AUTHORITY.format(folder=folder), "utf-8")
    about = ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
    dates = ["-startdate", f"{begins}0101000000Z", "-enddate", f"{ends}0101000000Z"]
    for command in (
        ["req", "-newkey", "rsa:2048", "-nodes", *about, "-keyout", str(key), "-out", str(request)],
        ["ca", "-batch", "-notext", "-selfsign", "-config", str(folder / "authority"), *dates,
         "-keyfile", str(key), "-in", str(request), "-out", str(certificate)],
    ):  # fmt: skip
        subprocess.run(["openssl", *command], check=True, capture_output=True, timeout=60)
    return certificate, key
