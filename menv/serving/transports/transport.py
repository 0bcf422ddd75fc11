"""The seam between what carries bytes and what understands them.

A transport takes whole bodies off its peers and hands each to a conversation, which replies. The server starts
transports; sessions are conversations. Nothing here knows sockets, frames or messages.
"""

from __future__ import annotations

import math
import traceback
from abc import ABC, abstractmethod
from asyncio import Future
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from menv.errors import ConfigError

if TYPE_CHECKING:
    from menv.serving.transports.access import Access


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


class SessionProtocol(Protocol):
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

    def open(self, peer: Peer, token: str | None) -> SessionProtocol:
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

    faults: ErrorLog
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


# SEAM menv.serving.carriers.limits
# How much one peer may ask of a server. Transports and sessions read it; it enforces nothing itself.


_FRAMES_END = 99_999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what peers send, how often, and how long they may take. What breaks one costs its own connection.

    Attributes:
        max_body: Bytes of one body. A longer one is refused before it is read.
        inline_body: Bytes of a body that is read in the serving thread. A longer one is read by a process
            beside it, and others are answered meanwhile; what is neither episode nor observation nor action in
            it may not be longer than this.
        max_large: Bytes of bodies that may wait for that process, those of all peers together. Further ones are
            refused.
        max_depth: Lists and objects within each other in one `info`, which no space bounds.
        max_connections: Peers of one transport at the same time. The next one takes the place of somebody who
            has not said anything yet, or not shown the token, or has said goodbye; where everybody talks it is told so
            and turned away.
        max_rate: Bodies a second of one connection, with a second's worth at once. A faster peer is slowed
            down; nothing of what it sends is lost.
        handshake_s: Seconds until a new connection has sent its first body, and from the first byte of any body
            to its last; over HTTP also from the last request of a client all of whose connections are gone.
        idle_s: Seconds in which nothing comes and nothing goes; also how long a peer may leave its replies
            unread.
        max_unsent: Bytes of replies that may wait for one peer to read them.
        max_agents: Agents of one episode.
        max_episodes: Open episodes of one connection.
        max_open_episodes: Open episodes of all clients together. While there are so many, further ones are refused.
        max_waiting: Bytes of episodes and observations of one client that nobody has sampled yet, and a quarter
            of those of all clients together. While there are more, further ones are refused.

    Raises:
        ConfigError: A bound is no positive number of its kind.
    """

    max_body: int = 4_000_000
    inline_body: int = 32_000
    max_large: int = 256_000_000
    max_depth: int = 32
    max_connections: int = 256
    max_rate: float = 100_000
    handshake_s: float = 30.0
    idle_s: float = 600.0
    max_unsent: int = 64_000_000
    max_agents: int = 1_000
    max_episodes: int = 10_000
    max_open_episodes: int = 65_536
    max_waiting: int = 64_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.type == "int"
            number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise ConfigError(
                    f"Limits.{field.name}: got {value!r}, expected a {'whole ' * whole}number above 0; "
                    f"leave it out for {field.default!r}"
                )
        if self.max_body > _FRAMES_END:
            raise ConfigError(
                f"Limits.max_body: got {self.max_body}, expected at most {_FRAMES_END}, which is what eight digits "
                "can say; have clients send episodes in chunks"
            )


# SEAM menv.serving.carriers.bucket
# How fast one connection may go: so many a second, with a second's worth at once.


class TokenBucket:
    """Tells when the next one may pass. Clocks are the caller's.

    Args:
        rate: How many a second.
    """

    __slots__ = ("_booked", "_each", "_span")

    def __init__(self, rate: float) -> None:
        self._each = 1.0 / rate
        self._span = max(1.0, self._each)
        self._booked = 0.0

    def wait(self, now: float) -> float:
        """Let one pass if it may, and return 0; otherwise return in how many seconds it may.

        Args:
            now: Seconds of any clock that only goes forward.
        """
        if self._booked < now:
            # Nearly always nothing is used up.
            self._booked = now + self._each
            return 0.0
        # `_booked` is the time up to which the rate is used up: every one moves it on by its share.
        ahead = self._booked - now - self._span
        if ahead > -self._each / 2:
            return ahead + self._each
        self._booked += self._each
        return 0.0


# SEAM menv.serving.carriers.faults
# Exceptions of ours that cost a peer its connection: counted, and the last few kept to be looked at.


_KEPT = 10


class ErrorLog:
    """What went wrong on our side. Written in the serving thread, read from any."""

    def __init__(self) -> None:
        self.count = 0
        """How many there were."""
        self._kept: deque[BaseException] = deque(maxlen=_KEPT)

    @property
    def kept(self) -> list[BaseException]:
        """The last ten exceptions, oldest first, with their tracebacks."""
        return list(self._kept)

    def add(self, error: BaseException) -> None:
        """Note one."""
        # The frames' variables hold connections and whole bodies, which must not live on here.
        traceback.clear_frames(error.__traceback__)
        self.count += 1
        self._kept.append(error)
