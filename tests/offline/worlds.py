"""Environments for recordings: agents come and go, with rewards at any time."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from menv import MultiAgentEnv
from tests.worlds import Several

SPACES = {
    "a": (gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(3, start=1)),
    "b": (
        gym.spaces.Dict({"x": gym.spaces.Box(0, 255, (2, 2), np.uint8), "y": gym.spaces.Discrete(4)}),
        gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Box(-np.inf, np.inf, (1,), np.float64))),
    ),
    "c": (gym.spaces.MultiBinary(3), gym.spaces.MultiDiscrete([2, 3])),
}


class Comings(MultiAgentEnv):
    """Agents appear, pause, die and return at random; any of them may be rewarded in any step."""

    def __init__(self, context: Any = None) -> None:
        self.possible_agents = list(SPACES)
        self.observation_spaces = {agent: pair[0] for agent, pair in SPACES.items()}
        self.action_spaces = {agent: pair[1] for agent, pair in SPACES.items()}
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.rng = np.random.default_rng(seed)
        self.steps, self.alive = 0, {"a"}
        return {"a": self._obs("a")}, {}

    def _obs(self, agent: str) -> Any:
        space = SPACES[agent][0]
        space.seed(int(self.rng.integers(1 << 30)))
        return space.sample()

    def step(self, action_dict: Any) -> Any:
        rng, agents = self.rng, list(SPACES)
        self.steps += 1
        terminateds: dict[str, bool] = {}
        truncateds: dict[str, bool] = {}
        for agent in agents:
            if agent in self.alive and rng.random() < 0.2:
                (terminateds if rng.random() < 0.5 else truncateds)[agent] = True
                self.alive.discard(agent)
            elif agent not in self.alive and rng.random() < 0.4:
                self.alive.add(agent)
        ended = terminateds.keys() | truncateds.keys()
        seen = [
            one
            for one in agents
            if (one in self.alive and rng.random() < 0.7) or (one in ended and rng.random() < 0.5)
        ]
        obs = {agent: self._obs(agent) for agent in seen}
        rewards = {agent: float(rng.integers(1, 9)) for agent in agents if rng.random() < 0.6}
        over = self.steps >= 12
        return obs, rewards, {**terminateds, "__all__": over}, {**truncateds, "__all__": False}, {}


def seen_with(flags: int) -> Any:
    """Return the space of a number and a mask."""
    seen = gym.spaces.Box(0, 1, (1,), np.float32)
    return gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(flags), "seen": seen})


class Doors(Several):
    """Two agents choose one of three doors, of which one is shut; the last open one is worth 1 to each of them."""

    observation_space, action_space, length = seen_with(3), gym.spaces.Discrete(3), 6

    def observe(self) -> Any:
        self.masks = {agent: np.ones(3, np.int8) for agent in self.possible_agents}
        for mask in self.masks.values():
            mask[self.rng.integers(3)] = 0
        return {
            agent: {"action_mask": mask, "seen": np.ones(1, np.float32)} for agent, mask in self.masks.items()
        }

    def pay(self, actions: Any) -> Any:
        assert all(self.masks[agent][action] for agent, action in actions.items()), "a shut door"
        return {
            agent: float(door == np.flatnonzero(self.masks[agent])[-1]) for agent, door in actions.items()
        }


class Tolls(Several):
    """Two agents choose one of four roads, once: the first costs 1, the second 2, the others 50."""

    observation_space, action_space, length = seen_with(4), gym.spaces.Discrete(4), 1

    def see(self, agent: Any) -> Any:
        return {"action_mask": np.array([1, 1, 1, 0], np.int8), "seen": np.ones(1, np.float32)}

    def pay(self, actions: Any) -> Any:
        return {agent: -float((1, 2, 50, 50)[road]) for agent, road in actions.items()}
