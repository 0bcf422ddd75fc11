"""The bare loops that benchmarks divide by run on every kind of environment, at tiny sizes."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from benchmarks import floors
from benchmarks.null_env import NullEnv
from menv.envs import MultiAgentTrafficEnv, TicTacToe, make_multi_agent


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_gymnasium_envs_are_stepped_past_their_ends(env_id: str) -> None:
    assert floors.bare_gym(env_id, num_envs=2, env_steps=450) > 0


def test_agent_steps_are_counted_by_who_acts() -> None:
    rate = floors.bare_multi_agent(lambda index: NullEnv({"num_agents": 5}), num_envs=2, env_steps=250)
    assert rate.agent_steps == pytest.approx(5 * rate.env_steps)


def test_agents_that_leave_early_are_no_longer_answered() -> None:
    cartpoles = make_multi_agent("CartPole-v1")
    rate = floors.bare_multi_agent(lambda index: cartpoles({"num_agents": 3}), num_envs=2, env_steps=300)
    assert rate.env_steps < rate.agent_steps < 3 * rate.env_steps
    assert floors.bare_multi_agent(lambda index: MultiAgentTrafficEnv(), 2, 300).env_steps > 0


def test_players_take_turns_with_legal_moves() -> None:
    assert floors.bare_turn_based(lambda index: TicTacToe(), num_envs=3, env_steps=300) > 0


@pytest.mark.parametrize(
    "space",
    [gym.spaces.Discrete(3, start=2), gym.spaces.Box(-2.0, 2.0, (2,)), gym.spaces.MultiDiscrete([2, 3])],
)
def test_actions_are_drawn_from_their_space_and_reproducibly(space: gym.Space[object]) -> None:
    actions = floors.draw_actions(space, 50, seed=1)
    assert len(actions) == 50
    assert all(space.contains(action) for action in actions)
    again = floors.draw_actions(space, 50, seed=1)
    assert all(np.array_equal(one, two) for one, two in zip(actions, again, strict=True))
