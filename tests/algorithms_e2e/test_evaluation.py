"""Evaluations: whole episodes of their own, of which the training run notices nothing."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.errors import ConfigError, MenvError
from tests.algorithms_e2e.test_policies_on_the_fly import LENGTH, Duo, to
from tests.worlds import Alone, InStep

SMALL = {"rollout_fragment_length": 10, "train_batch_size": 20, "num_envs_per_worker": 2, "seed": 3}


class Sized(Duo):
    """Its episodes take as many env steps as its config says, and its number more."""

    # An evaluation of a second has more episodes than Duo's space.
    observation_space = gym.spaces.Box(0.0, 1e6, (2,), np.float32)
    made: list[dict[str, Any]] = []  # noqa: RUF012

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        Sized.made.append(dict(config))
        self.length = config.get("length", LENGTH) + 5 * config.vector_index


@pytest.mark.parametrize("episodes", [1, 2, 5, 10])
def test_an_evaluation_is_exactly_so_many_episodes_shared_out_evenly(episodes: int) -> None:
    with PPO(env=Sized, config={**SMALL, "evaluation_duration": episodes}) as algo:
        for _ in range(3):
            found = algo.evaluate()["evaluation"]
            lengths = sorted(found["hist_stats"]["episode_lengths"])
            assert lengths == [LENGTH] * -(-episodes // 2) + [LENGTH + 5] * (episodes // 2)
            assert found["num_env_steps_sampled_this_iter"] == sum(lengths)
            assert found["episodes_this_iter"] == found["sampler_results"]["episodes_this_iter"] == episodes


def test_env_steps_are_rounded_up_to_whole_episodes() -> None:
    settings = {"evaluation_duration": 20, "evaluation_duration_unit": "timesteps"}
    with PPO(env=Sized, config={**SMALL, **settings}) as algo:
        for _ in range(2):
            assert sorted(algo.evaluate()["evaluation"]["hist_stats"]["episode_lengths"]) == [
                LENGTH,
                LENGTH,
                LENGTH + 5,
            ]


@pytest.mark.parametrize("env", [Sized, lambda context: InStep([Alone(length=3), Alone(length=4)])])
def test_an_evaluation_of_seconds_plays_whole_episodes_for_so_long(env: Any) -> None:
    settings = {"evaluation_duration": 1, "evaluation_duration_unit": "seconds", "num_envs_per_worker": 1}
    with PPO(env=env, config={**SMALL, **settings}) as algo:
        before = time.monotonic()
        found = algo.evaluate()["evaluation"]
        assert time.monotonic() - before >= 1
    assert found["episodes_this_iter"] > 10


def test_evaluations_do_not_change_what_is_trained() -> None:
    def weights(interval: int | None) -> Any:
        with PPO(
            env=Sized, config={**SMALL, "evaluation_interval": interval, "evaluation_duration": 3}
        ) as algo:
            results = [algo.train() for _ in range(4)]
            return algo.get_weights()["default_policy"], [
                result["num_env_steps_sampled"] for result in results
            ]

    (plain, steps), (evaluated, same_steps) = weights(None), weights(1)
    assert steps == same_steps
    for name, value in plain.items():
        np.testing.assert_array_equal(value, evaluated[name])


def test_results_come_every_so_many_iterations_or_are_repeated() -> None:
    with PPO(env=Sized, config={**SMALL, "evaluation_interval": 2}) as algo:
        assert ["evaluation" in algo.train() for _ in range(4)] == [False, True, False, True]
    settings = {"evaluation_interval": 2, "always_attach_evaluation_results": True}
    with PPO(env=Sized, config={**SMALL, **settings}) as algo:
        results = [algo.train() for _ in range(3)]
    assert "evaluation" not in results[0]
    assert results[2]["evaluation"] is results[1]["evaluation"]


def test_settings_of_evaluations_hold_for_them_alone() -> None:
    Sized.made.clear()
    settings = {
        "evaluation_config": {"explore": False, "env_config": {"length": 3}, "num_envs_per_worker": 1}
    }
    with PPO(env=Sized, config={**SMALL, **settings, "env_config": {"other": 1}}) as algo:
        assert set(algo.evaluate()["evaluation"]["hist_stats"]["episode_lengths"]) == {3}
        assert algo.train()["episode_len_mean"] == LENGTH
        assert algo.config.explore
    assert Sized.made == [{"other": 1}, {"other": 1}, {"other": 1, "length": 3}]


def test_evaluations_may_map_agents_to_other_policies() -> None:
    multiagent = {"policies": ["one", "two"], "policy_mapping_fn": to(a="one", b="two")}
    settings = {"evaluation_config": {"multiagent": {"policy_mapping_fn": to(a="two", b="two")}}}
    with PPO(env=Sized, config={**SMALL, **settings, "multiagent": multiagent}) as algo:
        assert set(algo.evaluate()["evaluation"]["policy_reward_mean"]) == {"two"}
        assert set(algo.train()["policy_reward_mean"]) == {"one", "two"}


def test_evaluations_with_other_policies_are_refused() -> None:
    own = {"evaluation_config": {"multiagent": {"policies": {"default_policy": None, "other": None}}}}
    with pytest.raises(MenvError, match="other"):
        PPO(env=Duo, config={**SMALL, **own})


OF_POLICIES: list[dict[str, Any]] = [
    {"exploration_config": {"final_epsilon": 0.0}}, {"normalize_actions": False}, {"clip_actions": True},
    {"model": {"fcnet_hiddens": [8]}}, {"observation_filter": "MeanStdFilter"}, {"agent_connectors": ["FlattenObs"]},
]  # fmt: skip


@pytest.mark.parametrize("own", OF_POLICIES)
def test_what_policies_are_made_with_is_refused_in_evaluations_where_it_differs(own: dict[str, Any]) -> None:
    (name,) = own
    with pytest.raises(ConfigError, match=name):
        DQN(env="CartPole-v1", config={"evaluation_config": own})


@pytest.mark.parametrize(("settings", "lengths"), [
    ({"evaluation_duration": 6}, [2, 2, 3, 3, 4, 4]),
    ({"evaluation_duration": 4}, [2, 2, 3, 4]),
    ({"evaluation_duration": 15, "evaluation_duration_unit": "timesteps"}, [2, 2, 2, 3, 3, 4, 4]),
])  # fmt: skip
def test_sub_environments_that_step_together_play_equal_shares(
    settings: dict[str, Any], lengths: list[int]
) -> None:
    # Short episodes would be preferred.
    def make(context: Any) -> Any:
        return InStep([Alone(length=length) for length in (2, 3, 4)])

    with PPO(env=make, config={"train_batch_size": 12, "num_sgd_iter": 1, **settings}) as algo:
        for _ in range(2):
            found = algo.evaluate()["evaluation"]
            assert found["episodes_this_iter"] == len(lengths)
            assert sorted(found["hist_stats"]["episode_lengths"]) == lengths
            algo.train()


def test_an_environment_that_is_trained_in_is_not_evaluated_in() -> None:
    env = gym.make("CartPole-v1")
    config = {"train_batch_size": 64, "num_envs_per_worker": 1}
    with PPO(env=lambda context: env, config=config) as algo, pytest.raises(ConfigError):
        algo.evaluate()


WRONG_ONES: dict[str, tuple[dict[str, Any], str]] = {
    "another observation": ({"env": "Acrobot-v1"}, r"evaluation_config: .*observation.*'agent0'.*\(6,\)"),
    "other actions": (
        {"env": lambda context: Loud(gym.make("CartPole-v1"))},
        r"evaluation_config: .*action.*'agent0'.*Discrete\(3\)",
    ),
    "an environment that cannot be made": (
        {"env_config": {"no_such_keyword": 1}},
        r"evaluation_config: env 'CartPole-v1' .*TypeError.*no_such_keyword",
    ),
    "an unknown name": ({"env": "CartPol-v1"}, "evaluation_config: .*CartPole-v1"),
    "an unknown policy": (
        {"multiagent": {"policy_mapping_fn": to(agent0="nobody")}},
        "evaluation_config: policy_mapping_fn: .*'nobody'",
    ),
}


class Loud(gym.ActionWrapper[Any, Any, Any]):
    """Has more actions."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.action_space = gym.spaces.Discrete(3)


