"""Clients beside servers that mean harm, that are none, or that are behind a proxy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from menv.errors import MenvError, ServerGoneError
from menv.serving import PolicyClient

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
def speaking_http(respond: Callable[[dict[str, Any]], bytes]) -> Iterator[str]:
    """Yield the address of a server whose responses are these bytes."""

    class Responds(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.wfile.write(
                respond(msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"]))))
            )

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Responds) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/games/rllink"
        finally:
            server.shutdown()
            thread.join(10)


@pytest.mark.parametrize(("mode", "changes", "space", "said"), [
    ("remote", {"GET_ACTION": {"type": "OK"}}, DISCRETE, "answers GetAction of number 1 with Ok"),
    ("remote", {"GET_ACTION": {"seq": 7}}, DISCRETE, "of number 1 with Action of number 7"),
    ("remote", {"START_EPISODE": {"type": "PONG"}}, DISCRETE, "answers StartEpisode of number 0 with Pong"),
    ("remote", {"GET_ACTION": {"action": 7}}, DISCRETE, "an invalid action"),
    ("remote", {"GET_ACTION": {"action": 0.5}}, DISCRETE, "an invalid action"),
    ("remote", {"GET_ACTION": {"action": None}}, DISCRETE, "an invalid action"),
    ("remote", {"GET_ACTION": {"action": [1.0]}}, BOX, "an invalid action"),
    ("remote", {"GET_ACTION": {"action": [0.0, float("nan")]}}, BOX, "an invalid action"),
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
def test_an_invalid_answer_is_one_clear_error(
    mode: Any, changes: dict[str, dict[str, Any]], space: dict[str, Any], said: str
) -> None:
    def strange(asked: dict[str, Any]) -> bytes:
        body = msgspec.json.encode({**_answer(asked, space), **changes.get(asked["type"], {})})
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    with (
        speaking_http(strange) as address,
        pytest.raises(MenvError) as caught,
        PolicyClient(address, mode, timeout=5) as client,
    ):
        client.get_action(client.start_episode(), OBS)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1200


@pytest.mark.parametrize(("response", "said"), [
    (b"200 OK\r\nContent-Length: 99999999999\r\n\r\n", "99999999999"),
    (b"502 Bad Gateway\r\nContent-Length: 11\r\n\r\n<html> 502 ", "502"),
])  # fmt: skip
def test_a_response_of_absurd_length_or_of_a_proxy_alone_is_named(response: bytes, said: str) -> None:
    with (
        speaking_http(lambda _: b"HTTP/1.1 " + response) as address,
        pytest.raises(ServerGoneError, match=said),
    ):
        PolicyClient(address, "remote", timeout=0.2)


def test_a_response_in_chunks_is_read() -> None:
    def chunked(asked: dict[str, Any]) -> bytes:
        body = msgspec.json.encode(_answer(asked, DISCRETE))
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:9], body[9:], b""))
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks

    with speaking_http(chunked) as address, PolicyClient(address, "remote", timeout=5) as client:
        assert client.get_action(client.start_episode(), OBS) == 1
