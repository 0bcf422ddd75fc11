"""What every transport does with bodies and replies, over real sockets."""

from __future__ import annotations

import gc
import itertools
import socket
import threading
import time
import traceback

import pytest

from menv.serving import Limits
from tests.serving.doors import (
    DOORS,
    HTTP,
    PATIENCE_S,
    TCP,
    WEBSOCKET,
    Client,
    Door,
    http_wrap,
    read_head,
    tcp_wrap,
    websocket_frame,
)
from tests.serving.talks import CLOSE, FLOOD, FLOOD_BYTES, HOLD, LATE, RAISE, eventually, serving

every_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
streams = pytest.mark.parametrize("door", [TCP, WEBSOCKET], ids=lambda door: door.name)
MAX_BODY = 200_000


def body_of(size: int) -> bytes:
    return bytes(itertools.islice(itertools.cycle(b"{abcdefgh\x00\x7f"), size))


@every_door
def test_a_body_of_any_size_comes_whole_and_its_reply_goes_whole(door: Door) -> None:
    sizes = (0, 1, 2, 125, 126, 127, 65_535, 65_536, MAX_BODY)
    with (
        serving(door, limits=Limits(max_body=MAX_BODY)) as (server, talks),
        Client(door, server.addresses[0]) as one,
    ):
        for size in sizes:
            assert one.ask(body_of(size)) == body_of(size)
        assert talks.bodies == [body_of(size) for size in sizes]
        assert [talk.peer.transport for talk in talks.all] == [door.name]
        host, port = one.socket.getsockname()
        assert talks.all[0].peer.address == f"{host}:{port}"


@every_door
def test_a_body_may_be_cut_at_every_byte(door: Door) -> None:
    whole = door.wrap(b"{cut anywhere")
    with serving(door) as (server, _), Client(door, server.addresses[0]) as one:
        for cut in range(1, len(whole)):
            one.raw(whole[:cut])
            time.sleep(0.0005)
            one.raw(whole[cut:])
            assert one.receive() == b"{cut anywhere"


@every_door
def test_bytes_may_come_one_by_one(door: Door) -> None:
    with serving(door) as (server, _), Client(door, server.addresses[0], greets=False) as one:
        opening = door.opening("Host: localhost\r\n")
        for byte in opening:
            one.raw(bytes([byte]))
        if opening:
            assert read_head(one.file).startswith(b"HTTP/1.1 101 ")
        for byte in door.wrap(b"{slow"):
            one.raw(bytes([byte]))
        assert one.receive() == b"{slow"