@pytest.mark.parametrize("wrong", WRONG_ONES)
def test_settings_that_no_evaluation_can_use_are_refused_before_training(wrong: str) -> None:
    own, message = WRONG_ONES[wrong]
    multiagent = {
        "multiagent": {"policies": ["default_policy"], "policy_mapping_fn": to(agent0="default_policy")}
    }
    settings = {**SMALL, **multiagent, "evaluation_config": own}
    with pytest.raises(MenvError, match=message):
        PPO(env="CartPole-v1", config={**settings, "evaluation_interval": 1000})
    # Who never asks for one is not kept from training.
    PPO(env="CartPole-v1", config=settings).stop()


def test_an_environment_of_other_bounds_is_played_in() -> None:
    class Narrow(gym.ObservationWrapper[Any, Any, Any]):
        def __init__(self, context: Any) -> None:
            super().__init__(gym.make("CartPole-v1"))
            self.observation_space = gym.spaces.Box(-1e3, 1e3, (4,), np.float32)

        def observation(self, observation: Any) -> Any:
            return observation.clip(-1e3, 1e3)

    settings = {**SMALL, "evaluation_interval": 1, "evaluation_config": {"env": Narrow}}
    with PPO(env="CartPole-v1", config=settings) as algo:
        assert algo.train()["evaluation"]["episodes_this_iter"] == 10


def test_trial_environments_are_closed_and_evaluations_have_their_own() -> None:
    class Closing(gym.Wrapper[Any, Any, Any, Any]):
        open = 0

        def __init__(self, context: Any) -> None:
            super().__init__(gym.make("CartPole-v1"))
            Closing.open += 1

        def close(self) -> None:
            Closing.open -= 1

    settings = {**SMALL, "evaluation_interval": 1, "evaluation_config": {"env": Closing}}
    with PPO(env="CartPole-v1", config=settings) as algo:
        assert Closing.open == 0
        assert algo.train()["evaluation"]["episodes_this_iter"] == 10
        assert Closing.open == 2
    assert Closing.open == 0
