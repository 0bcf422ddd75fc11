"""What transports import, and when."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.house.sources import ROOT

OURS = "from menv.serving.transports import server, tcp, http, websocket"
START = """
from menv.serving.transports.server import Server
from menv.serving.transports.http import HttpTransport
from menv.serving.transports.tcp import TcpTransport
from menv.serving.transports.websocket import WebSocketTransport
server = Server(None, [TcpTransport(), {transport}()])
server.start()
server.stop()
print("started")
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_transports_import_nothing_heavy_until_they_start() -> None:
    heavy = ("starlette", "uvicorn", "websockets", "h11", "torch", "onnxruntime", "ray")
    done = python(f"{OURS}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])")
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("transport", "package"),
    [("HttpTransport", "starlette"), ("HttpTransport", "uvicorn"), ("WebSocketTransport", "websockets")],
)
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(
    transport: str, package: str
) -> None:
    done = python(f"import sys\nsys.modules['{package}'] = None" + START.format(transport=transport))
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"menv.errors.MissingExtraError: {transport}: ")
    assert last.endswith("run: pip install 'menv[serve]'")
    assert done.stdout == ""


def test_tcp_needs_none_of_them() -> None:
    missing = "import sys\nfor name in ('starlette', 'uvicorn', 'websockets'):\n    sys.modules[name] = None"
    assert python(missing + START.format(transport="TcpTransport")).stdout == "started\n"
