"""A policy's own `loss` and modules: what they are given and that they learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from menv import PolicySpec
from menv.algorithms import PPO, PPOPolicy
from menv.envs import TwoStepGame
from tests.algorithms_e2e.looking import WithCritic
from tests.algorithms_e2e.shifts import Shifts, mapped_to_themselves

SMALL = {"sgd_minibatch_size": 8, "num_sgd_iter": 2, "seed": 1}
EACH = {"policy_mapping_fn": mapped_to_themselves}


def test_columns_that_a_hook_adds_reach_the_loss_with_their_rows() -> None:
    seen: list[Mapping[str, Tensor]] = []

    class Tagged(PPOPolicy):
        def postprocess_trajectory(
            self, batch: Any, other_agent_batches: Any = None, episode: Any = None
        ) -> Any:
            batch["tag"] = 10.0 * batch["obs"] + batch["actions"][:, None]
            batch["wide"] = np.ones((batch.count, 2, 3))
            return batch

        def loss(self, batch: Mapping[str, Tensor]) -> Any:
            seen.append(batch)
            total, stats = self.ppo_loss(batch)
            return total, {**stats, "rows": len(batch["obs"])}

    policies = {"policies": {"default_policy": PolicySpec(Tagged)}}
    config = {**SMALL, "rollout_fragment_length": 10, "train_batch_size": 20, "multiagent": policies}
    with PPO(env=Shifts, config=config) as algo:
        stats = algo.train()["info"]["default_policy"]
    assert {"rows", "kl", "policy_loss", "vf_loss", "entropy", "total_loss", "grad_gnorm"} <= set(stats)
    assert stats["rows"] == 8.0
    assert len(seen) == 2 * 48 / 8
    for batch in seen:
        assert torch.equal(batch["tag"], 10.0 * batch["obs"] + batch["actions"][:, None])
        assert batch["wide"].shape == (8, 2, 3)
        assert batch["wide"].dtype == batch["rewards"].dtype == torch.float32
        assert batch["terminateds"].dtype == torch.bool
        known = {
            "obs",
            "actions",
            "action_logp",
            "action_dist_inputs",
            "advantages",
            "value_targets",
            "vf_preds",
        }
        assert known | {"rewards", "truncateds", "t", "env_t"} <= set(batch)
    advantages = torch.cat([batch["advantages"] for batch in seen[:6]])
    assert abs(float(advantages.mean())) < 1e-5


def test_a_class_that_overrides_nothing_learns_what_ppo_learns() -> None:
    weights = []
    for spec in (None, PolicySpec(PPOPolicy), PolicySpec(PPOPolicy, algorithm="PPO")):
        config = {**SMALL, "train_batch_size": 60, "kl_coeff": 0.2, "multiagent": {"policies": {"p": spec}}}
        with PPO(env=Shifts, config=config) as algo:
            for _ in range(3):
                algo.train()
            weights.append(algo.get_weights()["p"])
    for others in weights[1:]:
        assert all(np.array_equal(others[name], weights[0][name]) for name in weights[0])


def test_modules_are_trained_by_the_same_optimizer_and_are_no_part_of_what_acts() -> None:
    config = {**SMALL, "train_batch_size": 60, "multiagent": {"policies": {"p": PolicySpec(WithCritic)}}}
    with PPO(env=Shifts, config=config) as algo:
        policy = algo.get_policy("p")
        assert isinstance(policy, WithCritic)
        before = algo.get_weights()["p"]
        assert {"critic.0.weight", "critic.2.bias", "policy.out.weight"} <= set(before)
        losses = [algo.train()["info"]["p"]["vf_loss"] for _ in range(25)]
        after = algo.get_weights()["p"]
        assert all(
            not np.array_equal(before[name], after[name]) for name in before if name.startswith("critic")
        )
        # The network's own values are not learned by this loss.
        assert np.array_equal(before["value.out.weight"], after["value.out.weight"])
        assert losses[-1] < 0.5 * losses[0]
        names = policy.networks.backend.weight_names
        assert not [name for name in names if name.startswith("critic")]
        assert algo.inference == {"p": "onnx"}
        algo.set_weights({"p": before})
        assert all(np.array_equal(algo.get_weights()["p"][name], before[name]) for name in before)
        learned = policy.network.values(torch.zeros(1, 2)).item()
        assert learned == pytest.approx(
            float(policy.networks.backend.values(0, np.zeros((2, 2), np.float32))[0])
        )
        algo.train()
        assert not np.array_equal(algo.get_weights()["p"]["critic.0.weight"], before["critic.0.weight"])


@pytest.mark.slow
def test_the_two_step_game_is_won_with_a_central_critic() -> None:
    config = {
        "critic_obs": "all_agents",
        "num_envs_per_worker": 32,
        "train_batch_size": 512,
        "gamma": 1.0,
        "entropy_coeff": 0.01,
        "evaluation_duration": 1,
        "evaluation_config": {"explore": False},
        "seed": 0,
        "multiagent": {"policies": ["agent_1", "agent_2"], **EACH},
    }
    with PPO(env=TwoStepGame, config=config) as algo:
        for _ in range(25):
            algo.train()
        assert algo.evaluate()["evaluation"]["episode_reward_mean"] == 8.0
