"""What a user's method or property raises while menv asks for spaces is the cause of the error, and in its text."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from pettingzoo import AECEnv, ParallelEnv

from menv import MultiAgentEnv
from menv.algorithms import PPO
from menv.errors import MenvError

UNIT = gym.spaces.Box(0, 1, (2,), np.float32)


class Gym(gym.Env[Any, Any]):
    action_space = gym.spaces.Discrete(2)

    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        return self._sapce  # type: ignore[attr-defined]

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros(2, np.float32), {}


class SharedSpace(MultiAgentEnv):
    possible_agents = ["ann"]  # noqa: RUF012 - as users write it
    action_space = gym.spaces.Discrete(2)

    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        return self._sapce  # type: ignore[attr-defined]

    def reset(self, **kwargs: Any) -> Any:
        return {"ann": np.zeros(2, np.float32)}, {}


class SpacesByAgent(SharedSpace):
    observation_space = None

    @property
    def observation_spaces(self) -> Any:  # type: ignore[override]
        return self._sapce  # type: ignore[attr-defined]


class Parallel(ParallelEnv):  # type: ignore[misc, type-arg, unused-ignore]
    possible_agents = ["ann"]  # noqa: RUF012 - as users write it

    def observation_space(self, agent: str) -> Any:
        return self._sapce[agent]

    def action_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["ann"]
        return {"ann": np.zeros(2, np.float32)}, {"ann": {}}


class Turns(AECEnv):  # type: ignore[misc, type-arg, unused-ignore]
    possible_agents = ["ann"]  # noqa: RUF012 - as users write it

    def observation_space(self, agent: str) -> Any:
        return UNIT

    def action_space(self, agent: str) -> Any:
        return self._sapce[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.agent_selection = ["ann"], "ann"


@pytest.mark.parametrize("kind", [Gym, SharedSpace, SpacesByAgent, Parallel, Turns])
def test_a_typo_in_a_declaration_of_spaces_is_shown_with_its_cause(kind: type) -> None:
    with pytest.raises(MenvError, match="_sapce") as refused:
        PPO(env=lambda context: kind())
    assert isinstance(refused.value.__cause__, AttributeError)
