"""Bodies that come in many pieces: a few are read, more are refused, and strangers have nothing read."""

from __future__ import annotations

import contextlib
import json
import threading

import pytest

from menv.serving import Access
from tests.serving.doors import HEADERS, HTTP, TCP, Client, http_response, tcp_wrap
from tests.serving.served import obs_of, served
from tests.serving.talks import meeting, serving
from tests.serving.voices import Turns

TOKEN = "a-long-and-random-text-that-nobody-guesses"
SECRET = f"{HEADERS}Authorization: Bearer {TOKEN}\r\n"


def chunked(body: bytes, each: int, headers: str = HEADERS) -> bytes:
    """Return a request whose body comes in pieces of `each` bytes."""
    pieces = [body[at : at + each] for at in range(0, len(body), each)]
    head = f"POST /rllink HTTP/1.1\r\n{headers}Transfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])


@pytest.mark.parametrize(("size", "each"), [(64, 1), (5_000, 100), (500_000, 1_024), (900_000, 30_000)])
def test_a_body_may_come_in_some_small_pieces_or_in_many_large_ones(size: int, each: int) -> None:
    body = b"{" + bytes(size - 1)
    with meeting(HTTP) as (_server, _talks, one):
        for _ in range(3):
            one.raw(chunked(body, each))
            assert one.receive() == body


@pytest.mark.parametrize(("size", "each"), [(65, 1), (200_000, 1), (200_000, 500)])
def test_a_body_in_too_many_pieces_is_refused_and_the_rest_is_not_read(size: int, each: int) -> None:
    with meeting(HTTP) as (_server, talks, one):
        threading.Thread(
            target=lambda: _send(one, chunked(b"{" + bytes(size - 1), each)), daemon=True
        ).start()
        status, headers, body = http_response(one.file)
        assert (status, headers["connection"]) == (413, "close")
        assert b"too_many: a body in more than 64 pieces" in body
        assert talks.bodies == []
        assert one.rest() == b""


def _send(one: Client, data: bytes) -> None:
    with contextlib.suppress(OSError):
        one.raw(data)


def test_who_shows_no_token_has_one_piece_read_and_is_told_what_is_missing() -> None:
    with serving(HTTP, access=Access(token=TOKEN)) as (server, talks):
        for body, each in ((b"{" + bytes(99_999), 1), (b"{}", 1), (b"{" + bytes(200_000), 150_000)):
            with Client(HTTP, server.addresses[0]) as one:
                _send(one, chunked(body, each))
                assert http_response(one.file)[0] == 401
        assert talks.bodies == []
        with Client(HTTP, server.addresses[0]) as one:
            one.raw(chunked(b"{in}", 1, SECRET))
            assert one.receive() == b"{in}"


@pytest.mark.parametrize("path", ["/health", "/metrics", "/nowhere"])
def test_pieces_are_bounded_on_paths_that_read_no_body(path: str) -> None:
    with meeting(HTTP, handshake_s=0.5) as (_server, _talks, one):
        many = chunked(bytes(5_000), 1).replace(b"/rllink", path.encode()).replace(b"POST", b"GET", 1)
        one.raw(many + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        # What follows the pieces is not read.
        assert one.rest().count(b"HTTP/1.1 ") == 1


def test_large_bodies_over_tcp_need_the_token_before_they_are_read() -> None:
    with served(doors=(TCP,), settings={"token": TOKEN}) as one:
        with one.voice(TCP) as voice:
            voice.client.raw(b"00999999{")
            assert json.loads(voice.client.receive())["code"] == "not_allowed"
            assert voice.client.rest() == b""
        with one.sampling(), one.voice(TCP) as voice:
            # The token and a large body behind it in one write.
            large = {"type": "EPISODES", "episodes": [], "seq": 7, "weights_seq_no": 0}
            greeting = json.dumps({"type": "GET_CONFIG", "token": TOKEN}).encode()
            body = json.dumps(large).encode() + b" " * 100_000
            voice.client.raw(tcp_wrap(greeting) + tcp_wrap(body))
            assert json.loads(voice.client.receive())["type"] == "SET_CONFIG"
            voice.ping()
            turns = Turns(voice, "e")
            assert turns.act(obs_of(0)) in (0, 1)
            turns.end(obs_of(1))
