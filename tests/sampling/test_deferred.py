"""Environments that are built in their first reset: the config says what they will look like."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import PPO
from menv.errors import MenvError
from tests.bad_input.broken_envs import SMALL
from tests.worlds import Alone, Several, like

OBS = gym.spaces.Box(-5.0, 5.0, (2,), np.float32)
WIDE = gym.spaces.Box(-5.0, 5.0, (3,), np.float32)
ACTIONS = gym.spaces.Discrete(3)
GIVEN = {"observation_space": OBS, "action_space": ACTIONS}
built: list[int] = []


class LazyGym(Alone):
    """Has no spaces before its first reset."""

    observation_space: Any = None
    action_space: Any = None
    length = 5

    def see(self) -> Any:
        if (self.episode, self.at) == (0, 0):
            built.append(self.config.vector_index)
            self.observation_space, self.action_space = OBS, ACTIONS
        return np.zeros(2, np.float32)


class LazyTeam(Several):
    """Lists its agents or not, and has no spaces."""

    possible_agents, observation_space, action_space, length = ("ann", "bob"), None, None, 5

    def observe(self) -> Any:
        if (self.episode, self.at) == (0, 0):
            built.append(self.config.vector_index)
        return {"ann": np.zeros(2, np.float32), "bob": np.zeros(3, np.float32)}

    def pay(self, actions: Any) -> Any:
        return {"ann": 1.0, "bob": 2.0}


SilentTeam = like(LazyTeam, possible_agents=())


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
    declares = like(LazyGym, observation_space=OBS, action_space=ACTIONS)
    multiagent = {"policies": {"p": PolicySpec(None, WIDE, ACTIONS)}}
    with pytest.raises(MenvError, match="observation_space"):
        PPO(env=declares, config={**SMALL, "multiagent": multiagent})


def test_an_observation_outside_the_spaces_that_were_given_is_named() -> None:
    with pytest.raises(MenvError, match="'agent0'"):
        PPO(env=LazyGym, config={**SMALL, "observation_space": WIDE, "action_space": ACTIONS}).train()
