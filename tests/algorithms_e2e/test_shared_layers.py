"""Policies that stand on one set of hidden layers, through whole training runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import DQN, PPO, Algorithm
from menv.errors import ConfigError, MenvError
from tests.bad_input.broken_envs import checked
from tests.inside import learner, policy_set
from tests.worlds import Several

SMALL = {"train_batch_size": 32, "seed": 1, "model": {"fcnet_hiddens": [8, 8]}}
OF_PPO = {**SMALL, "sgd_minibatch_size": 16, "num_sgd_iter": 2}
OF_DQN = {**SMALL, "train_batch_size": 16, "rollout_fragment_length": 8, "min_sample_timesteps_per_iteration": 32,
          "training_intensity": 4, "num_steps_sampled_before_learning_starts": 0}  # fmt: skip
TOGETHER = {"model": {"shared_layers": "eyes", "fcnet_activation": "tanh"}}
BOTH = {"a": PolicySpec(config=TOGETHER), "b": PolicySpec(config=TOGETHER)}


class Pair(Several):
    """ "a" chooses among three actions, "b" among two (or three); both see two numbers."""

    length = 8

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        widths, choices = (2, self.config.get("width", 2)), (3, self.config.get("choices", 2))
        self.observation_spaces = {
            a: gym.spaces.Box(-1.0, 1.0, (n,)) for a, n in zip("ab", widths, strict=True)
        }
        self.action_spaces = {a: gym.spaces.Discrete(n) for a, n in zip("ab", choices, strict=True)}

    def see(self, agent: str) -> Any:
        return np.full(self.get_observation_space(agent).shape or (), np.sin(self.at), np.float32)

    def pay(self, actions: Any) -> Any:
        return {"a": float(actions["a"]), "b": float(actions["b"] == self.at % 2)}


def config(base: Mapping[str, Any], policies: Any = BOTH, trained: Any = None, **more: Any) -> dict[str, Any]:
    multiagent = {"policies": policies, "policy_mapping_fn": to_itself, "policies_to_train": trained}
    return {**base, "multiagent": multiagent, **more}


def to_itself(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    return str(agent_id)


def shared_part(algo: Algorithm, policy_id: str) -> dict[str, bytes]:
    weights = algo.get_weights([policy_id])[policy_id]
    return {
        name: value.tobytes() for name, value in weights.items() if ".out." not in name and name != "epsilon"
    }


def heads(algo: Algorithm, policy_id: str) -> dict[str, bytes]:
    weights = algo.get_weights([policy_id])[policy_id]
    return {name: value.tobytes() for name, value in weights.items() if ".out." in name}


ALGORITHMS = [
    pytest.param(PPO, OF_PPO, id="PPO"),
    pytest.param(
        PPO, {**OF_PPO, "model": {"fcnet_hiddens": [8], "vf_share_layers": True}}, id="PPO, one trunk"
    ),
    pytest.param(PPO, {**OF_PPO, "inference": "torch"}, id="PPO by torch"),
    pytest.param(DQN, OF_DQN, id="DQN"),
    pytest.param(DQN, {**OF_DQN, "dueling": False}, id="DQN, not dueling"),
]


@pytest.mark.each_value
@pytest.mark.parametrize("choices", [2, 3])
@pytest.mark.parametrize(("algorithm", "base"), ALGORITHMS)
def test_a_step_of_one_policy_changes_the_shared_part_of_the_other(
    algorithm: type[Algorithm], base: dict[str, Any], choices: int
) -> None:
    # "b" has no rows in the batch, so that only "a" makes a step.
    with algorithm(env=Pair, config=config(base, env_config={"choices": choices})) as algo:
        before, head = shared_part(algo, "b"), heads(algo, "b")
        assert before == shared_part(algo, "a")
        batch = algo.sample()
        del batch.policy_batches["b"]
        stats = policy_set(algo).learners.learn(batch, 32)
        assert set(stats) == {"a"}
        assert shared_part(algo, "a") == shared_part(algo, "b")
        assert all(
            before[name] != value for name, value in shared_part(algo, "b").items() if "weight" in name
        )
        assert heads(algo, "b") == head


@pytest.mark.parametrize(("algorithm", "base"), ALGORITHMS)
def test_both_learn_and_stay_on_one_set_of_layers(algorithm: type[Algorithm], base: dict[str, Any]) -> None:
    with algorithm(env=Pair, config=config(base)) as algo:
        start, start_heads = shared_part(algo, "a"), {name: heads(algo, name) for name in "ab"}
        for _ in range(3):
            info = algo.train()["info"]
            assert shared_part(algo, "a") == shared_part(algo, "b")
        assert {"a", "b"} <= set(info)
        assert shared_part(algo, "a") != start
        assert all(heads(algo, name) != start_heads[name] for name in "ab")


def test_the_target_network_of_a_q_policy_does_not_follow_the_steps_of_others() -> None:
    with DQN(env=Pair, config=config({**OF_DQN, "target_network_update_freq": 10**6})) as algo:
        algo.train()
        of_b = learner(algo, "b")
        target = {name: value for name, value in of_b.state().items() if name.startswith("target.")}
        assert target
        before = shared_part(algo, "b")
        algo.train()
        assert shared_part(algo, "b") != before
        after = of_b.state()
        assert all((after[name] == value).all() for name, value in target.items())


def test_weights_that_are_set_change_the_shared_part_for_all() -> None:
    with (
        PPO(env=Pair, config=config(OF_PPO)) as algo,
        PPO(env=Pair, config=config({**OF_PPO, "seed": 2})) as other,
    ):
        for one in (algo, other):
            one.train()
        head = heads(algo, "b")
        algo.set_weights(other.get_weights(["a"]))
        assert shared_part(algo, "b") == shared_part(other, "a")
        assert (heads(algo, "b"), heads(algo, "a")) == (head, heads(other, "a"))
        given = shared_part(algo, "b")
        algo.train()
        assert shared_part(algo, "a") == shared_part(algo, "b") != given


def test_policies_of_two_algorithms_share_layers_of_the_same_names() -> None:
    policies = {
        "a": PolicySpec(
            algorithm="PPO", config={"model": {"shared_layers": "eyes", "vf_share_layers": True}}
        ),
        "b": PolicySpec(algorithm="DQN", config={**TOGETHER, "num_steps_sampled_before_learning_starts": 0}),
    }
    with PPO(env=Pair, config=config(OF_PPO, policies)) as algo:
        start = shared_part(algo, "a")
        info = algo.train()["info"]
        assert {"a", "b"} <= set(info)
        assert shared_part(algo, "a") == shared_part(algo, "b") != start


def spec(**model: Any) -> PolicySpec:
    return PolicySpec(config={"model": {"shared_layers": "eyes", **model}})


UNLIKE = r"policies\['b'\].*shared_layers.*'a'"


def two(a: Any, b: Any) -> dict[str, Any]:
    return {"policies": {"a": a, "b": b}}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "observations": ({"env_config": {"width": 3}}, UNLIKE),
    "fewer layers": (two(spec(), spec(fcnet_hiddens=[8])), UNLIKE),
    "more layers": (two(spec(fcnet_hiddens=[8]), spec()), UNLIKE),
    "activation": (two(spec(), spec(fcnet_activation="relu")), UNLIKE),
    "one trunk and two": (two(spec(), spec(vf_share_layers=True)), UNLIKE),
    "algorithms": (two(spec(), PolicySpec(algorithm="DQN", config=TOGETHER)), UNLIKE),
    "no layers": (two(spec(fcnet_hiddens=[]), spec()), "'a'"),
    "a number": (two(spec(), spec(shared_layers=3)), "shared_layers"),
    "no name": (two(spec(), spec(shared_layers="")), "shared_layers"),
    "first trained": ({"trained": ["a"]}, "policies_to_train: 'a'.*'b'"),
    "second trained": ({"trained": ["b"]}, "policies_to_train: 'b'.*'a'"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD.keys())
def test_impossible_groups_are_refused(changes: dict[str, Any], message: str) -> None:
    settings = dict(changes)
    policies, trained = settings.pop("policies", BOTH), settings.pop("trained", None)
    with pytest.raises(ConfigError, match=message) as caught:
        PPO(env=Pair, config=config(OF_PPO, policies, trained, **settings))
    checked(str(caught.value))


def test_a_function_that_freezes_one_of_a_group_is_refused_when_it_says_so() -> None:
    with PPO(env=Pair, config=config(OF_PPO, trained=lambda policy_id, batch: policy_id == "b")) as algo:
        before = shared_part(algo, "a")
        with pytest.raises(ConfigError, match="'b'"):
            algo.train()
        assert shared_part(algo, "a") == before


@pytest.mark.parametrize(
    "act",
    [
        lambda algo: algo.add_policy("c", PolicySpec(config=TOGETHER), policies_to_train=["a", "b"]),
        lambda algo: algo.add_policy("c", PolicySpec(), policies_to_train=["a", "c"]),
        lambda algo: algo.add_policy("c", spec(fcnet_hiddens=[4])),
    ],
)
def test_an_impossible_addition_changes_nothing(act: Any) -> None:
    with PPO(env=Pair, config=config(OF_PPO, env_config={"choices": 3})) as algo:
        with pytest.raises(MenvError, match="eyes"):
            act(algo)
        assert set(algo.get_weights()) == {"a", "b"}
        algo.add_policy("c", PolicySpec(config=TOGETHER))
        algo.train()
        assert shared_part(algo, "a") == shared_part(algo, "b") == shared_part(algo, "c")
