"""An environment whose agents come, pause, die and come back, for tests that look at several of them at once."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tests.worlds import Several

# Who is shown an observation at each env step; after the last one the episode is over.
PRESENT = ("ab", "abc", "ac", "abc", "abc", "abc")
NUMBERS = {"a": 1.0, "b": 2.0, "c": 3.0}


class Shifts(Several):
    """Three agents, one step each row of `PRESENT`; "b" pauses in step 2, "a" dies in step 3 and is back in step 4.

    All see their number and the env step, and whoever acted is paid the env step; the config may say "truncate".
    """

    possible_agents: Any = tuple(NUMBERS)
    length = len(PRESENT) - 1
    observation_space, action_space = gym.spaces.Box(0.0, 10.0, (2,), np.float32), gym.spaces.Discrete(3)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.cut = bool(self.config.get("truncate"))

    def shown(self) -> Any:
        return PRESENT[self.at]

    def see(self, agent: str) -> Any:
        return np.array([NUMBERS[agent], self.at], np.float32)

    def pay(self, actions: Any) -> Any:
        return dict.fromkeys(actions, float(self.at))

    def dead(self, actions: Any) -> Any:
        return "a" if self.at == 3 else ""


def mapped_to_themselves(agent_id: Any, **kwargs: Any) -> str:
    return str(agent_id)
