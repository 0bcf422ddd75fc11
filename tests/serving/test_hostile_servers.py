"""Clients beside servers that mean harm, that are none, or that are behind a proxy."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from menv.errors import MenvError, ServerGoneError
from menv.serving import PolicyClient
from menv.serving.protocol import frame
from tests.serving.courses import Course, play
from tests.serving.doors import tcp_unwrap

DISCRETE = {"space": "discrete", "n": 2, "start": 0, "dtype": "int64"}
BOX = {"space": "box", "low": -1, "high": 1, "shape": [2], "dtype": "float32"}
GREETING = {"type": "SET_CONFIG", "env_steps_per_sample": 1, "force_on_policy": False, "session": "s"}
OBS = [0.0] * 4


def _answer(asked: dict[str, Any], space: dict[str, Any]) -> dict[str, Any]:
    """Return what a server of one policy "p" answers."""
    seq = {"seq": asked["seq"]} if "seq" in asked else {}
    answers: dict[str, dict[str, Any]] = {
        "GET_CONFIG": {**GREETING, "action_space": space, "policies": {"p": {"action_space": space}}},
        "PING": {"type": "PONG"},
        "START_EPISODE": {"type": "EPISODE", "episode_id": asked.get("episode_id"), **seq},
        "GET_ACTION": {"type": "ACTION", "episode_id": "e", "action": 1, "weights_seq_no": 0, **seq},
    }
    return answers.get(asked["type"], {"type": "OK", **seq})


@contextmanager
def strange(changes: dict[str, dict[str, Any]], space: dict[str, Any] = DISCRETE) -> Iterator[str]:
    """Yield the address of a server that answers messages of some types in its own way."""

    def talk(peer: socket.socket) -> None:
        with suppress(OSError), peer, peer.makefile("rb") as file:
            while True:
                asked = msgspec.json.decode(tcp_unwrap(file))
                answer = {**_answer(asked, space), **changes.get(asked["type"], {})}
                peer.sendall(frame(msgspec.json.encode(answer)))

    def listen() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(door.accept()[0],), daemon=True).start()

    door = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=listen, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{door.getsockname()[1]}"
    finally:
        with suppress(OSError):
            door.shutdown(socket.SHUT_RDWR)
        door.close()


@pytest.mark.parametrize(("mode", "changes", "space", "said"), [
    ("remote", {"GET_ACTION": {"type": "OK"}}, DISCRETE, "answers GetAction of number 1 with Ok"),
    ("remote", {"GET_ACTION": {"seq": 7}}, DISCRETE, "of number 1 with Action of number 7"),
    ("remote", {"START_EPISODE": {"type": "PONG"}}, DISCRETE, "answers StartEpisode of number 0 with Pong"),
    ("remote", {"GET_ACTION": {"action": 7}}, DISCRETE, "an action that is none"),
    ("remote", {"GET_ACTION": {"action": 0.5}}, DISCRETE, "an action that is none"),
    ("remote", {"GET_ACTION": {"action": None}}, DISCRETE, "an action that is none"),
    ("remote", {"GET_ACTION": {"action": [1.0]}}, BOX, "an action that is none"),
    ("remote", {"GET_ACTION": {"action": [0.0, float("nan")]}}, BOX, "an action that is none"),
    ("remote", {"GET_CONFIG": {"action_space": None}, "GET_ACTION": {"action": [0, [1]]}}, DISCRETE,
     "an element of a space"),
    ("remote", {"GET_CONFIG": {"multi_agent": True}}, DISCRETE, "expected actions by agent"),
    ("remote", {"GET_CONFIG": {"action_space": {}}}, DISCRETE, "unknown space tag"),
    ("remote", {"GET_ACTION": {"type": "ERROR", "code": "x", "message": "a\n\x1b[2J" * 900}}, DISCRETE, "a "),
    ("local", {"GET_STATE": {"type": "OK"}}, DISCRETE, "answers GetState of number None with Ok"),
    ("local", {"GET_STATE": {"type": "SET_STATE", "weights_seq_no": 1}}, DISCRETE, "holds nothing for"),
    ("local", {"GET_CONFIG": {"policies": {}}, "GET_POLICIES": {"type": "POLICIES", "policy_ids": {}}},
     DISCRETE, "holds nothing for"),
])  # fmt: skip
def test_an_answer_that_is_none_is_one_clear_error(
    mode: Any, changes: dict[str, dict[str, Any]], space: dict[str, Any], said: str
) -> None:
    with (
        strange(changes, space) as address,
        pytest.raises(MenvError) as caught,
        PolicyClient(address, mode, timeout=5) as client,
    ):
        client.get_action(client.start_episode(), OBS)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1200


def test_a_response_of_absurd_length_is_not_waited_for() -> None:
    def boast() -> None:
        with suppress(OSError):
            while True:
                with door.accept()[0] as peer:
                    peer.recv(1 << 16)
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=boast, daemon=True).start()
        with pytest.raises(ServerGoneError, match="99999999999"):
            PolicyClient(f"http://127.0.0.1:{door.getsockname()[1]}", "remote", timeout=0.2)
        door.shutdown(socket.SHUT_RDWR)


PAGE = b"<html><body>502 Bad Gateway</body></html>"


class Proxy(ThreadingHTTPServer):
    """Passes requests on below a path of its own, and answers some by itself.

    Attributes:
        to: The port of the server.
        form: How it writes responses: "length" or "chunks".
        refuses: Statuses of the next answers that are its own.
        passed: How many requests it has passed on.
    """

    daemon_threads = True

    def __init__(self, to: int, form: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.to, self.form = to, form
        self.refuses: list[int] = []
        self.passed = 0

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
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

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


def test_a_proxy_that_never_has_one_is_named_with_its_status() -> None:
    with Course(transport="http") as course, behind(course) as proxy:
        proxy.refuses = [502] * 100
        with pytest.raises(ServerGoneError, match="502"):
            PolicyClient(proxy.address, "remote", timeout=0.5)
