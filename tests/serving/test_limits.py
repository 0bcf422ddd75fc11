"""Limits: what breaks one is refused with a reason, costs its own connection, and others go on."""

from __future__ import annotations

import random
import socket
import threading
import time
from typing import Any

import pytest

from menv.errors import ConfigError
from menv.serving import Limits
from tests.serving.doors import (
    HTTP,
    TCP,
    Client,
    Door,
    every_door,
    http_response,
    http_wrap,
)
from tests.serving.talks import FLOOD, HOLD, eventually, meeting, serving

TINY = Limits(max_body=1_000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_body", 0),
        ("max_body", 100_000_000),
        ("max_body", 1.5),
        ("max_connections", True),
        ("max_rate", -1),
        ("handshake_s", float("nan")),
        ("idle_s", float("inf")),
        ("max_depth", "32"),
    ],
)
def test_a_limit_that_cannot_be_is_a_named_error(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"Limits\.{field}: got .*, expected .*; ") as caught:
        Limits(**{field: value})
    assert len(str(caught.value).splitlines()) == 1


@every_door
def test_a_body_that_is_too_long_is_refused_while_another_peer_goes_on(door: Door) -> None:
    with serving(door, limits=TINY) as (server, talks):
        with Client(door, server.addresses[0]) as healthy, Client(door, server.addresses[0]) as one:
            one.send(b"{" * 1_001)
            assert b"too_large: " in one.receive()
            assert one.rest() == b""
            assert healthy.ask(b"{fine") == b"{fine"
        assert talks.bodies == [b"{fine"]


@pytest.mark.parametrize("door", [TCP, HTTP], ids=lambda door: door.name)
def test_somebody_who_has_sent_too_much_still_reads_why(door: Door) -> None:
    # Closing with bytes unread would reset the connection, and take away what was written.
    with meeting(door, max_body=5_000_000) as (_server, _, one):
        one.send(bytes(18_000_000))
        assert b"too_large: " in one.rest()


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


def test_a_body_in_chunks_is_bounded_while_it_comes() -> None:
    with meeting(HTTP, max_body=1_000) as (_server, talks, one):
        head = b"POST /rllink HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        one.raw(head + b"64\r\n%b\r\n" % bytes(100) + b"0\r\n\r\n")
        assert one.receive() == bytes(100)
        one.raw(head + b"64\r\n%b\r\n" % bytes(100) * 11)
        status, _, body = http_response(one.file)
        assert (status, b"too_large: " in body) == (413, True)
        assert talks.bodies == [bytes(100)]


@every_door
def test_somebody_too_many_is_told_so_and_the_place_is_free_again_when_somebody_leaves(door: Door) -> None:
    with serving(door, limits=Limits(max_connections=2)) as (server, _talks):
        first, second = Client(door, server.addresses[0]), Client(door, server.addresses[0])
        assert second.ask(b"{in") == b"{in"
        assert first.ask(b"{in") == b"{in"
        with Client(door, server.addresses[0]) as third:
            third.raw(door.wrap(b"{") if door is HTTP else b"")
            told = third.rest()
            assert b"too_many: " in told
            assert told.startswith(b"0" if door is TCP else b"HTTP/1.1 503 ")
        assert second.ask(b"{still in") == b"{still in"
        first.leave()
        assert eventually(lambda: server.connections == 1)
        with Client(door, server.addresses[0]) as fourth:
            assert fourth.ask(b"{in at last") == b"{in at last"
        second.leave()


@every_door
def test_as_many_as_are_allowed_may_come_at_once(door: Door) -> None:
    with serving(door, limits=Limits(max_connections=30)) as (server, _):
        for _ in range(5):
            assert eventually(lambda: server.connections == 0)
            crowd = [Client(door, server.addresses[0]) for _ in range(30)]
            for one in crowd:
                one.raw(door.wrap(b"{in"))
            for one in crowd:
                assert b"503" not in one.file.peek()
                assert b"too_many" not in one.file.peek()
                one.leave()


def test_somebody_who_has_said_goodbye_makes_room_for_the_next() -> None:
    with meeting(TCP, max_connections=1) as (server, _, rude):
        rude.raw(b"no header")
        assert b"bad_frame: " in rude.receive()
        with Client(TCP, server.addresses[0]) as polite:
            assert polite.ask(b"{in") == b"{in"


@every_door
def test_those_who_have_come_and_gone_take_nobody_s_place_and_are_heard(door: Door) -> None:
    with serving(door, limits=Limits(max_connections=40)) as (server, talks):
        # All of them wait at the port before the first is taken in.
        ready = threading.Event()
        server.post(ready.wait)
        for _ in range(150):
            with Client(door, server.addresses[0]) as one:
                one.raw(door.wrap(b"{gone"))
        threading.Timer(0.1, ready.set).start()
        with Client(door, server.addresses[0]) as late:
            assert late.ask(b"{in") == b"{in"
        assert eventually(lambda: len(talks.bodies) == 151)


