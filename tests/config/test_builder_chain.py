"""RLlib's builder chain: each call returns a changed copy, and all three ways of writing a config are equal."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from menv import ConfigError, DefaultCallbacks
from menv.algorithms import DQN, PPO, DQNConfig, PPOConfig, QMIXConfig
from menv.algorithms.config import setting as table_of_settings
from menv.algorithms.config.read_config import read_config
from menv.envs import TicTacToe


class Mine(DefaultCallbacks):
    """Does nothing."""


def first(agent_id: Any, episode: Any, worker: Any, **kwargs: Any) -> str:
    return "a"


SETTINGS: dict[str, Any] = {
    "env": TicTacToe, "env_config": {"size": 3}, "num_workers": 0, "num_envs_per_worker": 2,
    "rollout_fragment_length": 8, "lr": 0.25, "gamma": 0.5, "train_batch_size": 32, "sgd_minibatch_size": 16,
    "num_sgd_iter": 2, "lambda": 0.75, "model": {"fcnet_hiddens": [8], "use_lstm": True},
    "multiagent": {"policies": ["a", "b"], "policy_mapping_fn": first, "policies_to_train": ["a"]},
    "evaluation_interval": 3, "evaluation_config": {"explore": False}, "callbacks": Mine, "num_gpus": 0, "seed": 1,
    "log_level": "WARN", "restart_failed_sub_environments": False, "explore": True,
}  # fmt: skip


def chain() -> PPOConfig:
    config: PPOConfig = (
        PPOConfig()
        .environment(TicTacToe, env_config={"size": 3})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .rollouts(num_rollout_workers=0, rollout_fragment_length=8)
        .framework("torch")
        .training(lr=0.25, gamma=0.5, lambda_=0.75, train_batch_size=32, minibatch_size=16, num_epochs=2)
        .training(model={"fcnet_hiddens": [8]})
        .training(model={"use_lstm": True})
        .multi_agent(policies=["a", "b"], policy_mapping_fn=first)
        .multi_agent(policies_to_train=["a"])
        .evaluation(evaluation_interval=3, evaluation_config=PPOConfig.overrides(explore=False))
        .callbacks(callbacks_class=Mine)
        .resources(num_gpus=0)
        .debugging(seed=1, log_level="WARN")
        .fault_tolerance(restart_failed_sub_environments=False)
        .exploration(explore=True)
    )
    return config


def test_a_chain_a_dict_and_keywords_give_equal_configs() -> None:
    assert chain() == read_config(PPOConfig, SETTINGS) == PPOConfig(**SETTINGS)


@pytest.mark.parametrize(("config", "algorithm"), [(PPOConfig(), PPO), (DQNConfig(), DQN)])
def test_a_chain_builds_an_algorithm_that_trains(config: Any, algorithm: type[Any]) -> None:
    short = config.environment("CartPole-v1").env_runners(rollout_fragment_length=16).debugging(seed=1)
    with short.training(train_batch_size=16).build_algo() as algo:
        assert type(algo) is algorithm
        assert algo.train()["training_iteration"] == 1


def test_a_chain_of_many_agents_trains() -> None:
    with chain().environment(TicTacToe).training(model={"use_lstm": False}).build() as algo:
        result = algo.train()
    assert list(result["info"]["learner"]) == ["a"]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("environment", {"env": "CartPole-v1"}),
        ("env_runners", {"num_env_runners": 2}),
        ("rollouts", {"num_envs_per_worker": 2}),
        ("training", {"lr": 0.5, "model": {"use_gru": True}}),
        ("multi_agent", {"policies": ["a"]}),
        ("evaluation", {"evaluation_num_env_runners": 1}),
        ("callbacks", {"callbacks_class": Mine}),
        ("resources", {"num_gpus": 1}),
        ("debugging", {"seed": 3}),
        ("fault_tolerance", {"num_consecutive_env_failures_tolerance": 5}),
        ("exploration", {"explore": False}),
        ("reporting", {"metrics_num_episodes_for_smoothing": 5}),
    ],
)
def test_each_call_returns_a_changed_copy(method: str, settings: dict[str, Any]) -> None:
    before = PPOConfig()
    after = getattr(before, method)(**settings)
    assert type(after) is PPOConfig
    assert after != before == PPOConfig()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PPOConfig().training(lrr=1), "'lr'"),
        (lambda: PPOConfig().training(use_lstm=True), "model"),
        (lambda: PPOConfig().training(lr=1, learning_rate=1), "learning_rate"),
        (lambda: PPOConfig().environment(horizon=5), "menv.wrappers.TimeLimit"),
        (lambda: PPOConfig().rollouts(num_worker=5), "'num_workers'"),
        (lambda: PPOConfig().multi_agent(policy_mapping=first), "'policy_mapping_fn'"),
    ],
)
def test_an_unknown_argument_is_refused_with_what_to_write(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("environment", {"disable_env_checking": True}),
        ("framework", {"framework": "tf2"}),
        ("fault_tolerance", {"recreate_failed_workers": True}),
        ("resources", {"num_cpus_per_worker": 1}),
        ("api_stack", {"enable_rl_module_and_learner": False}),
    ],
)
def test_an_argument_without_meaning_warns_once(
    method: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_of_settings, "_warned", set())
    with pytest.warns(UserWarning, match=rf"PPOConfig: '{next(iter(settings))}' has no meaning in menv"):
        assert getattr(PPOConfig(), method)(**settings) == PPOConfig()


def test_callbacks_can_be_read_and_given_in_a_chain() -> None:
    assert PPOConfig().callbacks == DefaultCallbacks
    assert repr(PPOConfig().callbacks) == repr(DefaultCallbacks)
    assert PPOConfig(callbacks=Mine).callbacks is Mine
    assert len({PPOConfig().callbacks, PPOConfig(lr=0.5).callbacks}) == 1


@pytest.mark.parametrize("config", [PPOConfig(), DQNConfig(), QMIXConfig()])
def test_every_setting_can_be_given_in_a_chain(config: Any) -> None:
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    assert config.training(**values) == config
