"""Algorithms that learn from clients, small enough for tests, and the thread that samples while clients play."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from menv.adapters.external import ExternalEnvs
from menv.algorithms import DQN, PPO
from menv.algorithms.algorithm import Algorithm
from menv.sample_batch import SampleBatch
from menv.serving import PolicyClient, PolicyServerInput
from menv.serving.transports.server import Transport
from tests.inside import metrics, sampler
from tests.serving.doors import HTTP, PATIENCE_S, TCP, Door
from tests.serving.talks import eventually
from tests.serving.voices import Voice, episode

OBS: Any = gym.spaces.Box(-10.0, 10.0, (3,), np.float32)
ACTIONS: Any = gym.spaces.Discrete(2)
TINY: dict[str, Any] = {
    "seed": 0,
    "train_batch_size": 32,
    "sgd_minibatch_size": 16,
    "num_sgd_iter": 1,
    "model": {"fcnet_hiddens": [8]},
    "observation_space": OBS,
    "action_space": ACTIONS,
}
IDLE_S = 0.05
AGENTS = {"ann": gym.spaces.Box(-1, 1, (2,), np.float32), "bob": gym.spaces.Box(-1, 1, (3,), np.float32)}
TWO: dict[str, Any] = {
    "observation_space": AGENTS,
    "action_space": dict.fromkeys(AGENTS, gym.spaces.Discrete(3)),
    "multiagent": {
        "policies": {"for_ann", "for_bob"},
        "policy_mapping_fn": lambda agent_id, episode, worker, **_: f"for_{agent_id}",
    },
}
MASKED: dict[str, Any] = {
    "observation_space": gym.spaces.Dict(
        {"action_mask": gym.spaces.MultiBinary(3), "at": gym.spaces.Box(-1, 1, (2,), np.float32)}
    ),
    "action_space": gym.spaces.Discrete(3),
}


def obs_of(number: float) -> list[float]:
    """Return an observation that tells which one it is."""
    return [number % 10, -number % 7, 0.5]


def played(steps: int, end: str = "terminated", **more: Any) -> dict[str, Any]:
    """Return an episode, or without an `end` the beginning of one, in which each step earns 1."""
    rows = [obs_of(step) for step in range(steps + 1)]
    return dict(episode(rows, [0] * steps, [1.0] * steps, end, **more))


class _HaltError(Exception):
    """Ends a thread that samples."""


class Served:
    """An algorithm with a server for both transports.

    Attributes:
        algo: The algorithm.
        envs: Its input, the server.
        doors: Ways in; `port` and `address` are those of the first one.
        batches: Fragments that the thread has sampled, in order.
        results: What the thread's `train()` returned.
    """

    def __init__(self, algo: Any, envs: Any, doors: Sequence[Door]) -> None:
        self.algo, self.envs, self.doors = algo, envs, doors
        self.port: int = envs.addresses[0][1]
        self.address = f"{doors[0].name}://127.0.0.1:{self.port}"
        self.batches: list[Any] = []
        self.results: list[Mapping[str, Any]] = []
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def voice(self, door: Door = TCP, **settings: Any) -> Voice:
        """Return a client that is connected through a door."""
        return Voice(door, self.envs.addresses[self.doors.index(door)], **settings)

    def client(self, mode: Any = "local", **settings: Any) -> PolicyClient:
        """Return a policy client; it fetches weights when it is told to."""
        return PolicyClient(self.address, mode, **{"update_interval": None, "timeout": 20, **settings})

    def summary(self) -> Any:
        """Return what the algorithm knows of its episodes."""
        return metrics(self.algo).summary()

    def sample(self, steps: int | None = None) -> dict[str, SampleBatch]:
        """Sample here until nothing comes any more, or for some rows; return the batch of each policy."""
        found: dict[str, list[SampleBatch]] = {}
        count, end = 0, time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < end, f"{count} rows have come"
            batch = self.algo.sample()
            for name in batch:
                found.setdefault(name, []).append(batch[name])
                count += len(batch[name]["obs"])
            if sampler(self.algo).idle if steps is None else count >= steps:
                return {name: SampleBatch.concat_samples(parts) for name, parts in found.items()}

    @contextlib.contextmanager
    def sampling(self) -> Iterator[Served]:
        """Sample in a thread; the fragments are in `batches` when it is over."""
        with self._in_a_thread(lambda: self.batches.append(self.algo.sample())):
            yield self

    @contextlib.contextmanager
    def training(self) -> Iterator[Served]:
        """Train in a thread."""
        with self._in_a_thread(lambda: self.results.append(self.algo.train())):
            yield self

    def halt(self) -> None:
        """Let the thread end, and pass on what it raised."""
        self._stopping.set()
        if self._thread is not None:
            patience = self.envs.idle_timeout
            self._thread.join(3.0 if patience is not None and patience < 3.0 else 0.1)
            if self._thread.is_alive():
                # It waits for callers, for longer than a test may take.
                self.envs.broker.fail(_HaltError())
                self.envs.broker.wake()
            self._thread.join(6 * PATIENCE_S)
            assert not self._thread.is_alive(), "the sampler hangs"
        if self.error is not None and not isinstance(self.error, _HaltError):
            raise self.error

    @property
    def status(self) -> Any:
        return self.envs.status()

    @property
    def refused(self) -> int:
        return int(self.status["messages_refused"])

    def paid(self) -> float:
        """Return everything that is accounted for: in batches, held, and unclaimed. Ends the fragment that is open."""
        here = sampler(self.algo)
        if here._fragment_start is not None:
            here._fragment_start = None
            self.batches.append(here._close(0))
        in_batches = sum(
            float(np.sum(batch[name]["rewards"], dtype=np.float64))
            for batch in self.batches
            for name in batch
        )
        unclaimed = metrics(self.algo).unclaimed_rewards + sum(
            episode.unclaimed_rewards for episode in here._tracker.running.values()
        )
        return float(in_batches + here.held_rewards() + unclaimed)

    def column(self, name: str, policy: str = "default_policy") -> Any:
        """Return a column of all fragments that the thread has sampled."""
        found = [batch[policy][name] for batch in list(self.batches) if policy in batch]
        return np.concatenate(found) if found else np.zeros(0)

    def has_rewards(self, paid: list[float], policy: str = "default_policy") -> bool:
        """Wait for rewards; return whether exactly these came."""
        eventually(lambda: len(self.column("rewards", policy)) >= len(paid))
        return sorted(self.column("rewards", policy).tolist()) == sorted(paid)

    @contextlib.contextmanager
    def _in_a_thread(self, do: Callable[[], object]) -> Iterator[None]:
        def run() -> None:
            try:
                while not self._stopping.is_set():
                    do()
            except BaseException as error:
                self.error = error

        self._stopping.clear()
        self._thread = threading.Thread(target=run, name="the sampler", daemon=True)
        self._thread.start()
        try:
            yield
        finally:
            self.halt()


@contextlib.contextmanager
def served(
    algorithm: type[Algorithm] = PPO,
    kind: Callable[..., ExternalEnvs] = PolicyServerInput,
    doors: tuple[Door, ...] = (TCP, HTTP),
    port: int = 0,
    settings: dict[str, Any] | None = None,
    **config: Any,
) -> Iterator[Served]:
    """Run an algorithm whose clients come through any door.

    Args:
        algorithm: Its class.
        kind: Of the input.
        doors: Ways in.
        port: Of the first one; 0 takes a free one.
        settings: Of the input.
        config: Of the algorithm, instead of what `TINY` says.
    """
    made: list[ExternalEnvs] = []

    def source(ioctx: Any) -> ExternalEnvs:
        transports: list[Transport] = [doors[0].make(port), *(door.make() for door in doors[1:])]
        made.append(kind(ioctx, port=0, transport=transports, **{"idle_timeout": IDLE_S, **(settings or {})}))
        return made[0]

    options = dict(TINY)
    if algorithm is DQN:
        del options["sgd_minibatch_size"], options["num_sgd_iter"]
    algo = algorithm(config={**options, **config, "input": source})
    one = Served(algo, made[0], doors)
    try:
        yield one
    finally:
        algo.stop()
    faults = one.envs.server.faults
    assert faults.count == 0, traceback.format_exception(faults.kept[-1])


def settled(one: Served, episodes: int = 0) -> bool:
    """Wait until so many episodes are open, and nothing that was said of others waits for the sampler."""
    backlog = one.envs.sessions.backlog
    return eventually(lambda: one.status["open_episodes"] == episodes and not backlog.waiting)


def all_taken(one: Served, voice: Voice) -> bool:
    """Wait until nothing that a client said waits, and no episode is open."""
    voice.ping()
    return settled(one)
