"""What transports import, and when."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.house.sources import ROOT

OURS = "from menv.serving.transports import access, server, tcp, transport"
START = """
from menv.serving.transports.server import Server
from menv.serving.transports.{module} import {transport}
server = Server(None, [{transport}()])
server.start()
server.stop()
print("started")
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_transports_import_nothing_heavy_until_they_are_used() -> None:
    heavy = ("starlette", "uvicorn", "websockets", "h11", "torch", "onnxruntime", "ray")
    done = python(f"{OURS}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])")
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("transport", "package"),
    [("HttpTransport", "starlette"), ("HttpTransport", "uvicorn"), ("HttpTransport", "websockets")],
)
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(
    transport: str, package: str
) -> None:
    done = python(
        f"import sys\nsys.modules['{package}'] = None"
        + START.format(module=transport.removesuffix("Transport").lower(), transport=transport)
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"menv.errors.MissingExtraError: {transport}: ")
    assert last.endswith("run: pip install 'menv-rl[serve]'")
    assert done.stdout == ""


def test_tcp_needs_none_of_them() -> None:
    missing = "import sys\nfor name in ('starlette', 'uvicorn', 'websockets'):\n    sys.modules[name] = None"
    assert python(missing + START.format(module="tcp", transport="TcpTransport")).stdout == "started\n"
