"""What every transport does with bodies and replies, over real sockets, and a transport that others write."""

from __future__ import annotations

import asyncio
import gc
import itertools
import queue
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.middleware.trustedhost import TrustedHostMiddleware

from menv.errors import ConfigError
from menv.serving import Access, Limits
from menv.serving.transports.http import HttpTransport
from menv.serving.transports.server import Server
from menv.serving.transports.tcp import TcpTransport
from menv.serving.transports.transport import Handler, Peer, SessionProtocol, Transport
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
from tests.serving.talks import (
    CLOSE,
    HOLD,
    LATE,
    RAISE,
    Talks,
    eventually,
    meeting,
    serving,
)

MAX_BODY = 200_000


def body_of(size: int) -> bytes:
    return bytes(itertools.islice(itertools.cycle(b"{abcdefgh\x00\x7f"), size))


@every_door
def test_a_body_of_any_size_comes_whole_and_its_reply_goes_whole(door: Door) -> None:
    sizes = (0, 1, 2, 125, 126, 127, 65_535, 65_536, MAX_BODY)
    with meeting(door, max_body=MAX_BODY) as (_server, talks, one):
        for size in sizes:
            assert one.ask(body_of(size)) == body_of(size)
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
    with meeting(door) as (_server, _, one):
        sending = threading.Thread(target=one.raw, args=(b"".join(map(door.wrap, bodies)),))
        sending.start()
        assert [one.receive() for _ in bodies] == bodies
        sending.join()


def test_replies_go_out_as_they_come() -> None:
    with meeting(TCP) as (_server, _, one):
        one.send(LATE)
        one.send(b"{soon")
        assert [one.receive(), one.receive()] == [b"{soon", LATE]


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
    with meeting(door) as (server, talks, one):
        one.send(CLOSE)
        assert one.receive() == CLOSE
        one.rest()
        assert eventually(lambda: talks.losses == [1])
        assert eventually(lambda: server.connections == 0)


@every_door
def test_a_conversation_may_end_later_without_a_word(door: Door) -> None:
    with meeting(door) as (server, talks, one):
        assert one.ask(b"{fine") == b"{fine"
        server.post(talks.all[0].closes[0])
        if door is not HTTP:
            one.rest()
            one.leave()
        assert eventually(lambda: talks.losses == [1])
        server.post(talks.all[0].closes[0])


def test_after_the_end_of_a_conversation_replies_are_dropped_and_bodies_are_not_handed_to_it() -> None:
    with meeting(TCP) as (server, talks, one):
        one.raw(TCP.wrap(HOLD) + TCP.wrap(CLOSE) + TCP.wrap(b"{more") * 100)
        assert one.receive() == CLOSE
        server.post(lambda: talks.all[0].held[0](b"{too late"))
        assert b"late" not in one.rest()
        assert talks.bodies == [HOLD, CLOSE]


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
        with Client(door, server.addresses[0]) as one:
            one.raw(b"no header" if door is TCP else http_wrap(b"{body", headers))
            one.rest()
        assert eventually(lambda: server.connections == 0)


def test_half_of_a_connection_may_be_closed_by_somebody_who_waits_for_replies_and_is_let_go_after_them() -> (
    None
):
    with serving(TCP) as (server, talks):
        for bodies in ([], [LATE], *([b"{once more"] * count for count in range(1, 20))):
            with Client(TCP, server.addresses[0]) as one:
                assert one.ask(b"{first") == b"{first"
                one.raw(b"".join(map(tcp_wrap, bodies)))
                one.socket.shutdown(socket.SHUT_WR)
                assert one.rest() == b"".join(map(tcp_wrap, bodies))
        assert eventually(lambda: server.connections == 0)
        assert len(talks.bodies) == 21 + 1 + sum(range(1, 20))


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
    with meeting(door) as (_server, _, one):
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
    with meeting(door, max_body=100_000) as (server, talks, one):
        one.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            one.raw(door.wrap(body) * 400)
        time.sleep(0.2)
        handled = len(talks.bodies)
        with Client(door, server.addresses[0]) as two:
            if door is not HTTP:
                assert two.ask(b"{other") == b"{other"
        time.sleep(0.2)
        assert len([one for one in talks.bodies if one != b"{other"]) == handled
        one.socket.settimeout(PATIENCE_S)
        assert all(one.receive() == body for _ in range(handled))


LARGE = 700_000
"""Bytes that no single look takes."""


def test_more_than_one_look_takes_comes_whole_while_others_are_answered() -> None:
    with meeting(TCP) as (server, talks, one), Client(TCP, server.addresses[0]) as other:
        whole = TCP.wrap(b"{" + bytes(LARGE))
        one.raw(whole[:-1])
        for _ in range(20):
            assert other.ask(b"{short") == b"{short"
        one.raw(whole[-1:])
        assert len(one.receive()) == 1 + LARGE
        assert len(talks.all) == 2


