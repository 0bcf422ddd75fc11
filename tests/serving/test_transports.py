"""What every transport does with bodies and replies, over real sockets."""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from typing import Any

import pytest
from starlette.middleware.trustedhost import TrustedHostMiddleware

from menv.errors import ConfigError
from tests.serving.doors import (
    HTTP,
    PATIENCE_S,
    TCP,
    Client,
    Door,
    every_door,
    http_response,
    http_wrap,
    tcp_wrap,
)
from tests.serving.talks import RAISE, Server, Talks, eventually, meeting

MAX_BODY = 200_000


def body_of(size: int) -> bytes:
    return bytes(itertools.islice(itertools.cycle(b"{abcdefgh\x00\x7f"), size))


@every_door
def test_a_body_of_any_size_comes_whole_and_its_reply_goes_whole(door: Door) -> None:
    sizes = (0, 1, 2, 125, 126, 127, 65_535, 65_536, MAX_BODY)
    with meeting(door, max_body=MAX_BODY) as (_server, talks, one):
        for size in sizes:
            assert one.echo(body_of(size)) == body_of(size)
        assert talks.bodies == [body_of(size) for size in sizes]
        assert [talk.peer.transport for talk in talks.all] == [door.name]
        host, port = one.socket.getsockname()
        assert talks.all[0].peer.address == f"{host}:{port}"


@every_door
def test_a_body_may_be_cut_at_every_byte(door: Door) -> None:
    whole = door.wrap(b"{cut anywhere")
    with meeting(door) as (_server, _, one):
        for cut in range(1, len(whole)):
            one.raw(whole[:cut])
            time.sleep(0.0005)
            one.raw(whole[cut:])
            assert one.receive() == b"{cut anywhere"


@every_door
def test_requests_sent_without_waiting_are_answered_in_their_order(door: Door) -> None:
    bodies = [b"{%d" % number for number in range(300)]
    with meeting(door) as (_server, _, one):
        sending = threading.Thread(target=one.raw, args=(b"".join(map(door.wrap, bodies)),))
        sending.start()
        assert [one.receive() for _ in bodies] == bodies
        sending.join()


def test_what_came_before_a_broken_frame_is_answered_first() -> None:
    with meeting(TCP) as (_server, talks, one):
        one.raw(tcp_wrap(b"{good") * 100 + b"no header")
        assert [one.receive() for _ in range(100)] == [b"{good"] * 100
        assert b"bad_frame: " in one.receive()
        assert one.rest() == b""
        assert len(talks.bodies) == 100


@every_door
def test_a_fault_of_ours_costs_its_connection_and_is_kept(door: Door) -> None:
    with meeting(door, faults=1) as (server, talks, healthy), Client(door, server.addresses[0]) as unlucky:
        if door is HTTP:
            unlucky.raw(http_wrap(RAISE, f"Host: localhost\r\nmenv-session: {'ab' * 16}\r\n"))
        else:
            unlucky.send(RAISE)
        assert unlucky.rest().partition(b"\r\n")[0] == (
            b"HTTP/1.1 500 Internal Server Error" if door is HTTP else b""
        )
        assert healthy.echo(b"{goes on") == b"{goes on"
        assert eventually(lambda: 1 in talks.losses)
        (fault,) = server.faults.kept
        assert isinstance(fault, ZeroDivisionError)
        # It does not keep bodies and connections in memory.
        frames = [frame for frame, _ in traceback.walk_tb(fault.__traceback__)]
        assert frames[-1].f_code.co_name == "received"
        assert frames[-1].f_locals == {}
        assert healthy.echo(b"{still") == b"{still"


@every_door
def test_a_peer_that_does_not_read_is_not_read_either(door: Door) -> None:
    body = b"{" + bytes(50_000)
    with meeting(door, max_body=100_000) as (server, talks, one):
        one.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            one.raw(door.wrap(body) * 400)
        time.sleep(0.2)
        handled = len(talks.bodies)
        with Client(door, server.addresses[0]) as two:
            if door is not HTTP:
                assert two.echo(b"{other") == b"{other"
        time.sleep(0.2)
        assert len([one for one in talks.bodies if one != b"{other"]) == handled
        one.socket.settimeout(PATIENCE_S)
        assert all(one.receive() == body for _ in range(handled))


def test_a_transport_of_another_server_is_refused_and_continues_serving_it() -> None:
    transport = TCP.make()
    with pytest.raises(ConfigError, match="TcpTransport"):
        Server(Talks(), [twice := TCP.make(), twice])
    with Server(Talks(), [transport]) as server:
        with pytest.raises(ConfigError, match="TcpTransport"):
            Server(Talks(), [transport])
        with Client(TCP, server.addresses[0]) as client:
            assert client.echo(b"{in") == b"{in"


def test_middleware_of_the_application_sees_requests() -> None:
    transport: Any = HTTP.make()
    transport.app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost"])
    with Server(Talks(), [transport]) as server:
        address = server.addresses[0]
        with Client(HTTP, address) as peer:
            assert peer.echo(b"{in") == b"{in"
        with Client(HTTP, address) as stranger:
            stranger.raw(b"GET /health HTTP/1.1\r\nHost: lab.example\r\n\r\n")
            assert http_response(stranger.file)[0] == 400
