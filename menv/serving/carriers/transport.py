"""The seam between what carries bytes and what understands them.

A transport takes whole bodies off its peers and hands each to a conversation, which replies. The server starts
transports; sessions are conversations. Nothing here knows sockets, frames or messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from menv.serving.carriers.access import Access
    from menv.serving.carriers.faults import Faults
    from menv.serving.carriers.limits import Limits

Reply = Callable[[bytes], None]
"""Hands one body back to the peer. To be called in the loop's thread, at once or later, at most once for each body
that was received. Later than the end of the connection it does nothing."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, for reports; nothing about it is trusted.

    Attributes:
        transport: "tcp", "http", "websocket", or the name of a transport of one's own.
        address: Such as "127.0.0.1:51234".
    """

    transport: str
    address: str

    @classmethod
    def at(cls, transport: str, name: tuple[Any, ...] | None) -> Peer:
        """Return the peer of a socket, whose `getpeername()` is `name`; None if it is gone already."""
        host, port = ("unknown", 0) if name is None else name[:2]
        return cls(transport, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


class Conversation(Protocol):
    """One peer's side of the talk. Every method is called in the loop's thread, and none may block.

    Attributes:
        admitted: Whether the peer has shown the token, or there is none; others take the places of those who have not.
    """

    admitted: bool

    def received(self, body: bytes, reply: Reply, close: Callable[[], None]) -> Future[None] | None:
        """Take one whole body, without any frame around it.

        Bad input is answered, never raised: what this raises is a fault of ours and costs the connection. Over
        HTTP (`Peer.transport` tells) every body needs a reply, because every request has a response; elsewhere a
        body may stay without.

        Args:
            body: What came.
            reply: For this body.
            close: Ends the connection once everything that was replied has been sent.

        Returns:
            None, mostly. Where a body takes longer, a future that is done when the next one can be taken; one that is
            handed over before waits, and a transport that reads no more until then keeps memory bounded.
        """

    def lost(self) -> None:
        """The connection is gone, whoever ended it. Called exactly once, after which nothing more is received."""


class Handler(Protocol):
    """Starts conversations; a server has one."""

    def open(self, peer: Peer, token: str | None) -> Conversation:
        """Return the conversation with a peer that was let in.

        Over HTTP there is one for each value of the header `menv-session`, over as many connections as the client
        likes, and one for each request without that header.

        Args:
            peer: Who it is.
            token: What the peer showed in an `Authorization` header, already found right; None if it has shown
                nothing yet.
        """

    def refused(self, why: str) -> bytes:
        """Return the body of an ERROR for something that the transport itself refuses.

        Args:
            why: "code: sentence", such as "too_large: a body of 9 bytes, expected at most 8".
        """


class Transport(ABC):
    """Carries bodies between peers and conversations, over whatever it likes.

    To write one, for shared memory for instance: `start` gets ready to be found by peers and returns at once;
    whatever waits for peers afterwards is a task, or a reader of the running loop
    (`asyncio.get_running_loop().add_reader` on an eventfd or a pipe through which a peer says that something lies
    in the ring). For every new peer call `handler.open(peer, None)` once; for every whole body that it wrote call
    `conversation.received(body, reply, close)` in the loop's thread, with a `reply` that writes one body into the
    ring that leads back; call `conversation.lost()` once when the peer has gone. Copy a body out of the ring before
    handing it over: conversations keep it. A transport also

    - checks what comes against `limits` before it holds it in memory, and tells a peer whom it turns away
      why: `handler.refused("too_large: ...")` is the body for that;
    - reads no more from a peer who does not read its replies, and never waits for one peer while others have
      something to say;
    - passes what a conversation raises to `faults.add`, ends that connection, and goes on.

    One object serves one server, once.
    """

    faults: Faults
    """Where exceptions of conversations go; the server sets it before it calls `start`."""

    @abstractmethod
    async def start(self, handler: Handler, limits: Limits, access: Access) -> tuple[str, int]:
        """Begin to take peers in; called once, in the loop's thread.

        Returns:
            Where peers find it: host and port; for what has no port, a name and 0.

        Raises:
            ConfigError: It cannot, and the settings have to change.
        """

    def look(self) -> None:  # noqa: B027 - optional
        """Take in what has come; called while the server waits a little for others, where going round the loop is slow.

        What nobody looks at here is found by the loop.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End all connections and free everything, in less than a second. Called also if `start` has failed."""

    @property
    @abstractmethod
    def connections(self) -> int:
        """How many peers are connected now. May be read from any thread."""
