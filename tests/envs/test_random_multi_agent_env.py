"""The stub of random agents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import check_env
from menv.envs import RandomMultiAgentEnv
from menv.errors import CallOrderError, ConfigError, ContractError


def played(seed: int, **settings: Any) -> list[Any]:
    env = RandomMultiAgentEnv(settings)
    obs, _ = env.reset(seed=seed)
    seen: list[Any] = [obs]
    while env.agents:
        seen.append(env.step({agent: env.action_spaces[agent].sample() for agent in env.agents}))
    return seen


def test_the_checker_accepts_agents_that_leave_and_return() -> None:
    assert check_env(RandomMultiAgentEnv({"num_agents": 4, "appear_prob": 0.3, "end_prob": 0.2})) == []
    steps = played(0, num_agents=4, appear_prob=0.3, end_prob=0.2)[1:]
    assert any(len(obs) > len(rewards) for obs, rewards, *_ in steps)


def test_the_seed_decides_everything() -> None:
    first, again, other = (played(seed, num_agents=3) for seed in (1, 1, 2))
    assert str(first) == str(again) != str(other)


def test_an_episode_is_truncated_after_its_length() -> None:
    steps = played(0, end_prob=0.0, episode_length=7)[1:]
    assert len(steps) == 7
    assert steps[-1][2]["__all__"] is False
    assert steps[-1][3] == {"agent_0": True, "agent_1": True, "__all__": True}


def test_agents_may_have_different_spaces() -> None:
    spaces = {"a": gym.spaces.Discrete(3), "b": gym.spaces.Box(-1.0, 1.0, (2,), np.float32)}
    env = RandomMultiAgentEnv({"num_agents": ["a", "b"], "action_space": spaces})
    assert env.get_action_space("b") == spaces["b"]
    env.reset()
    with pytest.raises(ContractError, match="'a'"):
        env.step({"a": 3, "b": np.zeros(2, np.float32)})


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"agents": 2}, "agents"), ({"num_agents": 0}, "num_agents"), ({"end_prob": 1.5}, "end_prob")],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RandomMultiAgentEnv(settings)


def test_no_environment_steps_before_a_reset() -> None:
    with pytest.raises(CallOrderError, match="reset"):
        RandomMultiAgentEnv().step({})
