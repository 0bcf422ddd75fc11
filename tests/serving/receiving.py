"""A server whose sessions are real and whose sampler is the test: what clients played is there to be looked at."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from menv.adapters.episode_broker import EpisodeBroker
from menv.base_env import ExternalTrajectory
from menv.env_context import InputContext
from menv.serving import Access, Limits
from menv.serving.session import SamplerTaskQueue, ServerSessions
from menv.serving.transports.server import Server
from tests.serving.corpus import ACTIONS, MASKED, OBS
from tests.serving.doors import PATIENCE_S, TCP, Client, Door

ALONE = InputContext(observation_space=OBS, action_space=ACTIONS)
TOGETHER = InputContext(
    observation_spaces={"plain": OBS, "masked": MASKED},
    action_spaces={"plain": ACTIONS, "masked": ACTIONS},
    possible_agents=("plain", "masked"),
    multi_agent=True,
)
INLINE = 3_000
"""Bytes that are still read in the serving thread, in the tests where it matters."""


class Receiving:
    """A server and what came in.

    Attributes:
        board: Where the sampler would look.
        sessions: All sessions.
        server: The transports.
    """

    def __init__(self, ioctx: InputContext, doors: tuple[Door, ...], limits: Limits, access: Access) -> None:
        self.board = EpisodeBroker()
        self.sessions = ServerSessions(
            self.board,
            ioctx,
            limits,
            access,
            SamplerTaskQueue(self.board.wake, lambda callback: self.server.post(callback)),
            60,
        )
        self.server = Server(self.sessions, [door.make() for door in doors], limits, access)

    @property
    def parsers(self) -> Any:
        return self.sessions.parsers

    def pid(self) -> int:
        """Return the process that reads large bodies, once there is one."""
        wait_for(lambda: self.parsers.pid is not None)
        return int(self.parsers.pid)

    def client(self, door: Door = TCP) -> Client:
        return Client(door, self.server.addresses[0])

    def played(self) -> list[ExternalTrajectory]:
        """Return all pieces of episodes that have come, in their order."""
        pieces: list[ExternalTrajectory] = []
        # The sampler is given a few at a time.
        while lines := self.board.collect(0.0):
            pieces += [step.chunk for line in lines for step in line.steps if step.chunk is not None]
        return pieces


@contextlib.contextmanager
def receiving(
    ioctx: InputContext = ALONE, *doors: Door, access: Access | None = None, faults: int = 0, **limits: Any
) -> Iterator[Receiving]:
    """Run one; limits are those of `Limits`, with `INLINE` bytes at most read in the serving thread."""
    one = Receiving(ioctx, doors or (TCP,), Limits(**{"inline_body": INLINE, **limits}), access or Access())
    one.server.start()
    try:
        yield one
    finally:
        one.server.stop()
        one.parsers.stop()
    assert one.server.faults.count == faults, one.server.faults.kept


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until something holds, for ten times as long as it may take."""
    end = time.monotonic() + 3 * PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def large(message: dict[str, Any]) -> bytes:
    """Return a message in JSON that is too long for the serving thread."""
    return padded(json.dumps(message).encode())


def padded(body: bytes) -> bytes:
    """Return JSON with so many blanks in front that it is."""
    return b" " * (INLINE + 1) + body


def ask(client: Client, kind: str, **fields: Any) -> Any:
    """Say something short and return the answer."""
    return json.loads(client.ask(json.dumps({"type": kind, **fields}).encode()))
