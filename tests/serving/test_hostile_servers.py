"""Clients beside servers that mean harm, that are none, or that are behind a proxy."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from menv.errors import MenvError, ServerGoneError
from menv.serving import PolicyClient
from menv.serving.protocol import Frames, frame
from tests.serving.courses import Course, play

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
        frames = Frames(1 << 20)
        with suppress(OSError), peer:
            while data := peer.recv(1 << 16):
                for body in frames.feed(data):
                    asked = msgspec.msgpack.decode(body)
                    answer = {**_answer(asked, space), **changes.get(asked["type"], {})}
                    peer.sendall(frame(msgspec.msgpack.encode(answer)))

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


@contextmanager
def dripping(data: bytes, size: int) -> Iterator[tuple[int, threading.Event]]:
    """Yield the port of a server that sends data in pieces, and what is set once somebody was sent all of it."""
    told_all = threading.Event()

    def drip(peer: socket.socket) -> None:
        with suppress(OSError), peer:
            for begin in range(0, len(data), size):
                peer.sendall(data[begin : begin + size])
                time.sleep(0.02)
            told_all.set()
            peer.recv(1 << 16)

    def listen() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(door.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=listen, daemon=True).start()
        yield door.getsockname()[1], told_all
        door.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(("scheme", "slow"), [
    ("tcp", frame(b"x" * 600)),
    ("http", b"HTTP/1.1 200 OK\r\n" + b"Slow: very\r\n" * 50),
    ("http", b"HTTP/1.1 200 OK\r\nContent-Length: 600\r\n\r\n" + b"x" * 600),
], ids=["a body", "headers", "a response"])  # fmt: skip
def test_nobody_waits_for_an_answer_that_comes_byte_by_byte(scheme: str, slow: bytes) -> None:
    with dripping(slow, 1) as (port, told_all):
        with pytest.raises(ServerGoneError, match="no answer in time"):
            PolicyClient(f"{scheme}://127.0.0.1:{port}", "remote", timeout=0.2)
        assert not told_all.is_set()


def test_a_large_answer_may_take_longer_than_the_timeout() -> None:
    large = {**GREETING, "type": "SET_CONFIG", "extensions": ["x" * 40_000]}
    answers = [msgspec.msgpack.encode(one) for one in ({**large, "multi_agent": True}, {"type": "PONG"})]
    with dripping(b"".join(map(frame, answers)), 1_000) as (port, _):
        begun = time.monotonic()
        PolicyClient(f"tcp://127.0.0.1:{port}", "remote", timeout=0.3).close()
        assert time.monotonic() - begun > 0.3


def test_a_response_of_absurd_length_is_not_waited_for() -> None:
    def boast() -> None:
        with suppress(OSError):
            while True:
                with door.accept()[0] as peer:
                    peer.recv(1 << 16)
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=boast, daemon=True).start()
        with pytest.raises(ServerGoneError, match="a response of 99999999999 bytes"):
            PolicyClient(f"http://127.0.0.1:{door.getsockname()[1]}", "remote", timeout=0.2)
        door.shutdown(socket.SHUT_RDWR)


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
