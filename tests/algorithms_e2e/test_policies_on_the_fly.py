"""Policies that come and go while an algorithm trains."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from torch import nn

from menv import DefaultCallbacks, PolicySpec
from menv.algorithms import DQN, PPO, Algorithm, PPOPolicy
from menv.errors import ConfigError, MenvError
from menv.multi_agent_env import AgentDict, StepDicts
from tests.algorithms_e2e.comings import Comings
from tests.algorithms_e2e.looking import OwnLoss
from tests.bad_input.broken_envs import checked
from tests.inside import policy_set
from tests.worlds import Several

LENGTH = 7
SMALL = {"rollout_fragment_length": 10, "train_batch_size": 10, "sgd_minibatch_size": 10, "num_sgd_iter": 1}

SMALL_DQN = {
    "num_steps_sampled_before_learning_starts": 0,
    "min_sample_timesteps_per_iteration": 20,
    "train_batch_size": 8,
    "training_intensity": 1,
}


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


def test_a_copy_is_none_of_the_live_weights() -> None:
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
        with pytest.raises(ConfigError, match="'two' does not exist"):
            algo.get_policy("two")
        batch = algo.sample()
        assert set(batch.policy_batches) == {"one"}
        assert (np.bincount(batch["one"]["obs"][:, 0].astype(int), minlength=3)[2:] % 2 == 0).all()
        algo.add_policy("two", policy_mapping_fn=to(a="two", b="one"))
        algo.sample()
        batch = algo.sample()
        assert set(batch["two"]["agent_index"]) == {0}
        algo.train()


def test_who_returns_to_an_episode_is_answered_by_its_policy_and_by_no_other_one_of_that_name() -> None:
    class Returning(Duo):
        """ "b" is gone at odd env steps."""

        def step(self, action_dict: AgentDict) -> StepDicts:
            obs, rewards, terminateds, truncateds, infos = super().step(action_dict)
            if self.at % 2:
                del rewards["b"]
                return obs, {"a": 1.0}, {**terminateds, "b": True}, truncateds, infos
            return obs, {"a": 1.0}, terminateds, truncateds, infos

    multiagent = {"policies": ["one", "two"], "policy_mapping_fn": to(a="one", b="two")}
    with PPO(env=Returning, config={**SMALL, "seed": 1, "multiagent": multiagent}) as algo:
        algo.train()
        algo.remove_policy("two", policy_mapping_fn=to(a="one", b="one"))
        algo.add_policy("two", PolicySpec(config={"model": {"fcnet_hiddens": [8], "use_lstm": True}}))
        assert all(set(algo.sample().policy_batches) == {"one"} for _ in range(3))


def test_a_policy_that_comes_after_another_one_went_draws_none_of_the_others_orders(tmp_path: Path) -> None:
    def added(algo: Algorithm, policy_id: str) -> None:
        algo.add_policy(policy_id, policy_mapping_fn=to(a="default_policy", b=policy_id))
        for _ in range(2):
            algo.train()

    def seeds(algo: Algorithm) -> dict[str, int]:
        return {name: seed for name, (seed, _) in policy_set(algo).learners.state().items()}

    with DQN(env=Duo, config={**SMALL_DQN, "seed": 1}) as algo:
        algo.train()
        for policy_id in ("second", "third"):
            added(algo, policy_id)
        algo.remove_policy("second")
        added(algo, "fourth")
        found = seeds(algo)
        assert len(set(found.values())) == len(found) == 3
        algo.save(tmp_path)
        again = {"multiagent": {"policy_mapping_fn": to(a="default_policy", b="fourth")}}
        with DQN.from_checkpoint(tmp_path, again, env=Duo) as resumed:
            for run in (algo, resumed):
                run.remove_policy("fourth", policy_mapping_fn=to(a="default_policy", b="third"))
                added(run, "fifth")
            assert seeds(resumed) == seeds(algo)


class Rich(Duo):
    """Pays what no gradient can be made of."""

    def pay(self, actions: Any) -> Any:
        return {"a": 1e30, "b": 1e30}


class Noting(DefaultCallbacks):
    def on_learn_on_batch(self, *, result: dict[str, Any], **kwargs: Any) -> None:
        result["noted"] = 1.0


def test_nothing_of_a_policy_that_went_is_kept_or_held_against_the_next_one_of_its_name() -> None:
    config = {**SMALL, "seed": 1, "normalize_values": False, "callbacks": Noting}
    with PPO(env=Rich, config=config) as algo:
        with pytest.warns(RuntimeWarning, match="default_policy"):
            algo.train()
        for _ in range(2):
            algo.add_policy("second", policy_mapping_fn=to(a="default_policy", b="second"))
            with pytest.warns(RuntimeWarning, match="policy 'second': a gradient"):
                info = [algo.train() for _ in range(2)][-1]["info"]
            assert info["learner"]["second"]["custom_metrics"] == {"noted": 1.0}
            algo.remove_policy("second", policy_mapping_fn=to(a="default_policy", b="default_policy"))
        assert policy_set(algo).learners.custom_metrics == {}


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


def test_a_vectorised_environment_goes_on_with_two_policies_and_with_one() -> None:
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
        (lambda algo: algo.add_policy("a/b"), "id 'a/b', expected a string of at most 200 bytes without any of"),
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


FLAT: dict[str, Any] = {"fcnet_hiddens": [8]}
CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 2,
    "train_batch_size": 80,
    "sgd_minibatch_size": 64,
    "num_sgd_iter": 1,
    "seed": 1,
    "model": FLAT,
}


class Broken(PPOPolicy):
    def make_modules(self) -> dict[str, nn.Module]:
        raise ValueError("no such file")


def new(*args: Any, **kwargs: Any) -> str:
    return "new"


REFUSED = [
    (PolicySpec(policy_class=Broken), ValueError, "no such file"),
    # This one would have had networks of its own.
    (
        PolicySpec(policy_class=OwnLoss, config={"model": {"use_lstm": True}}),
        ConfigError,
        "on a recurrent network",
    ),
]


@pytest.mark.each_value
@pytest.mark.parametrize(("spec", "error", "message"), REFUSED)
@pytest.mark.parametrize("model", [FLAT, {**FLAT, "shared_layers": "all"}], ids=str)
def test_a_class_that_refuses_leaves_nothing_behind(
    spec: PolicySpec, error: type[Exception], message: str, model: dict[str, Any]
) -> None:
    if "shared_layers" in model and error is ConfigError:
        spec = PolicySpec(
            policy_class=OwnLoss, config={"model": {"use_lstm": True, "shared_layers": "another"}}
        )
    with PPO(env=Comings, config={**CONFIG, "model": model}) as algorithm:
        with pytest.raises(error, match=message):
            algorithm.add_policy("new", spec, policy_mapping_fn=new)
        assert list(algorithm.get_weights()) == ["default_policy"] == list(algorithm.inference)
        assert list(algorithm.train()["info"]) == ["default_policy", "learner"]

        algorithm.add_policy("new", PolicySpec(policy_class=OwnLoss), policy_mapping_fn=new)
        before = algorithm.get_weights("new")["new"]
        for _ in range(3):
            result = algorithm.train()
        after = algorithm.get_weights("new")["new"]
        # What acts is what has learned.
        algorithm.set_weights({"new": {name: value * 0 for name, value in after.items()}})
        algorithm.sample()
        drawn_from = algorithm.sample()["new"]["action_dist_inputs"]
    assert "new" in result["info"]
    assert all((before[name] != after[name]).any() for name in before)
    assert not drawn_from.any()
