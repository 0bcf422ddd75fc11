"""Conversations for tests of transports: they echo, and do what a body asks for; and servers that hold them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from menv.serving import Access, Limits
from menv.serving.transports import http, tcp
from menv.serving.transports.server import Peer, Reply
from menv.serving.transports.server import Server as Server
from tests.serving.doors import PATIENCE_S, Client, Door

CLOSE, RAISE, HOLD, LATE, FLOOD = b"{close", b"{raise", b"{hold", b"{late", b"{flood"
FLOOD_BYTES = 1_000_000
LINGER_S = 0.3
"""How long servers of these tests let a peer read after a goodbye; the others of a test wait for it."""


class Talk:
    """Replies to each body with itself, except to those that begin with a word of the list above."""

    def __init__(self, house: Talks, peer: Peer, token: str | None) -> None:
        self.house = house
        self.peer = peer
        self.token = token
        self.admitted = True
        self.bodies: list[bytes] = []
        self.held: list[Reply] = []
        self.losses = 0

    def received(self, body: bytes, reply: Reply, close: Callable[[], None]) -> None:
        assert threading.current_thread().name == "menv-serving"
        assert self.losses == 0
        self.bodies.append(body)
        if body.startswith(RAISE):
            raise ZeroDivisionError("a fault of ours")
        if body.startswith(HOLD):
            self.held.append(reply)
        elif body.startswith(LATE):
            self.house.late(lambda: reply(body))
        elif body.startswith(FLOOD):
            reply(b"{" + bytes(FLOOD_BYTES))
        else:
            reply(body)
        if body.startswith(CLOSE):
            close()

    def lost(self) -> None:
        assert threading.current_thread().name == "menv-serving"
        self.losses += 1


class Talks:
    """All conversations of a server."""

    def __init__(self) -> None:
        self.all: list[Talk] = []
        self.late: Callable[[Callable[[], None]], None] = lambda _: None

    def open(self, peer: Peer, token: str | None) -> Talk:
        self.all.append(Talk(self, peer, token))
        return self.all[-1]

    def metrics(self) -> str:
        return ""

    def refused(self, why: str) -> bytes:
        return b'{"type": "ERROR", "message": "%b"}' % why.encode()

    @property
    def bodies(self) -> list[bytes]:
        return [body for talk in self.all for body in talk.bodies]

    @property
    def losses(self) -> list[int]:
        return [talk.losses for talk in self.all]


@contextlib.contextmanager
def serving(
    *doors: Door, limits: Limits | None = None, access: Access | None = None, faults: int = 0
) -> Iterator[tuple[Server, Talks]]:
    """Run a server with a port for each door; it must have had that many faults, and nothing may be logged."""
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[assignment, method-assign]
    logging.getLogger().addHandler(handler)
    talks = Talks()
    server = Server(talks, [door.make() for door in doors], limits, access)
    talks.late = lambda callback: threading.Timer(0.01, server.post, (callback,)).start()
    with patch.object(tcp, "LINGER_S", LINGER_S), patch.object(http, "LINGER_S", LINGER_S):
        server.start()
        try:
            yield server, talks
        finally:
            server.stop()
            logging.getLogger().removeHandler(handler)
    assert [record.getMessage() for record in logged if not record.name.startswith("uvicorn")] == []
    assert (server.faults.count, server.connections) == (faults, 0), server.faults.kept
    assert talks.losses == [1] * len(talks.all)


@contextlib.contextmanager
def meeting(
    door: Door, access: Access | None = None, faults: int = 0, **limits: Any
) -> Iterator[tuple[Server, Talks, Client]]:
    """Run a server with one port and such limits, and a client of it."""
    with (
        serving(door, limits=Limits(**limits), access=access, faults=faults) as (server, talks),
        Client(door, server.addresses[0]) as one,
    ):
        yield server, talks, one


def eventually(condition: Callable[[], object]) -> bool:
    """Wait until `condition` holds, for ten times as long as it may take; return whether it did."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True
