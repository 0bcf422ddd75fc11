"""A server whose algorithm samples in a thread and keeps every batch, and a wire to it that can be cut."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.envs import RandomMultiAgentEnv
from menv.serving import PolicyClient
from tests.serving.doors import DOORS
from tests.serving.served import Served, served

OBSERVATIONS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
CONFIG: dict[str, Any] = {
    "observation_space": OBSERVATIONS,
    "action_space": gym.spaces.Discrete(2),
    "rollout_fragment_length": 1,
    "train_batch_size": 8,
    "model": {"fcnet_hiddens": [8]},
    "seed": 3,
}


TEAMS: dict[str, Any] = {
    "env": RandomMultiAgentEnv,
    "env_config": {"num_agents": ["red_0", "red_1", "blue_0"], "end_prob": 0.1, "appear_prob": 0.4},
    "observation_space": None,
    "action_space": None,
    "multiagent": {
        "policies": ["red", "blue"],
        "policy_mapping_fn": lambda agent_id, **kwargs: agent_id.partition("_")[0],
    },
}
PAIR: dict[str, Any] = {
    "observation_space": dict.fromkeys("ab", OBSERVATIONS),
    "action_space": dict.fromkeys("ab", gym.spaces.Discrete(2)),
}
every_mode = pytest.mark.parametrize("mode", ["local", "remote"])
every_transport = pytest.mark.parametrize("transport", ["tcp", "http"])


@contextlib.contextmanager
def keeping(
    config: dict[str, Any] | None = None,
    transport: str = "tcp",
    kind: Any = PPO,
    trains: bool = False,
    port: int = 0,
    **settings: Any,
) -> Iterator[Served]:
    """Run a server that keeps what it is given, and does not learn from it unless it `trains`.

    Args:
        config: Changes to `CONFIG`.
        transport: Of the server.
        kind: The algorithm.
        trains: Whether it learns.
        port: Of the server.
        settings: Of the server.
    """
    settings = {"idle_timeout": 0.1, "env_steps_per_sample": 8, **settings}
    doors = tuple(door for door in DOORS if door.name == transport)
    with (
        served(kind, doors=doors, port=port, settings=settings, **{**CONFIG, **(config or {})}) as one,
        one.training() if trains else one.sampling(),
    ):
        yield one


@contextlib.contextmanager
def playing(mode: Any, *config: Any, **settings: Any) -> Iterator[tuple[Served, PolicyClient]]:
    """Run a server that keeps what it is given, and a client of it."""
    with keeping(*config, **settings) as one, one.client(mode) as client:
        yield one, client


class Wire:
    """A port that passes bytes on to another one, and cuts its connections after a few bytes.

    Args:
        port: Where bytes go.
        seed: Of the places where it cuts.
        cuts: How many times; afterwards everything gets through.
        most: Bytes after which it has cut.
    """

    def __init__(self, port: int, seed: int, cuts: int, most: int) -> None:
        self.cuts = 0
        self._to, self._random, self._left, self._most = port, random.Random(seed), cuts, most
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            budget = [self._random.randrange(self._most)] if self._left > 0 else None
            self._left -= 1
            for end in (client, server):
                # Or a body waits 40 ms for the acknowledgement of its headers.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for ends in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=self._pass, args=(*ends, budget)))
                self._threads[-1].start()

    def _pass(self, source: socket.socket, sink: socket.socket, budget: list[int] | None) -> None:
        try:
            while data := source.recv(65536):
                if budget is not None:
                    data, budget[0] = data[: max(0, budget[0])], budget[0] - len(data)
                sink.sendall(data)
                if budget is not None and budget[0] <= 0:
                    self.cuts += 1
                    break
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def both(step: int) -> dict[str, Any]:
    """Return observations of the agents of `PAIR`."""
    return dict.fromkeys("ab", observation(step))


def observation(number: float) -> Any:
    """Return an observation that can be told from others."""
    return np.array([0.0, 0.5, number / 1000.0], np.float32)


def play(
    client: Any, rewards: list[float], episode: str | None = None, see: Callable[[int], Any] = observation
) -> list[Any]:
    """Play an episode with these rewards and return its actions."""
    name, actions = client.start_episode(episode), []
    for number, reward in enumerate(rewards):
        actions.append(client.get_action(name, see(number)))
        client.log_returns(name, reward)
    client.end_episode(name, see(len(rewards)))
    return actions
