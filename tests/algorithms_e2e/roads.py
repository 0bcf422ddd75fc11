"""A road on which a car has to steer and to brake: an action is a number and a choice."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tests.worlds import Alone, Several

S = gym.spaces
SEEN = S.Box(-1.0, 1.0, (2,), np.float32)
DRIVE = S.Dict({"brake": S.Discrete(3), "steer": S.Box(-2.0, 2.0, (1,), np.float32)})
LENGTH = 20


class Road(Alone):
    """Pays up to 1 a step for steering as the road bends and braking at a red light; choice 2 never pays.

    Args:
        config: `mask`, the form of the mask that forbids choice 2: "flat", "dict", or None for no mask.
    """

    action_space, length = DRIVE, LENGTH

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.form = self.config.get("mask")
        masked = S.Dict({"action_mask": S.MultiBinary(3), "observations": SEEN})
        self.observation_space: Any = SEEN if self.form is None else masked

    def see(self) -> Any:
        """Return the next bend and light."""
        self.bend, self.red = self.np_random.uniform(-1, 1), bool(self.np_random.integers(2))
        seen = np.array([self.bend, 1 if self.red else -1], np.float32)
        flags = np.array([1, 1, 0], np.int8)
        mask = {"steer": None, "brake": flags} if self.form == "dict" else flags
        return seen if self.form is None else {"action_mask": mask, "observations": seen}

    def pay(self, action: Any) -> float:
        assert DRIVE.contains(action), action
        assert self.form is None or action["brake"] < 2
        right = action["brake"] == int(self.red)
        return max(0.0, 1.0 - abs(float(action["steer"][0]) - self.bend)) if right else 0.0


class Convoy(Several):
    """Two cars on roads of their own; one acts in a Tuple, and rests every other step."""

    possible_agents, length = ("car", "truck"), LENGTH

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.roads = {agent: Road(config) for agent in self.possible_agents}
        self.observation_spaces = {agent: road.observation_space for agent, road in self.roads.items()}
        self.action_spaces = {
            "car": DRIVE, "truck": S.Tuple([DRIVE["steer"], S.Discrete(3, start=4), S.Box(0.0, 1.0, ())]),
        }  # fmt: skip

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        for road in self.roads.values():
            road.reset(seed=seed)
        return super().reset(seed=seed)

    def shown(self) -> Any:
        return ["car", "truck"][: 1 + (self.at % 2 == 0)]

    def see(self, agent: Any) -> Any:
        return self.roads[agent].see()

    def pay(self, actions: Any) -> Any:
        assert all(self.get_action_space(agent).contains(action) for agent, action in actions.items()), (
            actions
        )
        if "truck" in actions:
            steer, brake, _ = actions["truck"]
            actions = {**actions, "truck": {"steer": steer, "brake": brake - 4}}
        return {agent: self.roads[agent].pay(action) for agent, action in actions.items()}


BY_CAR: dict[str, Any] = {
    "policies": ["car", "truck"], "policy_mapping_fn": lambda agent_id, *args, **kwargs: agent_id,
}  # fmt: skip