@every_door
def test_those_who_say_nothing_take_nobody_s_place(door: Door) -> None:
    with meeting(door, max_connections=5) as (server, _, inside):
        assert inside.ask(b"{in") == b"{in"
        crowd = [Client(door, server.addresses[0]) for _ in range(20)]
        with Client(door, server.addresses[0]) as late:
            assert late.ask(b"{in as well") == b"{in as well"
            assert inside.ask(b"{still in") == b"{still in"
        for one in crowd:
            one.leave()


@pytest.mark.slow_unless("body-tcp", "first word-http")
@every_door
@pytest.mark.parametrize("opens", [True, False], ids=["body", "first word"])
def test_a_body_that_never_ends_is_not_waited_for(door: Door, opens: bool) -> None:
    with meeting(door, handshake_s=0.3) as (server, _, one):
        if opens:
            assert one.ask(b"{one") == b"{one"
        whole = door.wrap(b"{two" * 1_000)
        end = threading.Event()

        def drip() -> None:
            for byte in whole:
                if end.wait(0.02):
                    return
                try:
                    one.raw(bytes([byte]))
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        told = one.rest()
        end.set()
        dripping.join()
        assert door is HTTP or b"too_slow: " in told
        assert eventually(lambda: server.connections == 0)


@every_door
def test_somebody_who_says_nothing_is_not_kept(door: Door) -> None:
    limits = Limits(handshake_s=0.2)
    with serving(door, limits=limits) as (server, _), Client(door, server.addresses[0]) as one:
        one.rest()
        assert eventually(lambda: server.connections == 0)


@every_door
def test_a_peer_that_falls_silent_is_let_go(door: Door) -> None:
    with meeting(door, idle_s=0.3) as (server, talks, one):
        assert one.ask(b"{last") == b"{last"
        one.rest()
        assert eventually(lambda: talks.losses == [1])
        assert eventually(lambda: server.connections == 0)


def test_a_client_over_http_whose_connections_are_gone_is_given_up_before_one_that_is_silent() -> None:
    with serving(HTTP, limits=Limits(handshake_s=0.3, idle_s=100.0)) as (server, talks):
        with Client(HTTP, server.addresses[0]) as one:
            assert one.ask(b"{here") == b"{here"
            time.sleep(0.6)
            assert talks.losses == [0]
        assert eventually(lambda: talks.losses == [1])


def test_a_request_over_http_may_wait_for_its_reply_as_long_as_it_takes() -> None:
    with meeting(HTTP, idle_s=0.2, handshake_s=0.2) as (server, talks, one):
        one.send(HOLD)
        assert eventually(lambda: talks.bodies)
        time.sleep(0.6)
        assert talks.losses == [0]
        server.post(lambda: talks.all[0].held[0](b"{at last"))
        assert one.receive() == b"{at last"


@every_door
def test_somebody_too_fast_is_slowed_down_and_loses_nothing(door: Door) -> None:
    bodies = [b"{%d" % number for number in range(60)]
    with meeting(door, max_rate=40) as (_server, _, one):
        start = time.perf_counter()
        sending = threading.Thread(target=one.raw, args=(b"".join(map(door.wrap, bodies)),))
        sending.start()
        assert [one.receive() for _ in bodies] == bodies
        sending.join()
        # Forty at once, the other twenty at forty a second.
        assert time.perf_counter() - start > 0.4


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
        assert healthy.ask(b"{fine") == b"{fine"


@every_door
def test_somebody_who_never_reads_is_cut_off(door: Door) -> None:
    with meeting(door, idle_s=0.3) as (server, talks, one):
        for _ in range(20):
            one.send(FLOOD)
        assert eventually(lambda: talks.bodies)
        assert eventually(lambda: server.connections == 0)
        assert door is HTTP or eventually(lambda: talks.losses == [1])


@every_door
def test_somebody_who_does_not_read_a_goodbye_is_cut_off(door: Door) -> None:
    with meeting(door, handshake_s=0.3, idle_s=0.3) as (server, talks, one):
        one.send(HOLD)
        assert eventually(lambda: talks.bodies)
        server.post(lambda: talks.all[0].held[0](bytes(16_000_000)))
        server.post(lambda: talks.all[0].closes[0]())
        assert eventually(lambda: server.connections == 0)


