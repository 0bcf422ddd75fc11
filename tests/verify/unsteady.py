"""Environments that live other lives depending on where they are put, each for a reason of its own."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from tests.worlds import Alone, Several

NAMES = tuple(f"name{number}" for number in range(12))


class Walk(Alone):
    """Ten steps along a line; `disturbance` is what the subclasses add to what is seen."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)
    length = 10

    def pay(self, action: Any) -> float:
        self.place += int(action) - 1
        return float(self.place)

    def see(self) -> Any:
        if not self.at:
            self.place = int(self.np_random.integers(5))
        return np.array([self.place, self.at, self.disturbance()], np.float32)

    def disturbance(self) -> float:
        return 0.0


class Global(Walk):
    """Draws from the generator of `random` in its fourth step."""

    def disturbance(self) -> float:
        return random.random() if self.at == 4 else 0.0


class GlobalNumpy(Walk):
    """Seeds numpy's global generator when it is reset and draws from it, as do the others meanwhile."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        np.random.seed(seed)
        return super().reset(seed=seed, options=options)

    def disturbance(self) -> float:
        return float(np.random.random())


class Crowd(Walk):
    """Sees how many of its class are open."""

    open_ones: ClassVar[int] = 0

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        Crowd.open_ones += 1

    def close(self) -> None:
        Crowd.open_ones -= 1

    def disturbance(self) -> float:
        return float(Crowd.open_ones)


class Hashed(Walk):
    """Uses what a string hashes to."""

    def disturbance(self) -> float:
        return float(hash(NAMES[self.at]) % 1_000_003)


class Ordered(Walk):
    """Uses the order of a set of strings."""

    def disturbance(self) -> float:
        return float(NAMES.index(list(set(NAMES))[self.at]))


class Timed(Walk):
    """Sees the time."""

    def disturbance(self) -> float:
        return float(time.perf_counter_ns() % 1_000_000)


class Placed(Walk):
    """Looks at where it was put."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.where = 0 if config is None else config.vector_index

    def disturbance(self) -> float:
        return float(self.where)


class Numbered(Walk):
    """Pays more in every environment that is made."""

    numbers: ClassVar[Any] = itertools.count()

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.number = next(Numbered.numbers)

    def pay(self, action: Any) -> float:
        super().pay(action)
        return float(self.number)


class Pair(Several):
    """Two agents walk; "b" draws from numpy's global generator in step 3, and "a" sees what it got."""

    observation_space = Walk.observation_space
    action_space = Walk.action_space
    length = 8

    def pay(self, actions: Any) -> Any:
        if self.at == 3:
            self.drawn = float(np.random.random())
        return {agent: float(action) for agent, action in actions.items()}

    def see(self, agent: Any) -> Any:
        drawn = self.drawn if agent == "a" and self.at >= 3 else 0.0
        return np.array([self.at, agent == "b", drawn], np.float32)
