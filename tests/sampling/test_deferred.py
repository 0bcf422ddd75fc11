"""Environments that are built in their first reset: the config says what they will look like."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import PPO
from menv.base_env import ALL
from menv.errors import MenvError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from tests.bad_input.broken_envs import SMALL
from tests.worlds import like

OBS = gym.spaces.Box(-5.0, 5.0, (2,), np.float32)
WIDE = gym.spaces.Box(-5.0, 5.0, (3,), np.float32)
ACTIONS = gym.spaces.Discrete(3)
GIVEN = {"observation_space": OBS, "action_space": ACTIONS}
built: list[int] = []


class LazyGym(gym.Env[Any, Any]):
    """Has neither world nor spaces before its first reset."""

    def __init__(self, context: Any) -> None:
        self.index = context.vector_index
        self.world: list[int] | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self.world is None:
            built.append(self.index)
            self.world = [0]
            self.observation_space, self.action_space = OBS, ACTIONS
        self.world[0] = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.world is not None
        self.world[0] += 1
        return np.zeros(2, np.float32), 1.0, self.world[0] == 5, False, {}


class LazyTeam(MultiAgentEnv):
    """Lists its agents or not, and has no spaces before its first reset."""

    listed: tuple[str, ...] = ("ann", "bob")

    def __init__(self, context: Any) -> None:
        super().__init__()
        self.possible_agents = list(self.listed)
        self.index = context.vector_index
        self.at = -1

    def reset(self, **kwargs: Any) -> tuple[AgentDict, AgentDict]:
        if self.at < 0:
            built.append(self.index)
        self.at = 0
        return self.observe(), {}

    def observe(self) -> AgentDict:
        return {"ann": np.zeros(2, np.float32), "bob": np.zeros(3, np.float32)}

    def step(self, action_dict: AgentDict) -> StepDicts:
        self.at += 1
        return self.observe(), {"ann": 1.0, "bob": 2.0}, {ALL: self.at == 5}, {ALL: False}, {}


SilentTeam = like(LazyTeam, listed=())


@pytest.fixture(autouse=True)
def _nothing_built() -> None:
    built.clear()


def test_spaces_of_the_config_spare_an_expensive_environment_until_its_first_reset() -> None:
    with PPO(env=LazyGym, config={**SMALL, **GIVEN, "num_envs_per_worker": 2}) as algo:
        assert built == []
        assert algo.train()["episode_reward_mean"] == 5.0
    assert built == [0, 1]


def test_without_spaces_the_first_lazy_environment_is_reset_to_find_them() -> None:
    with PPO(env=LazyGym, config=SMALL) as algo:
        assert built == [0]
        assert algo.train()["episode_reward_mean"] == 5.0
    assert built == [0]


@pytest.mark.parametrize("env", [LazyTeam, SilentTeam])
def test_without_spaces_a_lazy_team_is_told_where_to_give_them(env: Any) -> None:
    multiagent = {"policies": ["ann", "bob"], "policy_mapping_fn": lambda agent_id: agent_id}
    with pytest.raises(MenvError, match=r"agent 'ann': .*observation_space.*PolicySpec"):
        PPO(env=env, config={**SMALL, "multiagent": multiagent})


def test_spaces_of_a_policy_must_be_those_that_its_agents_declare() -> None:
    class Declares(LazyGym):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.observation_space, self.action_space = OBS, ACTIONS

    multiagent = {"policies": {"p": PolicySpec(None, WIDE, ACTIONS)}}
    with pytest.raises(MenvError, match="observation_space"):
        PPO(env=Declares, config={**SMALL, "multiagent": multiagent})


def test_an_observation_outside_the_spaces_that_were_given_is_named() -> None:
    with pytest.raises(MenvError, match="'agent0'"):
        PPO(env=LazyGym, config={**SMALL, "observation_space": WIDE, "action_space": ACTIONS}).train()
