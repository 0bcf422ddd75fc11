"""Policy clients whose HTTP server is behind a proxy, which writes responses in its own way, and some of its own."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from menv.errors import ServerGoneError
from menv.serving.client.policy_client import PolicyClient
from tests.serving.courses import Course, play

PAGE = b"<html><body>502 Bad Gateway</body></html>"


class Proxy(ThreadingHTTPServer):
    """Passes requests on below a path of its own, and answers some by itself.

    Attributes:
        to: The port of the server.
        form: How it writes responses: "length", "chunks" or "close".
        refuses: Statuses of the next answers that are its own.
        passed: How many requests it has passed on.
        breaks_off: How many of the next responses end in the middle.
    """

    daemon_threads = True

    def __init__(self, to: int, form: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.to, self.form = to, form
        self.refuses: list[int] = []
        self.passed = self.breaks_off = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/games/rllink"


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.refuses:
            self._say(self.server.refuses.pop(0), "text/html", PAGE)
            return
        assert self.path == "/games/rllink"
        onward = http.client.HTTPConnection("127.0.0.1", self.server.to)
        onward.request("POST", "/rllink", body, {"menv-session": self.headers["menv-session"]})
        with contextlib.closing(onward), contextlib.closing(onward.getresponse()) as response:
            self._say(response.status, str(response.headers["content-type"]), response.read())
        self.server.passed += 1

    def _say(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if self.server.form == "chunks":
            self.send_header("Transfer-Encoding", "chunked")
            half = len(body) // 2
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:], b""))
        elif self.server.form == "close":
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        breaks_off = self.server.breaks_off > 0
        self.server.breaks_off -= breaks_off
        self.wfile.write(body[: len(body) // 2] if breaks_off else body)
        self.close_connection = breaks_off or self.server.form == "close"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def behind(course: Course, form: str = "length") -> Iterator[Proxy]:
    with Proxy(course.port, form) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join(10)


@pytest.mark.parametrize("mode", ["local", "remote"])
@pytest.mark.parametrize("form", ["length", "chunks"])
def test_however_a_proxy_writes_responses_they_are_read(form: str, mode: Any) -> None:
    with Course(transport="http") as course, behind(course, form) as proxy:
        with PolicyClient(proxy.address, mode, timeout=20) as client:
            play(client, [1.0, 2.0])
        assert course.has_rewards([1.0, 2.0])
        assert proxy.passed > 3


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_that_has_no_server_for_a_while_is_asked_again(status: int) -> None:
    with Course(transport="http") as course, behind(course) as proxy:
        proxy.refuses = [status] * 2
        with PolicyClient(proxy.address, "remote", timeout=20) as client:
            proxy.refuses = [status]
            play(client, [1.0, 2.0])
        assert course.has_rewards([1.0, 2.0])


def test_a_proxy_that_never_has_one_is_named_with_its_status() -> None:
    with Course(transport="http") as course, behind(course) as proxy:
        proxy.refuses = [502] * 100
        with pytest.raises(
            ServerGoneError, match=r"does not answer \(status 502 of a proxy, .*\), expected a server"
        ):
            PolicyClient(proxy.address, "remote", timeout=0.5)


@pytest.mark.parametrize("form", ["length", "chunks"])
def test_a_response_that_breaks_off_is_asked_for_again(form: str) -> None:
    with Course(transport="http") as course, behind(course, form) as proxy:
        with PolicyClient(proxy.address, "remote", timeout=20) as client:
            proxy.breaks_off = 2
            play(client, [1.0, 2.0])
        assert course.has_rewards([1.0, 2.0])
        assert not proxy.breaks_off
