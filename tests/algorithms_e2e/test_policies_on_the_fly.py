"""Policies that come and go while an algorithm trains."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import DefaultCallbacks, PolicySpec
from menv.algorithms import PPO, Algorithm
from menv.errors import ConfigError, MenvError
from tests.bad_input.broken_envs import checked
from tests.worlds import Several

LENGTH = 7
SMALL = {"rollout_fragment_length": 10, "train_batch_size": 10, "sgd_minibatch_size": 10, "num_sgd_iter": 1}


class Duo(Several):
    """ "a" and "b" see the number of the episode and the env step."""

    observation_space = gym.spaces.Box(0.0, 1000.0, (2,), np.float32)
    action_space, length = gym.spaces.Discrete(3), LENGTH

    def see(self, agent: Any) -> Any:
        return np.array([self.episode, self.at], np.float32)

    def pay(self, actions: Any) -> Any:
        return {"a": 1.0, "b": 2.0}


def to(**seats: str) -> Any:
    return lambda agent_id, episode, worker, **kwargs: seats[agent_id]


def weights_of(algo: Algorithm, policy_id: str) -> bytes:
    weights: Mapping[str, Any] = algo.get_weights([policy_id])[policy_id]
    return b"".join(weights[name].tobytes() for name in sorted(weights))


def test_a_new_mapping_holds_for_new_episodes_only() -> None:
    with PPO(env=Duo, config={**SMALL, "seed": 1}) as algo:
        algo.train()
        algo.add_policy("second", policy_mapping_fn=to(a="default_policy", b="second"))
        # 10 of the second episode's 14 env steps are over; its agents keep what they have.
        batch = algo.sample()
        assert batch["default_policy"]["obs"][:, 0].min() == 1.0
        assert batch["second"]["obs"][:, 0].min() == 2.0
        assert set(batch["second"]["agent_index"]) == {1}
        both = batch["default_policy"]["obs"][batch["default_policy"]["obs"][:, 0] == 1.0]
        assert sorted(both[:, 1].tolist()) == sorted([3.0, 4, 5, 6] * 2)
        info = algo.train()["info"]
        assert {"default_policy", "second"} <= set(info)


def test_copied_weights_are_separate_from_the_live_ones() -> None:
    with PPO(env=Duo, config={**SMALL, "seed": 1}) as algo:
        algo.train()
        algo.add_policy(
            "old", policy_mapping_fn=to(a="default_policy", b="old"), policies_to_train=["default_policy"]
        )
        algo.set_weights({"old": algo.get_weights(["default_policy"])["default_policy"]})
        before = weights_of(algo, "default_policy")
        assert weights_of(algo, "old") == before
        for _ in range(3):
            result = algo.train()
        assert weights_of(algo, "old") == before != weights_of(algo, "default_policy")
        assert "old" not in result["info"]
        assert result["policy_reward_mean"].keys() == {"default_policy", "old"}


def test_a_removed_policy_answers_to_the_end_of_its_episodes_and_its_id_is_free_again() -> None:
    multiagent = {"policies": ["one", "two"], "policy_mapping_fn": to(a="one", b="two")}
    with PPO(env=Duo, config={**SMALL, "seed": 1, "multiagent": multiagent}) as algo:
        algo.train()
        algo.remove_policy("two", policy_mapping_fn=to(a="one", b="one"))
        with pytest.raises(ConfigError, match="'two'"):
            algo.get_policy("two")
        batch = algo.sample()
        assert set(batch.policy_batches) == {"one"}
        assert (np.bincount(batch["one"]["obs"][:, 0].astype(int), minlength=3)[2:] % 2 == 0).all()
        algo.add_policy("two", policy_mapping_fn=to(a="two", b="one"))
        algo.sample()
        batch = algo.sample()
        assert set(batch["two"]["agent_index"]) == {0}
        algo.train()


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_policy_that_is_removed_while_others_learn_is_gone_afterwards(elsewhere: bool) -> None:
    threads: list[threading.Thread] = []

    class Removing(DefaultCallbacks):
        def on_algorithm_init(self, *, algorithm: Algorithm, **kwargs: Any) -> None:
            self.algorithm = algorithm

        def on_learn_on_batch(self, **kwargs: Any) -> None:
            if threads:
                return
            mapping = to(a="one", b="one")
            remove = partial(self.algorithm.remove_policy, "two", policy_mapping_fn=mapping)
            threads.append(threading.Thread(target=remove))
            if not elsewhere:
                remove()
                return
            threads[0].start()
            threads[0].join(0.5)

    multiagent = {"policies": ["one", "two"], "policy_mapping_fn": to(a="one", b="two")}
    config = {**SMALL, "seed": 1, "multiagent": multiagent, "callbacks": Removing}
    with PPO(env=Duo, config=config) as algo:
        # Another thread waits until both have learned.
        assert set(algo.train()["info"]) - {"learner"} == ({"one", "two"} if elsewhere else {"one"})
        if elsewhere:
            threads[0].join(60)
        assert set(algo.get_weights()) == {"one"}
        assert set(algo.train()["info"]) - {"learner"} == {"one"}


def test_a_vectorised_environment_continues_with_two_policies_and_with_one() -> None:
    def make(context: Any) -> Any:
        return gym.make_vec("CartPole-v1", 4)

    with PPO(env=make, config={**SMALL, "rollout_fragment_length": 20}) as algo:
        algo.train()
        before = algo.sample().env_steps()
        draw = lambda agent, episode, worker: ["default_policy", "second"][int(episode.rng.integers(2))]  # noqa: E731
        algo.add_policy("second", policy_mapping_fn=draw)
        rows = [algo.sample() for _ in range(5)]
        assert all(batch.env_steps() >= before - 4 for batch in rows)
        seen = {policy_id for batch in rows for policy_id in batch.policy_batches}
        assert seen == {"default_policy", "second"}
        algo.remove_policy("second", policy_mapping_fn=lambda agent: "default_policy")
        assert algo.train()["episodes_this_iter"] >= 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda algo: algo.add_policy("one"), "add_policy"),
        (lambda algo: algo.add_policy("a/b"), "'a/b'"),
        (
            lambda algo: algo.add_policy("new", policy_mapping_fn=to(a="newer", b="one")),
            "policy_mapping_fn"),
        (
            lambda algo: algo.add_policy("new", PolicySpec(algorithm="PPPO")),
            "'PPPO'"),
        (lambda algo: algo.remove_policy("three"), "remove_policy"),
        (lambda algo: algo.remove_policy("two"), "policy_mapping_fn"),
        (
            lambda algo: algo.remove_policy("two", policy_mapping_fn=to(a="one", b="one"), policies_to_train=["two"]),
            "policies_to_train"),
    ],
)  # fmt: skip
def test_a_change_that_cannot_work_is_named_and_changes_nothing(change: Any, message: str) -> None:
    multiagent = {"policies": ["one", "two"], "policy_mapping_fn": to(a="one", b="two")}
    with PPO(env=Duo, config={**SMALL, "seed": 1, "multiagent": multiagent}) as algo:
        algo.train()
        with pytest.raises(MenvError, match=message) as caught:
            change(algo)
        checked(str(caught.value))
        assert set(algo.sample().policy_batches) == {"one", "two"}
        assert {"one", "two"} <= set(algo.train()["info"])


# A policy whose class refuses to be created: nothing of it is left, and its id may be used again.


def new(*args: Any, **kwargs: Any) -> str:
    return "new"
