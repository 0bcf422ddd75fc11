"""Rewards that callbacks change: every algorithm learns them, in this process and in workers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import DefaultCallbacks, PolicySpec, SampleBatch
from menv.algorithms import DQN, PPO, QMIX, PPOPolicy
from tests.algorithms_e2e.looking import OwnLoss
from tests.worlds import Several, like

# Other processes would import torch with this file.
pytestmark = pytest.mark.usefixtures("sent_whole")
ENDED = [3.0, 4.0, 4.0]
"""What 1, 2 and 4 are worth at a discount of 0.5: 1 + (2 + 4 / 2) / 2, 2 + 4 / 2, 4."""
DISCOUNTED: dict[str, Any] = {
    "gamma": 0.5, "lambda": 1.0, "rollout_fragment_length": 6, "train_batch_size": 6, "sgd_minibatch_size": 6,
    "num_sgd_iter": 1, "seed": 1, "num_envs_per_worker": 1,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "rollout_fragment_length": 16, "train_batch_size": 32, "training_intensity": 32.0, "lr": 0.01, "seed": 1,
    "num_steps_sampled_before_learning_starts": 0, "target_network_update_freq": 64, "num_envs_per_worker": 1,
    "min_sample_timesteps_per_iteration": 128,
}  # fmt: skip


class Threes(Several):
    """Two agents for three steps; everybody sees the step."""

    observation_space, length = gym.spaces.Box(0.0, 3.0, (1,), np.float32), 3


# One step, which pays 1 to each.
Once = like(Threes, length=1)


def team(context: Any) -> Any:
    return Once().with_agent_groups({"team": ["a", "b"]})


def doubled(batch: SampleBatch) -> None:
    """Pay 1, 2 and 4 in the three steps of an episode, in place."""
    batch["rewards"][:] = 2.0 ** batch["obs"][:, 0]


class InTrajectories(DefaultCallbacks):
    def on_postprocess_trajectory(self, *, postprocessed_batch: Any, **kwargs: Any) -> None:
        doubled(postprocessed_batch)


class InSamples(DefaultCallbacks):
    def on_sample_end(self, *, samples: Any, **kwargs: Any) -> None:
        for rows in samples.policy_batches.values():
            doubled(rows)


class InNewColumns(DefaultCallbacks):
    def on_postprocess_trajectory(self, *, postprocessed_batch: Any, **kwargs: Any) -> None:
        # At first they are seven, then the hook that comes later pays what the test expects.
        postprocessed_batch["rewards"] = np.full(postprocessed_batch.count, 7.0)

    def on_sample_end(self, *, samples: Any, **kwargs: Any) -> None:
        for rows in samples.policy_batches.values():
            targets = np.where(rows["obs"][:, 0] == 2, 7.0, np.where(rows["obs"][:, 0] == 1, 10.5, 12.25))
            assert rows["value_targets"] == pytest.approx(targets, abs=1e-5)
            rows["rewards"] = 2.0 ** rows["obs"][:, 0]


class OwnValues(PPOPolicy):
    def postprocess_trajectory(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        batch["vf_preds"] = np.full(batch.count, 5.0, np.float32)
        return batch


KINDS: dict[str, dict[str, Any]] = {
    "stock": {},
    "shared layers": {"model": {"vf_share_layers": True}},
    "lstm": {"model": {"use_lstm": True, "max_seq_len": 3}},
    "central critic": {"critic_obs": "all_agents"},
    "own loss": {"multiagent": {"policies": {"default_policy": PolicySpec(OwnLoss)}}},
    "own values": {"multiagent": {"policies": {"default_policy": PolicySpec(OwnValues)}}},
    "clipped": {"clip_rewards": 0.5},
    "worker": {"num_workers": 1},
    "workers that sample ahead": {"num_workers": 1, "overlap": True, "clip_rewards": True},
}


@pytest.mark.each_value
@pytest.mark.parametrize("callbacks", [InTrajectories, InSamples, InNewColumns])
@pytest.mark.parametrize("kind", KINDS)
def test_ppo_computes_advantages_from_the_rewards_that_a_callback_leaves(kind: str, callbacks: Any) -> None:
    with PPO(env=Threes, config={**DISCOUNTED, **KINDS[kind], "callbacks": callbacks}) as algo:
        batch = algo.sample()["default_policy"]
        assert batch["obs"][:, 0].tolist() == [0.0, 1.0, 2.0] * 4
        assert batch["rewards"].tolist() == [1.0, 2.0, 4.0] * 4
        assert batch["value_targets"] == pytest.approx(ENDED * 4, abs=1e-5)
        assert batch["advantages"] == pytest.approx(ENDED * 4 - batch["vf_preds"], abs=1e-5)
        if kind == "own values":
            assert set(batch["vf_preds"].tolist()) == {5.0}
        # Results have what the environment paid.
        assert algo.train()["episode_reward_mean"] == 6.0


def test_advantages_that_a_callback_writes_are_learned_unchanged() -> None:
    class Both(InTrajectories):
        def on_postprocess_trajectory(self, *, postprocessed_batch: Any, **kwargs: Any) -> None:
            doubled(postprocessed_batch)
            postprocessed_batch["advantages"] = np.full(postprocessed_batch.count, 7.0, np.float32)

    with PPO(env=Threes, config={**DISCOUNTED, "callbacks": Both}) as algo:
        batch = algo.sample()["default_policy"]
        assert set(batch["advantages"].tolist()) == {7.0}
        assert batch["value_targets"] == pytest.approx(7.0 + batch["vf_preds"], abs=1e-5)


Four = like(
    DefaultCallbacks,
    on_postprocess_trajectory=lambda self, *, postprocessed_batch, **_: postprocessed_batch["rewards"].fill(
        4.0
    ),
)


class FourInSamples(DefaultCallbacks):
    def on_sample_end(self, *, samples: Any, **kwargs: Any) -> None:
        for rows in samples.policy_batches.values():
            rows["rewards"] = np.full_like(rows["rewards"], 4.0)


@pytest.mark.each_value
@pytest.mark.parametrize("callbacks", [Four, FourInSamples])
@pytest.mark.parametrize("more", [{}, {"num_workers": 1, "overlap": True, "clip_rewards": True}], ids=str)
@pytest.mark.parametrize(("algorithm", "env"), [(DQN, Once), (QMIX, team)])
def test_q_values_are_the_rewards_that_a_callback_leaves(
    algorithm: Any, env: Any, more: Any, callbacks: Any
) -> None:
    with algorithm(env=env, config={**QUICK, **more, "callbacks": callbacks}) as algo:
        for _ in range(3):
            (told,) = algo.train()["info"]["learner"].values()
        assert told["learner_stats"]["mean_q"] == pytest.approx(4.0, abs=0.2)
