"""Large numbers that mean "all" or "never" work, and a network for which there is no memory is named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.algorithms.config.field_checks import MOST, shown
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


@pytest.mark.parametrize(("limit", "weight"), [(10**20, 1), (1, 10**20)])
def test_integers_that_torch_does_not_take_are_numbers_too(limit: int, weight: int) -> None:
    settings = {"train_batch_size": 32, "vf_clip_param": limit, "vf_loss_coeff": weight}
    with PPO(env="CartPole-v1", config=settings) as algorithm:
        learned = algorithm.train()["info"]["default_policy"]
    assert math.isfinite(learned["vf_loss"])


def test_a_buffer_without_an_end_takes_the_rows_that_come() -> None:
    settings = {
        "replay_buffer_config": {"capacity": MOST}, "target_network_update_freq": MOST, "train_batch_size": 16,
        "num_steps_sampled_before_learning_starts": 8, "min_sample_timesteps_per_iteration": 64, "n_step": 10**9,
        "training_intensity": 1, "batch_mode": "complete_episodes",
    }  # fmt: skip
    with DQN(env="CartPole-v1", config=settings) as algorithm:
        assert math.isfinite(algorithm.train()["info"]["default_policy"]["loss"])


def test_a_network_for_which_memory_ends_is_named() -> None:
    shapes = {"policy.0.weight": (4, 2), "policy.0.bias": (2,)}
    message = r"^policies\['p'\], model: a network of 10 weights, 'policy.0.weight' \[4, 2\] among them, expected fewer"
    with pytest.raises(ConfigError, match=message), memory_for("p", shapes):
        raise MemoryError


def test_long_values_are_cut_in_messages() -> None:
    assert shown([1] * 1000) == "[1" + ", 1" * 32 + ", ..."
    assert shown(-(2**200)) == "-2**200 and more"
    assert shown(0.5) == "0.5"
