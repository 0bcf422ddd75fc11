"""What callers say, as columns: rewards add up, infos never stick, flags and last observations are those of the end."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from menv.algorithms import DQN
from tests.external.told import Told, ask_steps, calling, log_steps, obs, steps_of, training
from tests.inside import metrics


def column(batch: Any, name: str) -> list[Any]:
    found: list[Any] = batch["default_policy"][name].tolist()
    return found


@pytest.mark.parametrize("logs", [False, True], ids=["asks", "logs"])
def test_rewards_between_two_actions_add_up_and_none_is_zero(logs: bool) -> None:
    env = Told()

    def play() -> None:
        env.start_episode("x")
        paid: Any
        for step, paid in enumerate([(1.0, 2.0), (), (3, np.float32(0.5), np.array(-1.0)), (4.0,)]):
            if logs:
                env.log_action("x", obs(0, step), 0)
            else:
                env.get_action("x", obs(0, step))
            for reward in paid:
                env.log_returns("x", reward)
        env.end_episode("x", obs(0, 4))

    with training(env, DQN, rollout_fragment_length=4) as algo, calling(play):
        assert column(algo.sample(), "rewards") == [3.0, 0.0, 2.5, 4.0]


def test_a_reward_before_the_first_observation_joins_the_first_action() -> None:
    env = Told()
    with training(env, DQN, rollout_fragment_length=2) as algo:
        env.start_episode("x")
        env.log_returns("x", 5.0)
        log_steps(env, "x", 0, 2)
        env.end_episode("x", obs(0, 2))
        assert column(algo.sample(), "rewards") == [6.0, 2.0]


def test_an_info_goes_with_one_observation_and_never_sticks() -> None:
    env = Told()
    with training(env, DQN, rollout_fragment_length=5) as algo:
        env.start_episode("x")
        told: Any
        for step, told in enumerate([[{"n": 0}], [], [{"n": 1}, {"n": 2}], [], [{"last": True}]]):
            env.log_action("x", obs(0, step), 0)
            for info in told:
                env.log_returns("x", 1.0, info)
        env.end_episode("x", obs(0, 5))
        assert column(algo.sample(), "infos") == [{"n": 0}, {}, {"n": 2}, {}, {"last": True}]


def test_the_caller_may_use_its_info_again() -> None:
    env = Told()
    info: Any = {"n": 0, "seen": [0], "all": {"at": np.zeros(1)}}
    with training(env, DQN, rollout_fragment_length=3) as algo:
        env.start_episode("x")
        for step in range(3):
            env.log_action("x", obs(0, step), 0)
            info["n"] = info["seen"][0] = info["all"]["at"][0] = step
            env.log_returns("x", 1.0, info)
        env.end_episode("x", obs(0, 3))
        found = column(algo.sample(), "infos")
    assert [(one["n"], one["seen"][0], one["all"]["at"][0]) for one in found] == [(n, n, n) for n in range(3)]


@pytest.mark.parametrize("truncated", [False, True])
def test_the_end_has_its_flag_and_its_own_last_observation(truncated: bool) -> None:
    env = Told()
    with training(env, DQN, rollout_fragment_length=3) as algo:
        env.start_episode("x")
        log_steps(env, "x", 0, 3)
        last = obs(0, 77)
        env.end_episode("x", last, truncated=truncated)
        batch = algo.sample()
    assert column(batch, "terminateds") == [False, False, not truncated]
    assert column(batch, "truncateds") == [False, False, truncated]
    assert column(batch, "new_obs") == [[0.0, 1.0], [0.0, 2.0], [0.0, 77.0]]
    assert not batch["default_policy"].segments.final_missing.any()


@pytest.mark.parametrize("logs", [False, True], ids=["asks", "logs"])
def test_the_caller_may_use_its_array_again(logs: bool) -> None:
    env = Told()
    seen = obs(0, 0)

    def play() -> None:
        env.start_episode("x")
        for step in range(3):
            seen[1] = step
            if logs:
                env.log_action("x", seen, 0)
            else:
                env.get_action("x", seen)
        seen[1] = 3
        env.end_episode("x", seen)
        seen[1] = 99

    with training(env, DQN, rollout_fragment_length=3) as algo, calling(play):
        time.sleep(0.05)
        batch = algo.sample()
    assert column(batch, "obs") == [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]
    assert column(batch, "new_obs")[-1] == [0.0, 3.0]


def test_nobody_learns_from_an_episode_without_training_and_the_metrics_know_it() -> None:
    env = Told()

    def play() -> None:
        for number, enabled in enumerate((True, False, True)):
            episode = env.start_episode(training_enabled=enabled)
            assert set(ask_steps(env, episode, number, 4)) <= {0, 1, 2}
            env.end_episode(episode, obs(number, 4))

    with training(env, rollout_fragment_length=12, train_batch_size=12) as algo:
        with calling(play):
            result = algo.train()
        assert result["num_env_steps_sampled"] == 12
        assert result["num_agent_steps_trained"] == 8
        assert result["episodes_this_iter"] == 3
        assert result["hist_stats"]["episode_reward"] == [10.0, 10.0, 10.0]


def test_a_fragment_without_anything_to_learn_from_is_no_fault() -> None:
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


def test_an_episode_without_an_action_is_none_also_where_something_was_paid() -> None:
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


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("count_steps_by", ["env_steps", "agent_steps"])
def test_an_end_without_an_action_may_come_first(batch_mode: str, count_steps_by: str) -> None:
    env = Told()
    multiagent = {"policies": ["default_policy"], "count_steps_by": count_steps_by}
    with training(env, DQN, batch_mode=batch_mode, multiagent=multiagent) as algo:
        paid = env.start_episode()
        env.log_returns(paid, 2.5)
        env.end_episode(paid, obs(9, 9))
        for number in range(2):
            episode = env.start_episode()
            log_steps(env, episode, number, 10)
            env.end_episode(episode, obs(number, 10))
        batch = algo.sample()
    assert steps_of([batch])[0] == list(range(10 if batch_mode == "complete_episodes" else 5))


def test_an_end_may_have_no_observation() -> None:
    env = Told()
    with training(env, DQN, rollout_fragment_length=3) as algo:
        env.start_episode("x")
        log_steps(env, "x", 0, 3)
        env.end_episode("x", None, truncated=True)
        batch = algo.sample()["default_policy"]
    assert batch["truncateds"].tolist() == [False, False, True]
    assert batch["new_obs"].tolist()[-1] == [0.0, 2.0]
    assert batch.segments.final_missing.tolist() == [True]
