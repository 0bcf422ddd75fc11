"""A healthy peer beside bad ones: its round trips go on, whatever the others do."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable

import pytest

from menv.serving import Limits
from tests.serving.doors import DOORS, HEADERS, HTTP, TCP, WEBSOCKET, Client, Door, websocket_frame
from tests.serving.talks import eventually, serving

every_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
MAX_BODY = 4_000_000
TRIPS = 200
Address = tuple[str, int]


def slow_loris(door: Door, address: Address, ended: threading.Event) -> None:
    """Thirty connections that each send a byte now and then."""
    crowd = [Client(door, address, greets=False) for _ in range(30)]
    for byte in door.opening("Host: localhost\r\n") + door.wrap(bytes(1_000)):
        for one in crowd:
            one.raw(bytes([byte]))
        if ended.wait(0.02):
            break
    for one in crowd:
        one.leave()


def garbage(door: Door, address: Address, ended: threading.Event) -> None:
    """Random bytes as fast as they go, on one connection after the other."""
    noise = random.Random(1)
    while not ended.is_set():
        with Client(door, address, greets=False) as one:
            try:
                for _ in range(20):
                    one.raw(noise.randbytes(65_536))
            except OSError:
                pass


def longest_bodies(door: Door, address: Address, ended: threading.Event) -> None:
    """The longest bodies that are allowed, one after the other, each echoed."""
    body = bytes(MAX_BODY)
    with Client(door, address) as one:
        while not ended.is_set():
            assert one.ask(body) == body


def smallest_bodies(door: Door, address: Address, ended: threading.Event) -> None:
    """As many requests at once as fit into the connection; replies are read, by another thread."""
    with Client(door, address) as one:
        reading = threading.Thread(target=one.rest)
        reading.start()
        flood = door.wrap(b"{") * 2_000
        while not ended.is_set():
            one.raw(flood)
        one.socket.shutdown(2)
        reading.join()


def greedy(door: Door, address: Address, ended: threading.Event) -> None:
    """Asks, and never reads."""
    with Client(door, address) as one:
        one.socket.settimeout(0.05)
        while not ended.is_set():
            try:
                one.raw(door.wrap(b"{" + bytes(100_000)))
            except OSError:
                ended.wait(0.05)


def too_many(door: Door, address: Address, ended: threading.Event) -> None:
    """Connections beyond the limit, one after the other."""
    crowd = [Client(door, address) for _ in range(31)]
    for one in crowd:
        assert one.ask(b"{in") == b"{in"
    while not ended.is_set():
        with Client(door, address, greets=False) as one:
            one.raw(door.opening(HEADERS) or (door.wrap(b"{") if door is HTTP else b""))
            one.rest()
    for one in crowd:
        one.leave()


BAD = (slow_loris, garbage, longest_bodies, smallest_bodies, greedy, too_many)


@every_door
@pytest.mark.parametrize("behave", BAD, ids=lambda behave: behave.__name__)
def test_the_round_trips_of_a_healthy_peer_go_on(
    door: Door, behave: Callable[[Door, Address, threading.Event], None]
) -> None:
    ended = threading.Event()
    with (
        serving(door, limits=Limits(max_body=MAX_BODY, max_connections=32)) as (server, _),
        Client(door, server.addresses[0]) as healthy,
    ):
        assert healthy.ask(b"{before") == b"{before"
        bad = threading.Thread(target=behave, args=(door, server.addresses[0], ended))
        bad.start()
        time.sleep(0.1)
        for trip in range(TRIPS):
            assert healthy.ask(b"{%d" % trip) == b"{%d" % trip
        assert bad.is_alive()
        ended.set()
        bad.join()


@pytest.mark.parametrize("door", [TCP, WEBSOCKET], ids=lambda door: door.name)
def test_a_flood_of_bodies_is_handled_in_turns_with_others(door: Door) -> None:
    with (
        serving(door) as (server, talks),
        Client(door, server.addresses[0]) as flood,
        Client(door, server.addresses[0]) as healthy,
    ):
        # Who was heard of last is looked at first.
        assert healthy.ask(b"{first") == b"{first"
        assert flood.ask(b"{second") == b"{second"
        # The thread is held up until everything lies there, that of the healthy one last.
        ready = threading.Event()
        server.post(ready.wait)
        flood.raw(door.wrap(b"{") * 5_000)
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
            with Client(door, server.addresses[0], greets=turn % 2 == 0) as one:
                opening = b"" if turn % 2 == 0 else door.opening("Host: localhost\r\n")
                try:
                    one.raw(spoilt(opening + door.wrap(b"{first") + door.wrap(b"{" + bytes(300)), noise))
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
    speak_badly(door, 300)


@pytest.mark.soak
@every_door
def test_many_spoilt_bytes_are_no_fault_and_no_burden(door: Door) -> None:
    speak_badly(door, 20_000)


def test_pings_alone_keep_no_half_sent_body_alive() -> None:
    limits = Limits(handshake_s=0.3)
    with serving(WEBSOCKET, limits=limits) as (server, _), Client(WEBSOCKET, server.addresses[0]) as one:
        one.raw(websocket_frame(b"{half", 2, last=False))
        end = threading.Event()

        def ping() -> None:
            while not end.wait(0.02):
                try:
                    one.raw(websocket_frame(b"", 9))
                except OSError:
                    return

        pinging = threading.Thread(target=ping)
        pinging.start()
        assert b"too_slow: " in one.rest()
        end.set()
        pinging.join()


def test_an_http_client_of_the_standard_library_and_a_websocket_client_of_the_package_talk() -> None:
    import http.client

    from websockets.sync.client import connect

    with serving(HTTP, WEBSOCKET) as (server, talks):
        web = http.client.HTTPConnection(*server.addresses[0], timeout=10)
        for body in (b'{"a": 1}', b"\x81\xa1a\x01", b"{" + bytes(1_000_000)):
            web.request("POST", "/rllink", body)
            response = web.getresponse()
            kind = "application/json" if body[:1] == b"{" else "application/msgpack"
            assert (response.status, response.headers["content-type"]) == (200, kind)
            assert response.read() == body
        web.close()
        host, port = server.addresses[1]
        with connect(f"ws://{host}:{port}/rllink") as chat:
            chat.send('{"a": 1}')
            assert chat.recv() == '{"a": 1}'
            chat.send(b"\x81\xa1a\x01")
            assert chat.recv() == b"\x81\xa1a\x01"
            chat.send(['{"a"', ": 1}"])
            assert chat.recv() == '{"a": 1}'
        assert len(talks.all) == 4
