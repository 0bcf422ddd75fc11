"""A transport of one's own: what the docstring of `Transport` promises is enough to write one."""

from __future__ import annotations

import asyncio
import queue

import pytest

from menv.errors import ConfigError
from menv.serving import Access, Limits
from menv.serving.transports.server import Server
from menv.serving.transports.tcp import TcpTransport
from menv.serving.transports.transport import Handler, Peer, SessionProtocol, Transport
from tests.serving.doors import TCP, Client
from tests.serving.talks import CLOSE, RAISE, Talks, eventually


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