def test_peers_that_leave_in_the_same_moment_are_all_seen_off() -> None:
    with serving(TCP) as (server, talks):
        for _ in range(4):
            crowd = [Client(TCP, server.addresses[0]) for _ in range(20)]
            for number, one in enumerate(crowd):
                one.send(HOLD)
                one.reset() if number % 2 else one.leave()
            assert eventually(lambda: server.connections == 0)
        assert eventually(lambda: talks.losses == [1] * 80)
        with Client(TCP, server.addresses[0]) as one:
            assert one.ask(b"{still here") == b"{still here"


def test_replies_that_are_sent_in_part_come_whole_and_in_their_order() -> None:
    with meeting(TCP) as (_server, _, one):
        sent = [b"{%06d" % number + bytes(number % 5 * 100_000) for number in range(100)]
        with ThreadPoolExecutor(1) as others:
            sending = others.submit(one.raw, b"".join(map(tcp_wrap, sent)))
            # Until it is read, the server can send a part of it only.
            time.sleep(0.2)
            assert all(one.receive() == body for body in sent)
            sending.result()


class Mailbox:
    """A client's side: what it posts is received in the serving thread."""

    def __init__(self, transport: Mailboxes) -> None:
        self.transport = transport
        self.replies: queue.Queue[bytes | None] = queue.Queue()
        self.conversation: SessionProtocol | None = None

    def post(self, body: bytes) -> None:
        self.transport.loop.call_soon_threadsafe(self.transport.take, self, body)

    def receive(self) -> bytes | None:
        return self.replies.get(timeout=10)


class Mailboxes(Transport):
    """Carries bodies within one process."""

    def __init__(self) -> None:
        self.boxes: list[Mailbox] = []

    async def start(self, handler: Handler, limits: Limits, access: Access) -> tuple[str, int]:
        self.handler, self.limits = handler, limits
        self.loop = asyncio.get_running_loop()
        return "mailboxes", 0

    async def stop(self) -> None:
        for box in list(self.boxes):
            self.end(box)

    @property
    def connections(self) -> int:
        return len(self.boxes)

    def take(self, box: Mailbox, body: bytes) -> None:
        if box.conversation is None:
            box.conversation = self.handler.open(Peer("mailbox", "here"), None)
            self.boxes.append(box)
        if len(body) > self.limits.max_body:
            box.replies.put(self.handler.refused(f"too_large: a body of {len(body)} bytes"))
            self.end(box)
            return
        try:
            box.conversation.received(body, box.replies.put, lambda: self.end(box))
        except Exception as fault:
            self.faults.add(fault)
            self.end(box)

    def end(self, box: Mailbox) -> None:
        if box in self.boxes and box.conversation is not None:
            self.boxes.remove(box)
            box.replies.put(None)
            box.conversation.lost()


def test_a_transport_of_one_s_own_serves_like_any_other() -> None:
    transport, talks = Mailboxes(), Talks()
    server = Server(talks, [transport], Limits(max_body=100))
    server.start()
    assert server.addresses == [("mailboxes", 0)]
    one, two, three, four = (Mailbox(transport) for _ in range(4))
    one.post(b"{one")
    assert one.receive() == b"{one"
    two.post(CLOSE)
    assert [two.receive(), two.receive()] == [CLOSE, None]
    three.post(RAISE)
    assert three.receive() is None
    assert eventually(lambda: server.faults.count == 1)
    four.post(bytes(101))
    told = four.receive()
    assert told is not None
    assert b"too_large" in told
    assert four.receive() is None
    assert server.connections == 1
    server.stop()
    assert one.receive() is None
    assert talks.losses == [1, 1, 1, 1]


def test_a_transport_of_another_server_is_refused_and_goes_on_serving_it() -> None:
    transport = TcpTransport()
    with pytest.raises(ConfigError, match="this TcpTransport has a server already, expected one for each"):
        Server(Talks(), [twice := TcpTransport(), twice])
    with Server(Talks(), [transport]) as server:
        with pytest.raises(
            ConfigError, match="this TcpTransport has a server already, expected one for each"
        ):
            Server(Talks(), [transport])
        with Client(TCP, server.addresses[0]) as client:
            assert client.ask(b"{in") == b"{in"


def test_middleware_of_the_application_sees_requests() -> None:
    transport = HttpTransport()
    transport.app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost"])
    with Server(Talks(), [transport]) as server:
        address = server.addresses[0]
        with Client(HTTP, address) as peer:
            assert peer.ask(b"{in") == b"{in"
        with Client(HTTP, address) as stranger:
            stranger.raw(b"GET /health HTTP/1.1\r\nHost: lab.example\r\n\r\n")
            assert http_response(stranger.file)[0] == 400
