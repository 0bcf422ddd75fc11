"""What callers say, as columns: rewards add up, infos never stick, flags and last observations are those of the end."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from menv.algorithms import DQN
from tests.external.told import Told, ask_steps, calling, log_steps, obs, training
from tests.inside import metrics


def column(batch: Any, name: str) -> list[Any]:
    found: list[Any] = batch["default_policy"][name].tolist()
    return found


@pytest.mark.parametrize("logs", [False, True], ids=["asks", "logs"])
@pytest.mark.parametrize("truncated", [False, True])
def test_what_a_caller_says_is_in_the_columns_of_its_step(logs: bool, truncated: bool) -> None:
    """Rewards add up, an info goes with one observation, and what was handed over may be used again."""
    env, seen = Told(), obs(0, 0)
    info: Any = {"n": 0, "all": {"at": np.zeros(1)}}

    def play() -> None:
        env.start_episode("x")
        env.log_returns("x", 5.0)
        paid: Any
        for step, paid in enumerate([(1.0, 2.0), (), (3, np.float32(0.5), np.array(-1.0)), (4.0,)]):
            seen[1] = step
            if logs:
                env.log_action("x", seen, 0)
            else:
                env.get_action("x", seen)
            for reward in paid:
                info["n"] += 1
                info["all"]["at"][0] = info["n"]
                env.log_returns("x", reward, info)
        seen[1] = 77
        env.end_episode("x", seen, truncated=truncated)
        seen[1] = 99

    with training(env, DQN, rollout_fragment_length=4) as algo, calling(play):
        time.sleep(0.05)
        batch = algo.sample()
    # What is paid before the first observation joins the first action.
    assert column(batch, "rewards") == [8.0, 0.0, 2.5, 4.0]
    assert column(batch, "obs") == [[0.0, step] for step in range(4)]
    assert column(batch, "new_obs") == [[0.0, step] for step in (1, 2, 3, 77)]
    infos = [(one["n"], one["all"]["at"][0]) if one else None for one in column(batch, "infos")]
    assert infos == [(2, 2), None, (5, 5), (6, 6)]
    assert column(batch, "terminateds") == [False] * 3 + [not truncated]
    assert column(batch, "truncateds") == [False] * 3 + [truncated]
    assert not batch["default_policy"].segments.final_missing.any()


def test_a_fragment_without_rows_to_learn_from_is_allowed() -> None:
    env = Told()

    def play() -> None:
        episode = env.start_episode(training_enabled=False)
        ask_steps(env, episode, 0, 10)
        env.end_episode(episode, obs(0, 10))
        episode = env.start_episode()
        ask_steps(env, episode, 1, 10)
        env.end_episode(episode, obs(1, 10))

    with training(env) as algo, calling(play):
        before = algo.get_weights()["default_policy"]
        first = algo.train()
        assert first["num_agent_steps_trained"] == 0
        assert all(
            (algo.get_weights()["default_policy"][name] == value).all() for name, value in before.items()
        )
        assert algo.train()["num_agent_steps_trained"] == 10


def test_an_episode_without_an_action_does_not_count_even_with_rewards() -> None:
    env = Told()
    with training(env, DQN, min_sample_timesteps_per_iteration=10) as algo:
        env.end_episode(env.start_episode(), obs(9, 9))
        paid = env.start_episode()
        env.log_returns(paid, 2.5)
        env.end_episode(paid, obs(9, 9))
        env.end_episode(env.start_episode(), obs(9, 9), truncated=True)
        log_steps(env, "x" if env.start_episode("x") else "", 0, 10)
        env.end_episode("x", obs(0, 10))
        result = algo.train()
    assert result["hist_stats"]["episode_reward"] == [55.0]
    assert result["hist_stats"]["episode_lengths"] == [10]
    assert (result["episodes_total"], result["faulty_episodes_total"]) == (1, 0)
    assert metrics(algo).unclaimed_rewards == 2.5
