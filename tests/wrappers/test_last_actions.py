"""`LastActions` shows each agent what it did last, and nothing at first."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import ConfigError, check_env
from menv.algorithms import PPO, QMIX
from menv.envs import TicTacToe
from menv.wrappers import LastActions
from tests.algorithms_e2e.shifts import Shifts
from tests.worlds import like


def last(obs: Any) -> dict[Any, list[float]]:
    return {agent: own["last_action"].tolist() for agent, own in obs.items()}


def test_an_agent_sees_its_last_action_until_it_dies() -> None:
    # "c" comes in step 1, "b" pauses in step 2, "a" dies in step 3 and is back in step 4.
    env = LastActions(Shifts())
    obs, _ = env.reset(seed=0)
    assert last(obs) == {"a": [0, 0, 0], "b": [0, 0, 0]}
    assert obs["a"]["observation"].tolist() == [1.0, 0.0]
    assert last(env.step({"a": 1, "b": 2})[0]) == {"a": [0, 1, 0], "b": [0, 0, 1], "c": [0, 0, 0]}
    assert last(env.step({"a": 0, "b": 1, "c": 2})[0]) == {"a": [1, 0, 0], "c": [0, 0, 1]}
    assert last(env.step({"a": 2, "c": 0})[0]) == {"a": [0, 0, 1], "b": [0, 1, 0], "c": [1, 0, 0]}
    assert last(env.step({"b": 0, "c": 1})[0])["a"] == [0, 0, 0]
    assert last(env.reset(seed=0)[0]) == {"a": [0, 0, 0], "b": [0, 0, 0]}


def test_masks_stay_where_policies_find_them_and_batches_hold_the_actions() -> None:
    assert check_env(LastActions(TicTacToe())) == []
    with PPO(
        env=lambda context: LastActions(Shifts(context)), config={"rollout_fragment_length": 40}
    ) as algo:
        batch = algo.sample()["default_policy"]
        later = np.flatnonzero(batch["t"] > 0)
        # The entries of a Dict are sorted: "last_action", "observation".
        assert (batch["obs"][later, :3].argmax(1) == batch["prev_actions"][later]).all()
        assert not batch["obs"][batch["t"] == 0, :3].any()
        algo.train()


def test_members_of_a_group_see_their_own_last_actions() -> None:
    def team(context: Any) -> Any:
        steady = like(Shifts, shown=lambda self: self.possible_agents, dead=lambda self, actions: "")
        return LastActions(steady(context)).with_agent_groups({"team": ["a", "b", "c"]})

    with QMIX(env=team, config={"model": {"use_gru": True, "max_seq_len": 4}, "seed": 0}) as algo:
        algo.train()
        batch = algo.sample()["default_policy"]
        later = np.flatnonzero(batch["t"] > 0)
        members = batch["obs"][later, :15].reshape(-1, 3, 5)[:, :, :3].argmax(2)
        assert (members == batch["prev_actions"][later]).all()


def test_environments_of_one_agent_are_refused() -> None:
    with pytest.raises(ConfigError, match="LastActions"):
        LastActions(gym.make("CartPole-v1"))
