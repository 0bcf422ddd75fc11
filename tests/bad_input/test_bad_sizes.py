"""Large numbers that mean "all" or "never" work, and a network for which there is no memory is named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.algorithms.config.setting import MOST
from menv.algorithms.networks.network_spec import memory_for
from menv.errors import ConfigError


def test_large_numbers_that_mean_all_or_never_work() -> None:
    settings = {
        "train_batch_size": 32, "sgd_minibatch_size": MOST, "vf_clip_param": 1e300, "grad_clip": 1e300,
        "vf_loss_coeff": 1, "clip_param": 10**20, "evaluation_interval": MOST, "clip_rewards": math.inf,
        "metrics_num_episodes_for_smoothing": MOST,
    }  # fmt: skip
    with PPO(env="CartPole-v1", config=settings) as algorithm:
        learned = algorithm.train()["info"]["default_policy"]
    assert np.isfinite([learned["total_loss"], learned["grad_gnorm"]]).all()


def test_a_practically_unlimited_buffer_trains() -> None:
    settings = {
        "replay_buffer_config": {"capacity": MOST}, "target_network_update_freq": MOST, "train_batch_size": 16,
        "num_steps_sampled_before_learning_starts": 8, "min_sample_timesteps_per_iteration": 64, "n_step": 10**9,
        "training_intensity": 1, "batch_mode": "complete_episodes",
    }  # fmt: skip
    with DQN(env="CartPole-v1", config=settings) as algorithm:
        assert math.isfinite(algorithm.train()["info"]["default_policy"]["loss"])


def test_a_network_that_does_not_fit_into_memory_is_named() -> None:
    shapes = {"policy.0.weight": (4, 2), "policy.0.bias": (2,)}
    message = r"^policies\['p'\], model: .*10 .*'policy.0.weight' \[4, 2\]"
    with pytest.raises(ConfigError, match=message), memory_for("p", shapes):
        raise MemoryError
