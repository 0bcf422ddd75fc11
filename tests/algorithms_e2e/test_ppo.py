"""PPO from the outside: sample, train, act, stop; every kind of space; repeatable under a seed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.errors import CallOrderError, ConfigError
from tests.algorithms_e2e.test_devices import OWN, STOCK, trained
from tests.sampling.reference_envs import Together
from tests.worlds import Alone, like

TINY: dict[str, Any] = {
    "train_batch_size": 64,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 2,
    "num_envs_per_worker": 4,
}


def tiny(**more: Any) -> dict[str, Any]:
    return {**TINY, **more}


def test_a_result_has_the_classic_keys() -> None:
    with PPO(env="CartPole-v1", config=tiny(seed=1, train_batch_size=400)) as algorithm:
        result = algorithm.train()
    for key in ("mean", "min", "max"):
        assert isinstance(dict(result)[f"episode_reward_{key}"], float)
    assert result["episode_reward_min"] <= result["episode_reward_mean"] <= result["episode_reward_max"]
    assert result["episode_len_mean"] == result["episode_reward_mean"]
    assert result["episodes_this_iter"] == len(result["hist_stats"]["episode_reward"]) > 0
    assert result["policy_reward_mean"] == {"default_policy": result["episode_reward_mean"]}
    assert (
        result["num_env_steps_sampled"]
        == result["timesteps_total"]
        == result["num_agent_steps_sampled"]
        == 400
    )
    info = result["info"]["default_policy"]
    for key in ("policy_loss", "vf_loss", "entropy", "kl", "vf_explained_var", "total_loss", "cur_lr"):
        assert np.isfinite(info[key])
    assert 0 < info["entropy"] <= np.log(2) + 1e-6


def test_sampler_keys_and_learner_statistics_are_found_at_both_classic_places() -> None:
    with PPO(env="CartPole-v1", config=tiny()) as algorithm:
        result = algorithm.train()
    again = result["sampler_results"]
    assert {
        "episode_reward_mean",
        "policy_reward_mean",
        "hist_stats",
        "episode_media",
        "sampler_perf",
    } <= set(again)
    assert all(dict(result)[key] == value for key, value in again.items())
    assert (again["num_faulty_episodes"], again["episode_media"]) == (0, {})
    stats = result["info"]["learner"]["default_policy"]["learner_stats"]
    assert stats == result["info"]["default_policy"]
    assert np.isfinite(stats["policy_loss"])


def test_sampling_learns_nothing_and_its_columns_are_ready_to_learn_from() -> None:
    with PPO(env="CartPole-v1", config=tiny(rollout_fragment_length=16, seed=0)) as algorithm:
        before = algorithm.get_weights()["default_policy"]
        batch = algorithm.sample()
        after = algorithm.get_weights()["default_policy"]
    assert all((before[name] == after[name]).all() for name in before)
    assert (batch.env_steps(), batch.agent_steps()) == (64, batch["default_policy"].count)
    part = batch["default_policy"]
    columns = """obs new_obs actions rewards terminateds truncateds t eps_id unroll_id agent_index env_id prev_actions
        prev_rewards action_logp action_dist_inputs vf_preds advantages value_targets infos action_prob"""
    for name in columns.split():
        assert len(part[name]) == part.count, name
    np.testing.assert_allclose(part["value_targets"], part["advantages"] + part["vf_preds"], rtol=1e-5)
    logits = part["action_dist_inputs"].astype(np.float64)
    logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(
        part["action_logp"], np.take_along_axis(logp, part["actions"][:, None], 1)[:, 0], atol=1e-5
    )


class Varied(Alone):
    """Episodes of 5 env steps that end in turn by termination and truncation; every observation differs."""

    observation_space, length = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), 5

    def see(self) -> Any:
        return np.array([self.episode, self.at / 3], np.float32)

    def pay(self, action: Any) -> float:
        self.cut = self.episode % 2 == 1
        return float(self.at * (1 + self.episode))


def test_a_policys_own_gamma_and_lambda_are_used_for_its_rows() -> None:
    policies = {
        "near": (None, None, None, {"gamma": 0.0}),
        "far": (None, None, None, {"gamma": 1.0, "lambda": 1.0}),
    }
    sections = {"policies": policies, "policy_mapping_fn": lambda agent: ["near", "far"][agent]}
    config = {"rollout_fragment_length": 10, "multiagent": sections}
    with PPO(env=lambda context: Together(2, 5), config=config) as algorithm:
        batch = algorithm.sample()
    np.testing.assert_allclose(batch["near"]["value_targets"], 1.0, atol=1e-5)
    np.testing.assert_allclose(batch["far"]["value_targets"], [5, 4, 3, 2, 1] * 2, atol=1e-4)


def test_clipped_rewards_are_learned_from_and_metrics_keep_the_environments_own() -> None:
    config = tiny(clip_rewards=True, gamma=0.0, train_batch_size=40, num_envs_per_worker=1)
    with PPO(env=Varied, config=config) as algorithm:
        part = algorithm.sample()["default_policy"]
        assert set(part["rewards"]) == {1.0}
        np.testing.assert_allclose(part["value_targets"], 1.0, atol=1e-5)
        result = algorithm.train()
    assert result["episode_reward_min"] == 15.0


def test_greedy_actions_are_repeated_and_explored_ones_vary() -> None:
    obs = np.zeros(4, np.float32)
    with PPO(env="CartPole-v1", config=tiny(seed=0)) as algorithm:
        assert len({int(algorithm.compute_single_action(obs, explore=False)) for _ in range(20)}) == 1
        assert len({int(algorithm.compute_single_action(obs)) for _ in range(60)}) == 2
        policy = algorithm.get_policy()
        actions, states, fetches = policy.compute_actions([obs] * 5, explore=False)
        assert len(actions) == 5
        assert states == []
        assert fetches["action_logp"].shape == (5,)


def test_weights_travel_by_policy_id_and_learners_continue_from_them() -> None:
    with (
        PPO(env="CartPole-v1", config=tiny(seed=1)) as first,
        PPO(env="CartPole-v1", config=tiny(seed=2)) as second,
    ):
        for algorithm in (first, second):
            algorithm.train()
        second.set_weights(first.get_weights(["default_policy"]))
        theirs, ours = first.get_weights()["default_policy"], second.get_weights()["default_policy"]
        assert all((theirs[name] == ours[name]).all() for name in theirs)
        obs = np.array([0.1, -0.2, 0.3, 0.4], np.float32)
        logp = [
            one.get_policy().compute_actions([obs], explore=False)[2]["action_logp"]
            for one in (first, second)
        ]
        np.testing.assert_array_equal(*logp)
        second.train()
        trained = second.get_weights()["default_policy"]
        assert max(np.abs(trained[name] - ours[name]).max() for name in ours) < 0.05
        with pytest.raises(ConfigError):
            second.set_weights({"default_policy": {"layer": np.zeros(3)}})
        with pytest.raises(ConfigError, match="'other'"):
            second.set_weights({"other": theirs})


def test_a_stopped_algorithm_says_so_and_closes_its_environments_once() -> None:
    closed: list[int] = []

    closes = like(Alone, close=lambda self: closed.append(1))
    algorithm = PPO(env=lambda context: closes(), config=TINY)
    algorithm.sample()
    algorithm.stop()
    algorithm.stop()
    assert closed == [1] * 4
    for call in (algorithm.sample, algorithm.train):
        with pytest.raises(CallOrderError, match=r"sample|train"):
            call()


# A network is built once and lives as long as its learner: each gradient step is what a new one would give.


NOT_ASKED = {"a loss and modules": "default_policy.value.", "custom dqn": "default_policy.value."}
"""Layers that a kind has and does not use: its critic is another one, or it learns Q-values alone."""


@pytest.mark.slow_unless("gru", "dqn", "torch acts for a group", "a loss and modules")
@pytest.mark.parametrize("kind", [*STOCK, *OWN])
def test_every_weight_is_learned(kind: str) -> None:
    begun, after, later = (trained(kind, iterations) for iterations in (0, 1, 3))
    idle = NOT_ASKED.get(kind, "default_policy.epsilon")
    for name in sorted(name for name in begun if not name.startswith((idle, "default_policy.epsilon"))):
        assert not np.array_equal(begun[name], after[name]), name
        assert not np.array_equal(after[name], later[name]), name
