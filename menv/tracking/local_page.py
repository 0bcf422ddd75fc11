"""`LocalPage`: a page that only browsers on this machine can open, for reports and for games."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from menv.errors import ConfigError

HOST = "127.0.0.1"
_MOST_BYTES = 4096
"""Bytes of what a page sends."""


class LocalPage(ThreadingHTTPServer):
    """Serves one page on loopback; `url` is its address.

    Args:
        port: The port; 0 chooses a free one.
        page: Makes the HTML, once for each request.
        answer: Makes the JSON that answers a text which the page posts.

    Raises:
        ConfigError: The port is taken.
    """

    daemon_threads = True

    def __init__(
        self, port: int, page: Callable[[], str], answer: Callable[[bytes], str] | None = None
    ) -> None:
        self.page, self.answer = page, answer
        try:
            super().__init__((HOST, port), _Requests)
        except OSError as error:
            raise ConfigError(
                f"--port {port}: cannot be used ({error}), expected a free port; choose another one, or 0 for any"
            ) from error
        self.url = f"http://{HOST}:{self.server_port}/"

    def run(self) -> None:
        """Answer until Ctrl-C or `shutdown`."""
        with self, suppress(KeyboardInterrupt):
            self.serve_forever(poll_interval=0.1)


class _Requests(BaseHTTPRequestHandler):
    """Refuses pages of other sites, whose host name may lead here, and which name themselves when they post."""

    server: LocalPage
    timeout = 20

    def do_GET(self) -> None:
        if self._is_own() and self.path == "/":
            self._send(200, "text/html", self.server.page())
        else:
            self._send(404 if self._is_own() else 403, "text/plain", "not here")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        fits = length.isdecimal() and int(length) <= _MOST_BYTES
        if not self._is_own() or self.server.answer is None:
            self._send(403, "text/plain", "not allowed")
        elif not fits:
            self._send(413, "text/plain", "too long")
        else:
            self._send(200, "application/json", self.server.answer(self.rfile.read(int(length))))

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def _is_own(self) -> bool:
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        names = (f"{HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}")
        return host in names and origin in (None, f"http://{host}")

    def _send(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)),
            "Cache-Control": "no-store", "X-Frame-Options": "DENY",
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
