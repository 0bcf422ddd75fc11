"""A walk without chance, stepped by the sampler or by its own loop: the same batches are due from both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

DISCRETE = gym.spaces.Discrete(3)
BOX = gym.spaces.Box(np.array([0.0, -1.0], np.float32), np.array([10.0, 3.0], np.float32))
PLAIN = gym.spaces.Box(-1000.0, 1000.0, (2,), np.float32)
MASKED = gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(3), "observation": PLAIN})


class Walk(gym.Env[Any, Any]):
    """Observes its place and its step; each action moves it. Every third episode is truncated.

    Args:
        masked: Whether observations say which of three actions are allowed.
        box: Whether actions are two numbers.
    """

    def __init__(self, *, masked: bool = False, box: bool = False) -> None:
        self.observation_space = MASKED if masked else PLAIN
        self.action_space = BOX if box else DISCRETE
        self.masked = masked
        self.episode = -1
        self.illegal = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episode += 1
        self.at, self.place = 0, 0.0
        return self._observe(), {"began": self.episode}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.masked:
            self.illegal += not self._mask()[int(action)]
        self.at += 1
        self.place += float(np.sum(action)) - 1.0
        over = self.at == 3 + self.episode % 5
        cut = self.episode % 3 == 2
        return self._observe(), self.place / 4, over and not cut, over and cut, {"at": self.at}

    def _mask(self) -> Any:
        mask = np.ones(3, np.int8)
        mask[self.at % 3] = 0
        return mask

    def _observe(self) -> Any:
        seen = np.array([self.place, self.at], np.float32)
        return {"action_mask": self._mask(), "observation": seen} if self.masked else seen


def walk_on(env: Any, walk: Walk, act: Callable[[str, Any], Any] | None = None) -> None:
    """Play one episode after the other through an external environment.

    Args:
        env: The external one.
        walk: The other.
        act: Returns the action for an episode and an observation; None asks `env`.
    """
    while True:
        episode, (seen, info) = env.start_episode(), walk.reset()
        env.log_returns(episode, 0.0, info)
        over = False
        while not over:
            action = (act or env.get_action)(episode, seen)
            seen, reward, terminated, truncated, info = walk.step(action)
            env.log_returns(episode, reward, info)
            over = terminated or truncated
        env.end_episode(episode, seen, truncated=truncated)


def same_columns(first: Any, second: Any) -> None:
    """Check that two batches of one policy are equal, column by column."""
    assert set(first) == set(second)
    assert first.count == second.count > 0
    for name in first:
        one, other = first[name], second[name]
        if name == "infos":
            assert one.tolist() == other.tolist()
        else:
            np.testing.assert_array_equal(one, other, err_msg=name)
            assert one.dtype == other.dtype, name
    for name in ("lengths", "next_obs", "next_mask", "final_missing"):
        np.testing.assert_array_equal(
            getattr(first.segments, name), getattr(second.segments, name), err_msg=name
        )
