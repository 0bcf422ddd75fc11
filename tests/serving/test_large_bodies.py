"""Large bodies: their order, who waits for them, and what is refused before they are read."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from menv.adapters.episode_broker import EpisodeBroker
from menv.base_env import ExternalTrajectory
from menv.env_context import InputContext
from menv.serving import Access, Limits
from menv.serving.session import ServerSessions
from menv.serving.transports.server import Server
from tests.serving.corpus import ACTIONS, OBS
from tests.serving.doors import TCP, Client, Door

ALONE = InputContext(observation_space=OBS, action_space=ACTIONS)
PING, PONG = b'{"type": "PING"}', b'{"type":"PONG"}'


class Receiving:
    """A server whose sampler is the test."""

    def __init__(self, ioctx: InputContext, door: Door, access: Access) -> None:
        self._door, limits = door, Limits()
        self._broker = EpisodeBroker()
        sessions = ServerSessions(self._broker, ioctx, limits, access, self._post, 60)
        self.server = Server(sessions, [door.make()], limits, access)

    def _post(self, callback: Any) -> None:
        self.server.post(callback)

    def client(self) -> Client:
        return Client(self._door, self.server.addresses[0])

    def steps(self) -> list[int]:
        """Return the lengths of the episodes that have come, in their order."""
        chunks: list[ExternalTrajectory] = []
        # The sampler is given a few at a time.
        while channels := self._broker.collect(0.0):
            chunks += [step.chunk for one in channels for step in one.steps if step.chunk is not None]
        return [chunk.env_steps for chunk in chunks]

    @contextlib.contextmanager
    def held_up(self) -> Iterator[None]:
        """Keep the serving thread busy."""
        ready = threading.Event()
        self.server.post(ready.wait)
        try:
            yield
        finally:
            time.sleep(0.1)
            ready.set()


@contextlib.contextmanager
def receiving(
    ioctx: InputContext = ALONE, door: Door = TCP, access: Access | None = None
) -> Iterator[Receiving]:
    one = Receiving(ioctx, door, access or Access())
    one.server.start()
    try:
        yield one
    finally:
        one.server.stop()
    assert one.server.faults.count == 0, one.server.faults.kept


def episodes(steps: int, size: int = 0) -> bytes:
    """Return EPISODES with one episode, of at least `size` bytes."""
    rng = np.random.default_rng(steps)
    episode = {
        "obs": rng.uniform(-10, 10, (steps + 1, 4)).tolist(), "actions": rng.integers(0, 2, steps).tolist(),
        "rewards": rng.normal(size=steps).tolist(), "is_terminated": True, "is_truncated": False,
    }  # fmt: skip
    return json.dumps({"type": "EPISODES", "episodes": [episode]}).encode().rjust(size)


def test_a_peer_without_the_token_has_no_large_body_read() -> None:
    with receiving(access=Access(token="a token")) as one:
        with one.client() as stranger:
            assert json.loads(stranger.ask(episodes(5, 50_000)))["code"] == "not_allowed"
            assert stranger.rest() == b""
        with one.client() as friend:
            assert b"SET_CONFIG" in friend.ask(b'{"type": "GET_CONFIG", "token": "a token"}')
            friend.send(episodes(5, 50_000))
            assert friend.ask(PING) == PONG
            assert one.steps() == [5]


def test_a_short_message_is_handled_between_the_large_ones_of_other_clients() -> None:
    with receiving() as one:
        crowd = [one.client() for _ in range(9)]
        for client in crowd:
            assert client.ask(PING) == PONG
        # The short one is the last that comes.
        with one.held_up():
            for client in crowd[:8]:
                client.send(episodes(8_000, 900_000))
                time.sleep(0.01)
            crowd[8].send(episodes(1))
        for client in crowd:
            assert client.ask(PING) == PONG
            client.leave()
        steps = one.steps()
        assert sorted(steps) == [1, *[8_000] * 8]
        assert steps.index(1) < 4
