"""A road on which a car has to steer and to brake: an action is a number and a choice."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from menv.multi_agent_env import MultiAgentEnv

S = gym.spaces
SEEN = S.Box(-1.0, 1.0, (2,), np.float32)
DRIVE = S.Dict({"brake": S.Discrete(3), "steer": S.Box(-2.0, 2.0, (1,), np.float32)})
LENGTH = 20


class Road(gym.Env[Any, Any]):
    """Pays up to 1 a step for steering as the road bends and braking at a red light; choice 2 never pays.

    Args:
        config: `mask`, the form of the mask that forbids choice 2: "flat", "dict", or None for no mask.
    """

    action_space = DRIVE

    def __init__(self, config: Any = None) -> None:
        self.form = (config or {}).get("mask")
        masked = S.Dict({"action_mask": S.MultiBinary(3), "observations": SEEN})
        self.observation_space: Any = SEEN if self.form is None else masked

    def see(self) -> Any:
        """Return the next bend and light."""
        self.bend, self.red = self.rng.uniform(-1, 1), bool(self.rng.integers(2))
        seen = np.array([self.bend, 1 if self.red else -1], np.float32)
        flags = np.array([1, 1, 0], np.int8)
        mask = {"steer": None, "brake": flags} if self.form == "dict" else flags
        return seen if self.form is None else {"action_mask": mask, "observations": seen}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin anew."""
        self.rng, self.at = np.random.default_rng(seed), 0
        return self.see(), {}

    def step(self, action: Any) -> Any:
        """Drive on."""
        assert DRIVE.contains(action), action
        assert self.form is None or action["brake"] < 2
        self.at += 1
        right = action["brake"] == int(self.red)
        paid = max(0.0, 1.0 - abs(float(action["steer"][0]) - self.bend)) if right else 0.0
        return self.see(), paid, self.at == LENGTH, False, {}


class Convoy(MultiAgentEnv):
    """Two cars on roads of their own; one acts in a Tuple, and rests every other step."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.possible_agents = ["car", "truck"]
        self.roads = {agent: Road(config) for agent in self.possible_agents}
        self.observation_spaces = {agent: road.observation_space for agent, road in self.roads.items()}
        self.action_spaces = {
            "car": DRIVE, "truck": S.Tuple([DRIVE["steer"], S.Discrete(3, start=4), S.Box(0.0, 1.0, ())]),
        }  # fmt: skip

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin anew."""
        self.at = 0
        return {agent: road.reset(seed=seed)[0] for agent, road in self.roads.items()}, {}

    def step(self, action_dict: Any) -> Any:
        """Drive on."""
        self.at += 1
        acted = {}
        for agent, action in action_dict.items():
            assert self.get_action_space(agent).contains(action), action
            if agent == "truck":
                action = {"steer": action[0], "brake": action[1] - 4}
            acted[agent] = self.roads[agent].step(action)
        over = self.at == LENGTH
        obs = {
            agent: road.see()
            for agent, road in self.roads.items()
            if agent == "car" or self.at % 2 == 0 or over
        }
        return obs, {agent: one[1] for agent, one in acted.items()}, {"__all__": over}, {"__all__": False}, {}


BY_CAR: dict[str, Any] = {
    "policies": ["car", "truck"], "policy_mapping_fn": lambda agent_id, *args, **kwargs: agent_id,
}  # fmt: skip