def test_somebody_who_does_not_read_the_metrics_is_cut_off() -> None:
    with serving(HTTP, limits=Limits(handshake_s=0.3)) as (server, talks):
        talks.metrics = lambda: bytes(16_000_000)  # type: ignore[method-assign]
        with Client(HTTP, server.addresses[0]) as one:
            one.raw(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
            assert eventually(lambda: server.connections == 1)
            assert eventually(lambda: server.connections == 0)


def test_conversations_over_http_are_bounded_and_those_with_a_connection_stay() -> None:
    def name(number: int) -> str:
        return f"Host: localhost\r\nmenv-session: {number:032x}\r\n"

    with (
        meeting(HTTP, max_connections=3) as (server, talks, kept),
        Client(HTTP, server.addresses[0]) as restless,
    ):
        kept.raw(http_wrap(b"{1", name(0)))
        assert kept.receive() == b"{1"
        for number in range(1, 20):
            restless.raw(http_wrap(b"{2", name(number)))
            assert restless.receive() == b"{2"
        assert sum(not losses for losses in talks.losses) == 3
        assert talks.all[0].losses == 0
        kept.raw(http_wrap(b"{3", name(0)))
        assert kept.receive() == b"{3"
        assert talks.all[0].bodies == [b"{1", b"{3"]


def test_conversations_over_http_give_way_when_their_connection_is_gone() -> None:
    with serving(HTTP, limits=Limits(max_connections=3)) as (server, talks):
        for number in range(10):
            with Client(HTTP, server.addresses[0]) as one:
                one.raw(http_wrap(b"{1", f"Host: localhost\r\nmenv-session: {number:032x}\r\n"))
                assert one.receive() == b"{1"
            assert eventually(lambda: server.connections == 0)
        assert talks.losses == [1] * 7 + [0] * 3


Address = tuple[str, int]


def greedy(door: Door, address: Address, ended: threading.Event) -> None:
    """Asks, and never reads."""
    with Client(door, address) as one:
        one.socket.settimeout(0.05)
        while not ended.is_set():
            try:
                one.raw(door.wrap(b"{" + bytes(100_000)))
            except OSError:
                ended.wait(0.05)


def test_a_flood_of_bodies_is_handled_in_turns_with_others() -> None:
    with meeting(TCP) as (server, talks, flood), Client(TCP, server.addresses[0]) as healthy:
        # Who was heard of last is looked at first.
        assert healthy.ask(b"{first") == b"{first"
        assert flood.ask(b"{second") == b"{second"
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


def spoilt(whole: bytes, noise: random.Random) -> bytes:
    """Return `whole` with some bytes changed, left out, doubled or put in."""
    data = bytearray(whole)
    for _ in range(noise.choice((1, 1, 2, 8))):
        at = noise.randrange(len(data))
        kind = noise.randrange(4)
        if kind == 0:
            data[at] = noise.randrange(256)
        elif kind == 1:
            del data[at : at + noise.choice((1, 5, 50))]
        elif kind == 2:
            data[at:at] = data[at : at + 20]
        else:
            data[at:at] = noise.randbytes(noise.choice((1, 4, 300)))
        data = data or bytearray(b"0")
    return bytes(data)


def speak_badly(door: Door, times: int) -> None:
    """Send spoilt requests, each on a connection of its own, beside somebody who goes on."""
    noise = random.Random(7)
    limits = Limits(max_body=10_000, handshake_s=1.0, idle_s=5.0)
    with serving(door, limits=limits) as (server, _):
        for turn in range(times):
            with Client(door, server.addresses[0]) as one:
                try:
                    one.raw(spoilt(door.wrap(b"{first") + door.wrap(b"{" + bytes(300)), noise))
                    if turn % 3 == 0:
                        one.socket.shutdown(socket.SHUT_WR)
                        one.rest()
                except OSError:
                    pass
            if turn % 25 == 0:
                with Client(door, server.addresses[0]) as healthy:
                    assert healthy.ask(b"{served") == b"{served"
        assert eventually(lambda: server.connections == 0)


@every_door
def test_spoilt_bytes_are_no_fault_and_no_burden(door: Door) -> None:
    speak_badly(door, 150)


def test_an_http_client_of_the_standard_library_talks() -> None:
    import http.client

    with serving(HTTP) as (server, _):
        web = http.client.HTTPConnection(*server.addresses[0], timeout=10)
        for body in (b'{"a": 1}', b"\x81\xa1a\x01", b"{" + bytes(900_000)):
            web.request("POST", "/rllink", body)
            response = web.getresponse()
            kind = "application/json" if body[:1] == b"{" else "application/msgpack"
            assert (response.status, response.headers["content-type"]) == (200, kind)
            assert response.read() == body
        web.close()
