"""Limits: what breaks one is refused with a reason, costs its own connection, and others go on."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest

from menv.errors import ConfigError
from menv.serving import Limits
from tests.serving.doors import HTTP, TCP, Client, Door, every_door, http_response
from tests.serving.talks import FLOOD, HOLD, eventually, meeting, serving

TINY = Limits(max_body=1_000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_body", 0),
        ("max_body", 100_000_000),
        ("max_body", 1.5),
        ("max_connections", True),
        ("handshake_s", float("nan")),
        ("idle_s", float("inf")),
    ],
)
def test_a_limit_that_cannot_be_is_a_named_error(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field) as caught:
        Limits(**{field: value})
    assert len(str(caught.value).splitlines()) == 1


def test_a_long_body_is_refused_before_it_is_sent_and_the_setting_is_named() -> None:
    head = b"POST /rllink HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
    with serving(TCP, HTTP, limits=TINY) as (server, _):
        for door, address, begun in zip((TCP, HTTP), server.addresses, (b"00001001", head), strict=True):
            with Client(door, address) as one:
                one.raw(begun)
                told = one.receive()
                assert b"too_large: " in told
                assert b"1000" in told
                assert b"Limits.max_body" in told


@every_door
def test_the_refusal_of_a_large_body_arrives_though_all_of_it_was_sent(door: Door) -> None:
    with meeting(door, max_body=2_000_000) as (_server, _talks, one):
        one.send(b"{" + bytes(7_000_000))
        assert b"too_large: " in one.receive()


@every_door
def test_one_client_too_many_is_refused_and_may_come_when_another_leaves(door: Door) -> None:
    with serving(door, limits=Limits(max_connections=2)) as (server, _talks):
        first, second = Client(door, server.addresses[0]), Client(door, server.addresses[0])
        assert second.echo(b"{in") == b"{in"
        assert first.echo(b"{in") == b"{in"
        with Client(door, server.addresses[0]) as third:
            third.raw(door.wrap(b"{") if door is HTTP else b"")
            told = third.rest()
            assert b"too_many: " in told
            assert told.startswith(b"0" if door is TCP else b"HTTP/1.1 503 ")
        assert second.echo(b"{still in") == b"{still in"
        first.leave()
        assert eventually(lambda: server.connections == 1)
        with Client(door, server.addresses[0]) as fourth:
            assert fourth.echo(b"{in at last") == b"{in at last"
        second.leave()


@pytest.mark.parametrize("path", ["/rllink", "/health", "/nowhere"])
def test_a_body_in_chunks_is_refused_before_the_chunks_are_read(path: str) -> None:
    with meeting(HTTP, idle_s=0.5) as (_server, talks, one):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        one.raw(head.encode() + b"1\r\n{\r\n" * 3_000 + b"0\r\n\r\n")
        status, _, body = http_response(one.file)
        assert status == {"/rllink": 411, "/health": 405, "/nowhere": 404}[path]
        assert path != "/rllink" or b"Content-Length" in body
        assert talks.bodies == []
        assert b"HTTP/1.1" not in one.rest()


@every_door
def test_under_a_flood_of_silent_connections_those_inside_continue_and_soon_there_is_room(door: Door) -> None:
    with meeting(door, max_connections=5, handshake_s=0.5) as (server, _, inside):
        assert inside.echo(b"{in") == b"{in"
        crowd = [Client(door, server.addresses[0]) for _ in range(100)]
        assert inside.echo(b"{still in") == b"{still in"
        assert eventually(lambda: server.connections < 50)

        def has_room() -> bool:
            with Client(door, server.addresses[0]) as late, contextlib.suppress(OSError):
                late.send(b"{late")
                return b"{late" in late.socket.recv(1000)
            return False

        assert eventually(has_room)
        assert inside.echo(b"{still in") == b"{still in"
        for one in crowd:
            one.leave()


@pytest.mark.slow_unless("body-tcp", "first word-http")
@every_door
@pytest.mark.parametrize("opens", [True, False], ids=["body", "first word"])
def test_a_body_that_never_ends_is_not_waited_for(door: Door, opens: bool) -> None:
    with meeting(door, handshake_s=0.3) as (server, _, one):
        if opens:
            assert one.echo(b"{one") == b"{one"
        whole = door.wrap(b"{two" * 1_000)
        end = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                for byte in whole:
                    if not end.wait(0.02):
                        one.raw(bytes([byte]))

        dripping = threading.Thread(target=drip)
        dripping.start()
        told = one.rest()
        end.set()
        dripping.join()
        assert door is HTTP or b"too_slow: " in told
        assert eventually(lambda: server.connections == 0)


@every_door
@pytest.mark.parametrize("reads", [True, False], ids=["falls silent", "never reads"])
def test_a_peer_that_falls_silent_or_never_reads_is_let_go(door: Door, reads: bool) -> None:
    with meeting(door, idle_s=0.3) as (server, talks, one):
        if reads:
            assert one.echo(b"{last") == b"{last"
            one.rest()
        else:
            for _ in range(20):
                one.send(FLOOD)
        assert eventually(lambda: talks.bodies)
        assert eventually(lambda: server.connections == 0)
        assert (door is HTTP and not reads) or eventually(lambda: talks.losses == [1])


def test_replies_that_nobody_reads_do_not_pile_up() -> None:
    with (
        meeting(TCP, max_unsent=3_000_000) as (server, talks, greedy),
        Client(TCP, server.addresses[0]) as healthy,
    ):
        for _ in range(30):
            greedy.send(HOLD)
        assert eventually(lambda: len(talks.bodies) == 30)
        for reply in talks.all[0].held:
            server.post(lambda reply=reply: reply(bytes(1_000_000)))  # type: ignore[misc]
        assert eventually(lambda: talks.all[0].losses)
        assert healthy.echo(b"{fine") == b"{fine"


def test_a_flood_of_bodies_is_handled_in_turns_with_others() -> None:
    with meeting(TCP) as (server, talks, flood), Client(TCP, server.addresses[0]) as healthy:
        # Who was heard of last is looked at first.
        assert healthy.echo(b"{first") == b"{first"
        assert flood.echo(b"{second") == b"{second"
        # The thread is held up until everything lies there, that of the healthy one last.
        ready = threading.Event()
        server.post(ready.wait)
        flood.raw(TCP.wrap(b"{") * 5_000)
        healthy.send(b"{healthy")
        time.sleep(0.1)
        ready.set()
        assert healthy.receive() == b"{healthy"
        assert len(talks.all[0].bodies) < 2_500
        assert eventually(lambda: len(talks.all[0].bodies) == 5_001)
