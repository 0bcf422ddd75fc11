"""Reads and writes that are cut anywhere, and peers that leave in the same moment."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serving.doors import TCP, WEBSOCKET, Client, Door, tcp_wrap
from tests.serving.talks import HOLD, eventually, serving

streams = pytest.mark.parametrize("door", [TCP, WEBSOCKET], ids=lambda door: door.name)
LARGE = 700_000
"""Bytes that no single look takes."""


@streams
def test_more_than_one_look_takes_comes_whole_while_others_are_answered(door: Door) -> None:
    with (
        serving(door) as (server, talks),
        Client(door, server.addresses[0]) as one,
        Client(door, server.addresses[0]) as other,
    ):
        whole = door.wrap(b"{" + bytes(LARGE))
        one.raw(whole[:-1])
        for _ in range(20):
            assert other.ask(b"{short") == b"{short"
        one.raw(whole[-1:])
        assert len(one.receive()) == 1 + LARGE
        assert len(talks.all) == 2


def test_peers_that_leave_in_the_same_moment_are_all_seen_off() -> None:
    with serving(TCP) as (server, talks):
        for _ in range(10):
            crowd = [Client(TCP, server.addresses[0]) for _ in range(20)]
            for number, one in enumerate(crowd):
                one.send(HOLD)
                one.reset() if number % 2 else one.leave()
            assert eventually(lambda: server.connections == 0)
        assert eventually(lambda: talks.losses == [1] * 200)
        with Client(TCP, server.addresses[0]) as one:
            assert one.ask(b"{still here") == b"{still here"


def test_what_came_before_the_end_of_a_connection_is_read_first() -> None:
    with serving(TCP) as (server, talks):
        for count in range(1, 20):
            with Client(TCP, server.addresses[0]) as one:
                one.raw(tcp_wrap(b"{once more") * count)
                one.socket.shutdown(socket.SHUT_WR)
                assert one.rest() == tcp_wrap(b"{once more") * count
        assert eventually(lambda: server.connections == 0)
        assert len(talks.bodies) == sum(range(1, 20))


def test_replies_that_are_sent_in_part_come_whole_and_in_their_order() -> None:
    with serving(TCP) as (server, _), Client(TCP, server.addresses[0]) as one:
        sent = [b"{%06d" % number + bytes(number % 5 * 100_000) for number in range(100)]
        with ThreadPoolExecutor(1) as others:
            sending = others.submit(one.raw, b"".join(map(tcp_wrap, sent)))
            # Until it is read, the server can send a part of it only.
            time.sleep(0.2)
            assert all(one.receive() == body for body in sent)
            sending.result()
