"""Algorithms with workers, and environments that misbehave, for the tests of this folder.

Workers import this module by its name, as they would a module beside a user's script.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from menv.algorithms import PPO
from menv.workers import watchdog
from tests.engines.homes import leave
from tests.worlds import Alone

PLAYERS = {
    "policies": ["player1", "player2"],
    "policy_mapping_fn": lambda agent_id, *args, **kwargs: agent_id,
}
ROADS = {
    "policies": ["car", "light"],
    "policy_mapping_fn": lambda agent_id, *args, **kwargs: "car" if agent_id.startswith("car") else "light",
}


@contextmanager
def running(num_workers: int, kind: Any = PPO, **settings: Any) -> Iterator[Any]:
    """Yield an algorithm over workers that are processes, with small batches."""
    config = {
        "env": "CartPole-v1", "engine": "process", "num_workers": num_workers, "num_envs_per_worker": 2,
        "train_batch_size": 128, "seed": 3, "model": {"fcnet_hiddens": [8]}, **settings,
    }  # fmt: skip
    if kind is PPO:
        config = {"sgd_minibatch_size": 64, "num_sgd_iter": 2, **config}
    algo = kind(config=config)
    try:
        yield algo
    finally:
        algo.stop()


def weights_of(algo: Any) -> dict[str, dict[str, Any]]:
    return {name: dict(own) for name, own in algo.get_weights().items()}


def same(one: Mapping[str, Mapping[str, Any]], other: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether two sets of weights are equal to the last bit."""
    return one.keys() == other.keys() and all(
        np.array_equal(one[name][key], other[name][key]) for name in one for key in one[name]
    )


class Counting(Alone):
    """Episodes of `length` steps, each paying 1; what it does in a step may be something else once."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, config: Any) -> None:
        super().__init__(config, config.get("length", 5))

    def see(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def pay(self, action: Any) -> float:
        self.act()
        return 1.0

    def act(self) -> None:
        """Do what an environment should not."""

    def once(self) -> bool:
        """Return True the first time that anybody asks, in whatever process."""
        try:
            Path(self.config["flag"]).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Hanging(Counting):
    """Does not return from one step; `deaf` never lets go of the interpreter either."""

    def act(self) -> None:
        if self.at == 3 and self.config.worker_index == 2 and (self.config.get("always") or self.once()):
            self.hang(self.config.get("depth", 0))

    def hang(self, depth: int) -> None:
        """Do not return, some frames further in."""
        if depth:
            self.hang(depth - 1)
        if self.config.get("deaf"):
            # One call into C that takes for ever and holds the interpreter's lock.
            sum(range(10**12))
        while True:
            time.sleep(60)


class Dying(Counting):
    """Ends its process in one step, as a fault in C does."""

    def act(self) -> None:
        if self.at == 3 and self.config.worker_index == 2 and (self.config.get("always") or self.once()):
            sys.stderr.write("the simulator has no licence\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGSEGV)


class Raising(Counting):
    """Raises in one step."""

    def act(self) -> None:
        if self.at == 3 and self.once():
            raise ZeroDivisionError("no wheels")


class Freezing(Counting):
    """Stops its process once, as someone else may with a signal."""

    def act(self) -> None:
        if self.at == 3 and self.config.worker_index < 2 and self.once():
            os.kill(os.getpid(), signal.SIGSTOP)


class Slow(Counting):
    """Takes its time in each step."""

    def act(self) -> None:
        time.sleep(0.005)


class Away(Counting):
    """Ends its process in each step while there is a file `away`, or raises."""

    def act(self) -> None:
        if Path(self.config["away"]).exists():
            if self.config["raises"]:
                raise ConnectionError("no server")
            leave(5)


class Broken(Counting):
    """Cannot be created in a worker unless there is a file `map`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.worker_index and not Path(config.get("map", "nowhere")).exists():
            raise OSError("the map is missing")


class Missed(Counting):
    """Ends its process once; in its place it cannot be there for as many times as `absent` says, nor be reset."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config["where"] == "create":
            self._absent()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.config["where"] == "reset":
            self._absent()
        return super().reset(seed=seed)

    def act(self) -> None:
        if self.at == 3 and self.config.worker_index and self.once():
            leave(3)

    def _absent(self) -> None:
        if self.config.recreated_worker:
            tries = Path(f"{self.config['flag']}_tries")
            with tries.open("a") as file:
                file.write("x")
            if tries.stat().st_size <= self.config["absent"]:
                raise ConnectionRefusedError("the simulator has no seat free")


class Telling(Counting):
    """Observes where it lives."""

    observation_space = gym.spaces.Box(-1, 100, (4,), np.float32)

    def see(self) -> Any:
        place = self.config
        told = [place.worker_index, place.vector_index, place.num_workers, place.recreated_worker]
        return np.array(told, np.float32)


class Stuck(Counting):
    """Is never there in worker 2; with a `flag` it ends its process first, and the one in its place is not there."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.worker_index == 2 and self._hangs():
            time.sleep(600)

    def act(self) -> None:
        if "flag" in self.config and self.config.worker_index == 2 and self.at == 3 and self.once():
            leave(3)

    def _hangs(self) -> bool:
        if "flag" not in self.config:
            return True
        again = Path(f"{self.config['flag']}_again")
        if again.exists() or not Path(self.config["flag"]).exists():
            return False
        again.touch()
        return True


class Torn(Counting):
    """Crashes in worker 2 before it is there, as a fault in C does, where Python writes down where it stood."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.worker_index == 2:
            faulthandler.enable(file=2)
            os.abort()


class Hasty:
    """Lets environments be there sooner in each process that it comes to."""

    def __reduce__(self) -> Any:
        return _hasten, ()


def _hasten() -> Hasty:
    watchdog.CREATION_S = 1.5
    return Hasty()
