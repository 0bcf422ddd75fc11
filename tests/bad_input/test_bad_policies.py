"""Policies that cannot be are refused in one clear line, when an algorithm is built and while it trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import menv.algorithms
from menv import Policy, PolicySpec
from menv.algorithms import DQN, PPO
from menv.envs import TwoStepGame
from menv.errors import ConfigError, ContractError
from tests.algorithms_e2e.test_policies_on_the_fly import Duo, to
from tests.bad_input.broken_envs import checked
from tests.inside import learner
from tests.worlds import Alone, like

SMALL = {"train_batch_size": 16, "sgd_minibatch_size": 16, "num_sgd_iter": 1}


class Steering(Alone):
    """One step of some action space."""

    length = 1

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.action_space = config["action_space"]


def refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build()
    checked(str(caught.value))


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("A3C", "algorithm='A3C'.*DQN, PPO"),
        ("dqn", "algorithm='dqn'.*'DQN'"),
        ("PP0", "algorithm='PP0'.*'PPO'"),
        (DQN, "algorithm=.*DQN"),
        (3, "algorithm=3"),
    ],
)
def test_an_algorithm_that_does_not_exist_is_named(algorithm: Any, message: str) -> None:
    policies = {"policies": {"p": PolicySpec(algorithm=algorithm)}}
    call = lambda: PPO(env="CartPole-v1", config={**SMALL, "multiagent": policies})  # noqa: E731
    refused(call, rf"policies\['p'\]: {message}")


def test_an_algorithm_that_does_not_exist_cannot_be_imported() -> None:
    with pytest.raises(AttributeError, match="A3C"):
        _ = menv.algorithms.A3C


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(-1.0, 1.0, (2,)),
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Discrete(2))),
    ],
)
def test_actions_that_have_no_q_values_are_sent_to_ppo(space: Any) -> None:
    message = rf"policies\['default_policy'\], DQN: .*{type(space).__name__}.*PPO"
    refused(lambda: DQN(env=Steering, config={"env_config": {"action_space": space}}), message)
    with PPO(env=Steering, config={**SMALL, "env_config": {"action_space": space}}) as algo:
        algo.sample()


def test_a_group_of_agents_is_sent_to_qmix() -> None:
    def make(config: Any) -> Any:
        return TwoStepGame(config).with_agent_groups({"both": ["agent_1", "agent_2"]})

    refused(lambda: DQN(env=make), "Tuple.*QMIX")


@pytest.mark.parametrize(
    "trained", [["one", "three"], ("three",), {"three"}, "three", {"three": True}, iter(["three"])]
)
def test_unknown_ids_in_policies_to_train_are_named(trained: Any) -> None:
    multiagent = {
        "policies": ["one", "two"], "policy_mapping_fn": to(a="one", b="two"), "policies_to_train": trained,
    }  # fmt: skip
    message = r"policies_to_train: \['three'\].*\['one', 'two'\]"
    refused(lambda: PPO(env=Duo, config={**SMALL, "multiagent": multiagent}), message)


@pytest.mark.parametrize("answer", [1, np.array(1)], ids=["int", "array"])
def test_one_action_that_is_in_no_list_is_named(answer: Any) -> None:
    one = like(Policy, compute_actions=lambda self, obs_batch, *args, **kwargs: (answer, [], {}))
    multiagent = {"policies": {"p": PolicySpec(policy_class=one)}, "policy_mapping_fn": lambda agent_id: "p"}
    with (
        PPO(env="CartPole-v1", config={**SMALL, "multiagent": multiagent}) as algo,
        pytest.raises(ContractError, match="'p'") as caught,
    ):
        algo.sample()
    checked(str(caught.value))


def duo_of_two(inference: str = "onnx", **model: Any) -> Any:
    multiagent = {"policies": ["one", "two"], "policy_mapping_fn": to(a="one", b="two")}
    return PPO(
        env=Duo, config={**SMALL, "seed": 1, "multiagent": multiagent, "model": model, "inference": inference}
    )


def test_weights_of_which_some_are_refused_change_no_policy() -> None:
    with duo_of_two() as algo:
        algo.train()
        before = algo.get_weights()
        good = {name: value + 1.0 for name, value in before["one"].items()}
        lacking = dict(list(before["two"].items())[1:])
        with pytest.raises(ConfigError, match="'two'"):
            algo.set_weights({"one": good, "two": lacking})
        assert repr(algo.get_weights()) == repr(before)
        algo.set_weights({"one": good, "two": good})
        assert repr(algo.get_weights()) == repr({"one": good, "two": good})


WEIGHTS: dict[str, tuple[Any, str]] = {
    "no dict": (lambda good: None, "set_weights: NoneType"),
    "no dict of a policy": (lambda good: {"one": None}, "set_weights: NoneType"),
    "a list of a policy": (lambda good: {"one": [1.0]}, "set_weights: list"),
    "of a stranger": (lambda good: {"stranger": {}}, "policy 'stranger'"),
    "none": (lambda good: {"one": {}}, "policy 'one': .*'policy.0.bias'"),
    "a name that is not a string": (
        lambda good: {"one": {**good, 1: np.zeros(2)}},
        r"policy 'one': .* 1 .*\(2,\)",
    ),
    **{
        f"{value!r:.20}": (lambda good, value=value: {"one": {**good, "policy.0.bias": value}}, message)
        for value, message in [
            ("none", "weight 'policy.0.bias' .*str.*float32"),
            (None, "weight 'policy.0.bias'"),
            ([[1.0], [1.0, 2.0]], "weight 'policy.0.bias' .*list"),
            (torch.ones(64, requires_grad=True), "weight 'policy.0.bias' .*Tensor"),
            *((np.full(64, number), "'policy.0.bias' .*(NaN|-?inf)") for number in (np.nan, -np.inf, 1e300)),
            ([np.inf] * 64, "'policy.0.bias' .*inf"),
            (np.full(64, 1j), "'policy.0.bias' .*complex"),
        ]
    },
}


@pytest.mark.parametrize("inference", ["onnx", "torch"])
@pytest.mark.parametrize("case", WEIGHTS)
def test_impossible_weights_are_refused_and_change_nothing(case: str, inference: str) -> None:
    make, message = WEIGHTS[case]
    with duo_of_two(inference=inference) as algo:
        before = algo.get_weights()
        given = make(before["one"])
        with pytest.raises(ConfigError, match=message) as caught:
            algo.set_weights(given)
        assert "\n" not in str(caught.value)
        if "policy.0.bias" in message:
            with pytest.raises(ConfigError, match=message):
                algo.get_policy("one").set_weights(given["one"])
        assert repr(algo.get_weights()) == repr(before)


def test_of_a_group_that_shares_layers_the_last_weights_hold_for_acting_and_for_learning() -> None:
    with duo_of_two(shared_layers="both", vf_share_layers=True) as algo:
        algo.train()
        before = algo.get_weights()
        weights = [{name: value + plus for name, value in before["one"].items()} for plus in (1.0, 2.0)]
        algo.set_weights({"one": weights[0], "two": weights[1]})
        now = algo.get_weights()
        for name in now:
            learned = learner(algo, name).weights()
            assert all(np.array_equal(learned[part], now[name][part]) for part in learned)
        heads = [name for name in before["one"] if not np.array_equal(now["one"][name], now["two"][name])]
        assert heads
        assert all(np.array_equal(now["two"][name], weights[1][name]) for name in now["two"])
        assert all(np.array_equal(now["one"][name], weights[0][name]) for name in heads)
