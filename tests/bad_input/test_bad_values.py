"""Values of settings that Python would have stumbled over, or taken in silence, are refused in a line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import DQN, PPO, DQNConfig, PPOConfig
from menv.errors import ConfigError, ContractError
from tests.bad_input.broken_envs import SMALL, Faulty, checked

NUMBERED: Any = {1: 2}
TWO = {"policies": ["ann", "bob"], "policy_mapping_fn": lambda agent_id, *args, **kwargs: agent_id}


def refused(config: Any, message: str, error: type[Exception] = ConfigError) -> None:
    with pytest.raises(error, match=message) as caught:
        PPO(env=Faulty, config={**SMALL, **config})
    checked(str(caught.value))


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({1: 2}, "config: "),
        ({"model": {1: 2}}, r"config\['model'\]: "),
        ({"evaluation_config": {1: 2}}, "evaluation_config: "),
        ({"multiagent": {"policies": {"ann": PolicySpec(config=NUMBERED)}}}, r"policies\['ann'\].config: "),
    ],
)
def test_a_key_that_is_no_string_is_refused(config: Any, where: str) -> None:
    refused(config, where + "unknown key 1, expected a known one")


@pytest.mark.parametrize("kind", [[], {}, ["ReplayBuffer"], 3])
def test_a_kind_of_replay_buffer_that_is_no_name_is_refused(kind: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"replay_buffer_config: type is .*, expected one of 'ReplayBuffer'"
    ) as caught:
        DQNConfig(replay_buffer_config={"type": kind})  # type: ignore[arg-type]
    checked(str(caught.value))


@pytest.mark.parametrize("limit", [math.nan, np.float64("nan"), -1.0])
def test_rewards_clipped_to_no_number_are_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match=r"clip_rewards is (nan|-1\.0), expected a number from 0"):
        PPOConfig(clip_rewards=limit)


@pytest.mark.parametrize("algorithm", [0, "", [], math.nan, np.array([1, 2])])
def test_an_algorithm_that_is_no_name_is_refused_and_not_taken_for_none(algorithm: Any) -> None:
    policies = {"ann": PolicySpec(algorithm=algorithm), "bob": None}
    refused(
        {"multiagent": {**TWO, "policies": policies}},
        r"policies\['ann'\]: algorithm=.*, expected one of DQN, PPO",
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda policy_id, batch: None, "returned a NoneType for policy 'ann'"),
        (lambda policy_id, batch: "no", "returned a str for policy 'ann'"),
        (lambda policy_id, batch: np.array([True, False]), "returned a ndarray for policy 'ann'"),
    ],
)
def test_a_function_that_does_not_say_who_learns_is_named(function: Any, message: str) -> None:
    with PPO(env=Faulty, config={**SMALL, "multiagent": {**TWO, "policies_to_train": function}}) as algo:
        with pytest.raises(
            ContractError, match=f"policies_to_train: {message}, expected True or False"
        ) as caught:
            algo.train()
        checked(str(caught.value))


@pytest.mark.parametrize("yes", [True, np.bool_(True), 1])
def test_a_yes_of_any_kind_lets_a_policy_learn(yes: Any) -> None:
    multiagent = {**TWO, "policies_to_train": lambda policy_id, batch: yes if policy_id == "ann" else not yes}
    with PPO(env=Faulty, config={**SMALL, "multiagent": multiagent}) as algo:
        assert set(algo.train()["info"]["learner"]) == {"ann"}


def test_a_mapping_that_returns_a_list_is_named() -> None:
    multiagent = {**TWO, "policy_mapping_fn": lambda agent_id: [agent_id]}
    refused(
        {"multiagent": multiagent}, r"policy_mapping_fn: returned \['ann'\] for agent 'ann'", ContractError
    )


@pytest.mark.parametrize("mapping", [0, "", [], {}])
def test_a_mapping_that_is_none_is_not_taken_for_none_when_a_policy_comes(mapping: Any) -> None:
    with DQN(env=Faulty) as algo:
        with pytest.raises(ConfigError, match=r"policy_mapping_fn: .*, expected a function") as caught:
            algo.add_policy("new", policy_mapping_fn=mapping)
        checked(str(caught.value))


@pytest.mark.parametrize("given", [3, "length=2", [("length", 2)], None])
def test_an_env_config_of_evaluations_that_is_no_dict_is_refused(given: Any) -> None:
    refused(
        {"evaluation_config": {"env_config": given}},
        "evaluation_config: .*: env_config is .*, expected a dict",
    )


def test_a_value_among_settings_of_evaluations_or_of_a_policy_is_told_with_its_place() -> None:
    refused(
        {"evaluation_config": {"explore": "no"}},
        r"evaluation_config: \w+: explore is 'no', expected True or False",
    )
    policies = {"ann": PolicySpec(config={"gamma": "x"}), "bob": None}
    with pytest.raises(ConfigError, match=r"^policies\['ann'\].config: PPO: gamma is 'x', expected a number"):
        PPO(env=Faulty, config={"multiagent": {**TWO, "policies": policies}})


@pytest.mark.parametrize("function", [lambda: None, lambda ioctx, port: None, object])
def test_a_function_of_something_else_is_no_input(function: Any) -> None:
    refused({"input": function}, r"input: takes \(.*\), expected one argument, the InputContext; pass")


@pytest.mark.parametrize("function", [3, "shown", [], {}])
def test_an_observation_fn_that_cannot_be_called_is_refused_when_it_is_given(function: Any) -> None:
    refused(
        {"multiagent": {"observation_fn": function}},
        "multiagent: observation_fn is a .*, expected a function",
    )


@pytest.mark.parametrize("name", ["fcnet_activation", "conv_activation"])
@pytest.mark.parametrize("value", ["rellu", False, 3, ["relu"]])
def test_an_activation_that_does_not_exist_is_refused_though_nothing_asks_for_it(
    name: str, value: Any
) -> None:
    refused(
        {"model": {name: value}},
        f"model: {name} is .*, expected one of 'tanh', 'relu', 'silu', 'elu', 'linear'",
    )


def test_a_flag_is_no_seed() -> None:
    with pytest.raises(ConfigError, match="seed is True, expected an integer from 0, or None"):
        PPOConfig(seed=True)
    assert PPOConfig(seed=np.int64(3)).seed == 3  # type: ignore[arg-type]
