"""Policies that cannot be are refused in one clear line, when an algorithm is built and while it trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import menv.algorithms
from menv import Policy, PolicySpec
from menv.algorithms import DQN, PPO
from menv.envs import TwoStepGame
from menv.errors import ConfigError, ContractError
from tests.algorithms_e2e.test_policies_on_the_fly import Duo, to
from tests.bad_input.broken_envs import checked

SMALL = {"train_batch_size": 16, "sgd_minibatch_size": 16, "num_sgd_iter": 1}


class Steering(gym.Env[Any, Any]):
    """One step of some action space."""

    def __init__(self, config: Any) -> None:
        self.low, high = np.full(2, -1.0, np.float32), np.ones(2, np.float32)
        self.observation_space = gym.spaces.Box(self.low, high)
        self.action_space = config["action_space"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.low, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.low, 0.0, True, False, {}


def refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build()
    checked(str(caught.value))


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("A3C", r"policies\['p'\]: algorithm='A3C', expected one of .*DQN, PPO"),
        ("dqn", r"algorithm='dqn', expected one of .*did you mean 'DQN'\?"),
        ("PP0", r"algorithm='PP0', expected one of .*did you mean 'PPO'\?"),
        (DQN, r"algorithm=.*DQN.*, expected one of .*DQN, PPO"),
        (3, r"algorithm=3, expected one of "),
    ],
)
def test_an_algorithm_that_does_not_exist_is_named(algorithm: Any, message: str) -> None:
    policies = {"policies": {"p": PolicySpec(algorithm=algorithm)}}
    refused(lambda: PPO(env="CartPole-v1", config={**SMALL, "multiagent": policies}), message)


def test_an_algorithm_that_does_not_exist_cannot_be_imported() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'A3C', expected one of .*'DQN'.*'PPO'"):
        _ = menv.algorithms.A3C


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (gym.spaces.Box(-1.0, 1.0, (2,)), "continuous"),
        (gym.spaces.MultiDiscrete([2, 3]), "MultiDiscrete"),
        (gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Discrete(2))), "Tuple"),
    ],
)
def test_actions_that_have_no_q_values_are_sent_to_ppo(space: Any, kind: str) -> None:
    message = rf"policies\['default_policy'\], DQN: {kind} action space .*, expected Discrete; .* with PPO$"
    refused(lambda: DQN(env=Steering, config={"env_config": {"action_space": space}}), message)
    with PPO(env=Steering, config={**SMALL, "env_config": {"action_space": space}}) as algo:
        algo.sample()


def test_a_group_of_agents_is_sent_to_qmix() -> None:
    def make(config: Any) -> Any:
        return TwoStepGame(config).with_agent_groups({"both": ["agent_1", "agent_2"]})

    refused(lambda: DQN(env=make), r"expected Discrete; train the policy of a group of agents with QMIX")


def test_the_policy_whose_actions_do_not_fit_is_named_among_others() -> None:
    multiagent = {
        "policies": {"good": PolicySpec(), "bad": PolicySpec(algorithm="DQN")},
        "policy_mapping_fn": lambda agent_id, episode, worker, **kwargs: "bad",
    }
    config = {"env_config": {"action_space": gym.spaces.Box(-1.0, 1.0, (2,))}, "multiagent": multiagent}
    refused(lambda: PPO(env=Steering, config=config), r"policies\['bad'\], DQN: continuous action space")


@pytest.mark.parametrize(
    "trained", [["one", "three"], ("three",), {"three"}, "three", {"three": True}, iter(["three"])]
)
def test_unknown_ids_in_policies_to_train_are_named(trained: Any) -> None:
    multiagent = {
        "policies": ["one", "two"], "policy_mapping_fn": to(a="one", b="two"), "policies_to_train": trained,
    }  # fmt: skip
    message = r"policies_to_train: \['three'\] are not among the policies, expected ids of \['one', 'two'\]"
    refused(lambda: PPO(env=Duo, config={**SMALL, "multiagent": multiagent}), message)


def test_a_policy_of_ones_own_whose_constructor_takes_something_else_is_named() -> None:
    class Plain(Policy):
        def __init__(self) -> None:
            pass

    policies = {"policies": {"plain": PolicySpec(policy_class=Plain)}}
    message = r"policies\['plain'\]: Plain.__init__.* cannot be called .*expected \(self, observation_space, "
    refused(lambda: PPO(env=Duo, config={**SMALL, "multiagent": policies}), message)


@pytest.mark.parametrize("answer", [1, np.array(1)], ids=["int", "array"])
def test_one_action_that_is_in_no_list_is_named(answer: Any) -> None:
    class One(Policy):
        def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
            return answer, [], {}

    multiagent = {"policies": {"p": PolicySpec(policy_class=One)}, "policy_mapping_fn": lambda agent_id: "p"}
    with (
        PPO(env="CartPole-v1", config={**SMALL, "multiagent": multiagent}) as algo,
        pytest.raises(ContractError, match="'p': answered a ") as caught,
    ):
        algo.sample()
    checked(str(caught.value))


def duo_of_two(**model: Any) -> Any:
    multiagent = {"policies": ["one", "two"], "policy_mapping_fn": to(a="one", b="two")}
    return PPO(env=Duo, config={**SMALL, "seed": 1, "multiagent": multiagent, "model": model})


def test_weights_of_which_some_are_refused_change_no_policy() -> None:
    with duo_of_two() as algo:
        algo.train()
        before = algo.get_weights()
        good = {name: value + 1.0 for name, value in before["one"].items()}
        lacking = dict(list(before["two"].items())[1:])
        with pytest.raises(ConfigError, match=r"policy 'two': .* do not fit the architecture"):
            algo.set_weights({"one": good, "two": lacking})
        assert repr(algo.get_weights()) == repr(before)
        algo.set_weights({"one": good, "two": good})
        assert repr(algo.get_weights()) == repr({"one": good, "two": good})


def test_of_a_group_that_shares_layers_the_last_weights_hold_for_acting_and_for_learning() -> None:
    with duo_of_two(shared_layers="both", vf_share_layers=True) as algo:
        algo.train()
        before = algo.get_weights()
        weights = [{name: value + plus for name, value in before["one"].items()} for plus in (1.0, 2.0)]
        algo.set_weights({"one": weights[0], "two": weights[1]})
        now = algo.get_weights()
        for name, learner in algo._policy_set.learners._learners.items():
            learned = learner.weights()
            assert all(np.array_equal(learned[part], now[name][part]) for part in learned)
        heads = [name for name in before["one"] if not np.array_equal(now["one"][name], now["two"][name])]
        assert heads
        assert all(np.array_equal(now["two"][name], weights[1][name]) for name in now["two"])
        assert all(np.array_equal(now["one"][name], weights[0][name]) for name in heads)


def test_complex_weights_are_refused() -> None:
    with duo_of_two() as algo:
        weights = {name: value + 1j for name, value in algo.get_weights()["one"].items()}
        refused(
            lambda: algo.set_weights({"one": weights}),
            r"cannot be read as float32 \(its numbers are complex\)",
        )
