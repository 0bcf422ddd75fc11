"""Environments that live other lives depending on where they are put, each for a reason of its own."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv import MultiAgentEnv

NAMES = tuple(f"name{number}" for number in range(12))
Seen = npt.NDArray[np.float32]


class Walk(gym.Env[Any, Any]):
    """Ten steps along a line; `disturbance` is what the subclasses add to what is seen."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, config: Any = None) -> None:
        self.place = self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Seen, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(5)), 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        self.place += int(action) - 1
        self.steps += 1
        return self.seen(), float(self.place), self.steps == 10, False, {}

    def seen(self) -> Seen:
        return np.array([self.place, self.steps, self.disturbance()], np.float32)

    def disturbance(self) -> float:
        return 0.0


class Global(Walk):
    """Draws from the generator of `random` in its fourth step."""

    def disturbance(self) -> float:
        return random.random() if self.steps == 4 else 0.0


class GlobalNumpy(Walk):
    """Seeds numpy's global generator when it is reset and draws from it, as do the others meanwhile."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Seen, dict[str, Any]]:
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
        return float(hash(NAMES[self.steps]) % 1_000_003)


class Ordered(Walk):
    """Uses the order of a set of strings."""

    def disturbance(self) -> float:
        return float(NAMES.index(list(set(NAMES))[self.steps]))


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

    def step(self, action: Any) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        seen, _, over, cut, infos = super().step(action)
        return seen, float(self.number), over, cut, infos


class Pair(MultiAgentEnv):
    """Two agents walk; "b" draws from numpy's global generator in step 3, and "a" sees what it got."""

    observation_space = Walk.observation_space
    action_space = Walk.action_space

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.possible_agents = ["a", "b"]
        self.steps = 0
        self.drawn = 0.0

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[dict[str, Seen], dict[str, Any]]:
        self.steps, self.drawn = 0, 0.0
        return self.seen(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.steps += 1
        if self.steps == 3:
            self.drawn = float(np.random.random())
        over = self.steps == 8
        rewards = {agent: float(action) for agent, action in actions.items()}
        return self.seen(), rewards, {"__all__": over}, {"__all__": False}, {}

    def seen(self) -> dict[str, Seen]:
        return {
            "a": np.array([self.steps, 0, self.drawn], np.float32), "b": np.array([self.steps, 1, 0], np.float32)
        }  # fmt: skip