@every_door
def test_many_peers_at_once_each_get_their_own_replies(door: Door) -> None:
    with serving(door) as (server, talks):

        def play(number: int) -> None:
            with Client(door, server.addresses[0]) as one:
                for turn in range(50):
                    body = b"%b%d %d" % (LATE if turn % 7 == 0 else b"{", number, turn)
                    got[number] += one.ask(body) == body

        got = [0] * 16
        threads = [threading.Thread(target=play, args=(number,)) for number in range(len(got))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [50] * len(got)
        assert len(talks.bodies) == 50 * len(got)


@every_door
def test_requests_sent_without_waiting_are_answered_in_their_order(door: Door) -> None:
    bodies = [b"{%d" % number for number in range(300)]
    with serving(door) as (server, _), Client(door, server.addresses[0]) as one:
        sending = threading.Thread(target=one.raw, args=(b"".join(map(door.wrap, bodies)),))
        sending.start()
        assert [one.receive() for _ in bodies] == bodies
        sending.join()


@streams
def test_replies_go_out_as_they_come(door: Door) -> None:
    with serving(door) as (server, _), Client(door, server.addresses[0]) as one:
        one.send(LATE)
        one.send(b"{soon")
        assert [one.receive(), one.receive()] == [b"{soon", LATE]


@every_door
def test_replies_may_be_posted_by_another_thread(door: Door) -> None:
    with serving(door) as (server, talks), Client(door, server.addresses[0]) as one:
        one.send(HOLD)
        assert eventually(lambda: talks.bodies)
        (reply,) = talks.all[0].held
        server.post(lambda: reply(b"{from outside"))
        assert one.receive() == b"{from outside"


@every_door
def test_a_reply_to_somebody_who_has_left_does_nothing(door: Door) -> None:
    with serving(door) as (server, talks):
        one = Client(door, server.addresses[0])
        one.send(HOLD)
        assert eventually(lambda: talks.bodies)
        one.reset()
        assert eventually(lambda: server.connections == 0)
        for _ in range(10):
            server.post(lambda: talks.all[0].held[0](b"{too late"))
        with Client(door, server.addresses[0]) as two:
            assert two.ask(b"{next") == b"{next"


@every_door
def test_a_conversation_may_end_the_connection_after_its_reply(door: Door) -> None:
    with serving(door) as (server, talks), Client(door, server.addresses[0]) as one:
        one.send(CLOSE)
        assert one.receive() == CLOSE
        one.rest()
        assert eventually(lambda: talks.losses == [1])
        assert eventually(lambda: server.connections == 0)


@every_door
def test_a_conversation_may_end_later_without_a_word(door: Door) -> None:
    with serving(door) as (server, talks), Client(door, server.addresses[0]) as one:
        assert one.ask(b"{fine") == b"{fine"
        server.post(talks.all[0].closes[0])
        if door is not HTTP:
            one.rest()
            one.leave()
        assert eventually(lambda: talks.losses == [1])
        server.post(talks.all[0].closes[0])


@streams
def test_a_reply_after_the_end_of_a_conversation_is_dropped(door: Door) -> None:
    with serving(door) as (server, talks), Client(door, server.addresses[0]) as one:
        one.send(HOLD)
        one.send(CLOSE)
        assert one.receive() == CLOSE
        server.post(lambda: talks.all[0].held[0](b"{too late"))
        assert b"late" not in one.rest()


@streams
def test_what_comes_after_the_end_of_a_conversation_is_not_handed_to_it(door: Door) -> None:
    with serving(door) as (server, talks), Client(door, server.addresses[0]) as one:
        one.raw(door.wrap(CLOSE) + door.wrap(b"{more") * 100)
        assert one.receive() == CLOSE
        one.rest()
        assert talks.bodies == [CLOSE]


def test_what_came_before_a_broken_frame_is_answered_first() -> None:
    with serving(TCP) as (server, talks), Client(TCP, server.addresses[0]) as one:
        one.raw(tcp_wrap(b"{good") * 100 + b"no header")
        assert [one.receive() for _ in range(100)] == [b"{good"] * 100
        assert b"bad_frame: " in one.receive()
        assert one.rest() == b""
        assert len(talks.bodies) == 100


def test_what_came_before_a_websocket_was_closed_is_handled() -> None:
    with serving(WEBSOCKET) as (server, talks), Client(WEBSOCKET, server.addresses[0]) as one:
        one.raw(WEBSOCKET.wrap(b"{good") * 100 + websocket_frame(b"\x03\xe8", 8))
        one.rest()
        assert eventually(lambda: talks.bodies == [b"{good"] * 100)
        assert eventually(lambda: talks.losses == [1])


@every_door
def test_a_fault_of_ours_costs_its_connection_and_is_kept(door: Door) -> None:
    with (
        serving(door, faults=1) as (server, talks),
        Client(door, server.addresses[0]) as healthy,
        Client(door, server.addresses[0]) as unlucky,
    ):
        if door is HTTP:
            unlucky.raw(http_wrap(RAISE, f"Host: localhost\r\nmenv-session: {'ab' * 16}\r\n"))
        else:
            unlucky.send(RAISE)
        assert unlucky.rest() == b""
        assert healthy.ask(b"{goes on") == b"{goes on"
        assert eventually(lambda: 1 in talks.losses)
        (fault,) = server.faults.kept
        assert isinstance(fault, ZeroDivisionError)
        # It does not keep bodies and connections in memory.
        frames = [frame for frame, _ in traceback.walk_tb(fault.__traceback__)]
        assert frames[-1].f_code.co_name == "received"
        assert frames[-1].f_locals == {}
        assert healthy.ask(b"{still") == b"{still"


@every_door
def test_a_fault_in_a_refusal_is_kept_as_well(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(door, faults=1) as (server, talks):
        monkeypatch.setattr(talks, "refused", lambda why: 1 // 0)
        headers = "Host: evil.example\r\n"
        with Client(door, server.addresses[0], greets=False) as one:
            one.raw(b"no header" if door is TCP else door.opening(headers) or http_wrap(b"{body", headers))
            one.rest()
        assert eventually(lambda: server.connections == 0)


def test_half_of_a_connection_may_be_closed_by_somebody_who_waits_for_the_reply() -> None:
    with serving(TCP) as (server, _), Client(TCP, server.addresses[0]) as one:
        one.send(LATE)
        one.socket.shutdown(socket.SHUT_WR)
        assert one.receive() == LATE
        assert one.rest() == b""


def test_somebody_who_closes_half_and_is_owed_nothing_is_let_go_at_once() -> None:
    with serving(TCP) as (server, _), Client(TCP, server.addresses[0]) as one:
        assert one.ask(b"{all") == b"{all"
        one.socket.shutdown(socket.SHUT_WR)
        assert one.rest() == b""


@every_door
def test_the_last_words_of_somebody_who_leaves_are_heard(door: Door) -> None:
    bodies = [b"{%d" % number for number in range(100)]
    with serving(door) as (server, talks):
        with Client(door, server.addresses[0]) as one:
            if door is HTTP:
                for body in bodies:
                    one.ask(body)
            else:
                one.raw(b"".join(map(door.wrap, bodies)))
        assert eventually(lambda: talks.bodies == bodies)
        assert eventually(lambda: server.connections == 0)


@every_door
def test_small_replies_are_not_held_back(door: Door) -> None:
    with serving(door) as (server, _), Client(door, server.addresses[0]) as one:
        assert one.ask(b"{small") == b"{small"
        ours = [
            found
            for found in gc.get_objects()
            if issubclass(type(found), socket.socket) and found.fileno() >= 0
            and found is not one.socket and _port_of_peer(found) == one.socket.getsockname()[1]
        ]  # fmt: skip
        assert [found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for found in ours] != [0]
        assert len(ours) == 1


def _port_of_peer(found: socket.socket) -> int:
    try:
        return int(found.getpeername()[1])
    except (OSError, IndexError):
        return 0


@every_door
def test_a_peer_that_does_not_read_is_not_read_either(door: Door) -> None:
    body = b"{" + bytes(50_000)
    with (
        serving(door, limits=Limits(max_body=100_000)) as (server, talks),
        Client(door, server.addresses[0]) as one,
    ):
        one.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            one.raw(door.wrap(body) * 2_000)
        handled = len(talks.bodies)
        with Client(door, server.addresses[0]) as two:
            if door is not HTTP:
                assert two.ask(b"{other") == b"{other"
        time.sleep(0.2)
        assert len([one for one in talks.bodies if one != b"{other"]) == handled
        one.socket.settimeout(PATIENCE_S)
        assert all(one.receive() == body for _ in range(handled))


@streams
def test_replies_are_not_made_faster_than_they_are_read(door: Door) -> None:
    with serving(door) as (server, talks), Client(door, server.addresses[0]) as one:
        one.raw(door.wrap(FLOOD) * 40)
        assert eventually(lambda: talks.bodies)
        time.sleep(0.3)
        assert len(talks.bodies) < 20
        assert all(len(one.receive()) == FLOOD_BYTES + 1 for _ in range(40))
