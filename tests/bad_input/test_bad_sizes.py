"""Settings of absurd size are refused when an algorithm is built, before they take memory, threads or years."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import DQN, PPO, QMIX
from menv.algorithms.config.field_checks import MOST, shown
from menv.algorithms.networks.network_spec import memory_for
from menv.errors import ConfigError
from tests.bad_input.broken_envs import Faulty

ENDLESS = 10**20

OF_ALL: list[tuple[str, dict[str, Any]]] = [
    ("num_workers", {"num_workers": 10**6}),
    ("evaluation_num_workers", {"evaluation_num_workers": 10**6}),
    ("num_envs_per_worker", {"num_envs_per_worker": 10**9}),
    ("num_envs_per_worker", {"num_envs_per_worker": 10**5, "remote_worker_envs": True}),
    ("torch_threads", {"torch_threads": 10**9}),
    ("rollout_fragment_length", {"rollout_fragment_length": ENDLESS}),
    ("train_batch_size", {"train_batch_size": ENDLESS}),
    ("train_batch_size", {"train_batch_size": 10**400}),
    ("metrics_num_episodes_for_smoothing", {"metrics_num_episodes_for_smoothing": ENDLESS}),
    ("evaluation_duration", {"evaluation_duration": ENDLESS}),
    ("max_staleness", {"max_staleness": 10**4, "overlap": True, "num_workers": 1}),
    ("num_frames", {"agent_connectors": [("FrameStackAgentConnector", {"num_frames": ENDLESS})]}),
    ("evaluation_interval", {"evaluation_interval": ENDLESS}),
    ("remote_env_batch_wait_ms", {"remote_env_batch_wait_ms": ENDLESS, "remote_worker_envs": True}),
    ("env_timeout", {"env_timeout": 1e300, "num_workers": 1}),
    ("env_timeout", {"env_timeout": math.inf, "num_workers": 1}),
    ("clip_rewards", {"clip_rewards": 10**400}),
    ("lr", {"lr": 1e300}),
    ("lr", {"lr": 10**5000}),
    ("grad_clip", {"grad_clip": 10**400}),
    ("fcnet_hiddens", {"model": {"fcnet_hiddens": [10**18]}}),
    ("fcnet_hiddens", {"model": {"fcnet_hiddens": [10**5000]}}),
    ("fcnet_hiddens", {"model": {"fcnet_hiddens": [8] * 257}}),
    ("fcnet_hiddens", {"model": {"fcnet_hiddens": [2**30, 2**30]}}),
    ("200000000", {"model": {"fcnet_hiddens": [2 * 10**8]}}),
    ("lstm_cell_size", {"model": {"use_lstm": True, "lstm_cell_size": 2**30}}),
    ("lstm_cell_size", {"model": {"use_gru": True, "lstm_cell_size": ENDLESS}}),
    ("max_seq_len", {"model": {"use_lstm": True, "max_seq_len": ENDLESS}}),
]
OF_PPO: list[tuple[str, dict[str, Any]]] = [
    ("num_sgd_iter", {"num_sgd_iter": ENDLESS}),
    ("sgd_minibatch_size", {"sgd_minibatch_size": ENDLESS}),
    ("vf_loss_coeff", {"vf_loss_coeff": 1e300}),
    ("entropy_coeff", {"entropy_coeff": -1e300}),
    ("entropy_coeff", {"entropy_coeff": -(10**31)}),
    ("lr_schedule", {"lr_schedule": [[0, 1e300]]}),
    ("clip_param", {"clip_param": 10**400}),
]
OF_DQN: list[tuple[str, dict[str, Any]]] = [
    ("n_step", {"n_step": ENDLESS}),
    ("num_steps_sampled_before_learning_starts", {"num_steps_sampled_before_learning_starts": ENDLESS}),
    ("target_network_update_freq", {"target_network_update_freq": 10**400}),
    ("training_intensity", {"training_intensity": 1e300}),
    ("min_sample_timesteps_per_iteration", {"min_sample_timesteps_per_iteration": ENDLESS}),
    ("max_seq_len", {"model": {"use_gru": True, "max_seq_len": 10**6}}),
    ("capacity", {"replay_buffer_config": {"capacity": ENDLESS}}),
    ("capacity", {"replay_buffer_config": {"capacity": 10**12, "prioritized_replay": True}}),
    ("epsilon_timesteps", {"exploration_config": {"epsilon_timesteps": 10**400}}),
]


@pytest.mark.each_value
@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize(("name", "config"), OF_ALL)
def test_a_size_that_no_machine_has_is_refused_by_name(
    algorithm: Any, name: str, config: dict[str, Any]
) -> None:
    check(algorithm, name, config)


@pytest.mark.parametrize(
    ("algorithm", "name", "config"),
    [
        *((PPO, *case) for case in OF_PPO),
        *((DQN, *case) for case in OF_DQN),
        (QMIX, "mixing_embed_dim", {"mixing_embed_dim": ENDLESS}),
    ],
)
def test_an_absurd_number_of_an_algorithm_is_refused_by_name(
    algorithm: Any, name: str, config: dict[str, Any]
) -> None:
    check(algorithm, name, config)


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


@pytest.mark.parametrize("value", [math.nan, -math.inf, True, None, "1", 1j])
def test_what_is_no_number_is_refused(value: Any) -> None:
    check(PPO, "gamma", {"gamma": value})


def test_a_network_for_which_memory_ends_is_named() -> None:
    shapes = {"policy.0.weight": (4, 2), "policy.0.bias": (2,)}
    message = r"^policies\['p'\], model: a network of 10 weights, 'policy.0.weight' \[4, 2\] among them, expected fewer"
    with pytest.raises(ConfigError, match=message), memory_for("p", shapes):
        raise MemoryError


def test_long_values_are_cut_in_messages() -> None:
    assert shown([1] * 1000) == "[1" + ", 1" * 32 + ", ..."
    assert shown(-(2**200)) == "-2**200 and more"
    assert shown(0.5) == "0.5"


def check(algorithm: Any, name: str, config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        algorithm(env=Faulty, config=config)
    text = str(caught.value)
    assert name in text
    assert "; " in text
    assert "\n" not in text
    assert len(text) < 500


@pytest.mark.parametrize("space", [
    gym.spaces.Discrete(10**9), gym.spaces.Dict(where=gym.spaces.MultiDiscrete([10**9, 2])),
    gym.spaces.Tuple([gym.spaces.Discrete(10**8)] * 20),
], ids=["Discrete", "MultiDiscrete", "Tuple"])  # fmt: skip
def test_observations_of_more_choices_than_a_row_has_room_for_are_refused_before_they_take_memory(
    space: Any,
) -> None:
    class Huge(Faulty):
        def __init__(self, context: Any = None) -> None:
            super().__init__()
            self.observation_space = space

    with pytest.raises(
        ConfigError, match=r"observation space: [0-9,]+ numbers in a flat row, .* 8,388,608 at most"
    ):
        PPO(env=Huge, config={"model": {"fcnet_hiddens": [8]}})
