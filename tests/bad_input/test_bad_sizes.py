"""Settings of absurd size are refused when an algorithm is built, before they take memory, threads or years."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import DQN, PPO, QMIX
from menv.algorithms.config.field_checks import MOST, check_count, check_number, shown
from menv.algorithms.networks.network_spec import memory_for
from menv.errors import ConfigError
from tests.bad_input.broken_envs import Faulty

ENDLESS = 10**20

OF_ALL: dict[str, tuple[dict[str, Any], str]] = {
    "workers": ({"num_workers": 10**6}, "num_workers is 1000000, expected an integer from 0 to 10000; lower it"),
    "players": ({"evaluation_num_workers": 10**6}, "evaluation_num_workers is 1000000, expected an integer from 0 to"),
    "envs": ({"num_envs_per_worker": 10**9}, "num_envs_per_worker is 1000000000, .* from 1 to 1000000;"),
    "remote": (
        {"num_envs_per_worker": 10**5, "remote_worker_envs": True}, "num_envs_per_worker is 100000, .* from 1 to 10000;"
    ),
    "threads": ({"torch_threads": 10**9}, "torch_threads is 1000000000, expected .* from 1 to 256, or 'auto', or None"),
    "fragment": ({"rollout_fragment_length": ENDLESS}, "rollout_fragment_length is 1.* from 1 to"),
    "batch": ({"train_batch_size": ENDLESS}, "train_batch_size is 1.* from 1 to 1000000000; lower it"),
    "episodes": ({"metrics_num_episodes_for_smoothing": ENDLESS}, "metrics_num_episodes_for_smoothing is 1"),
    "played": ({"evaluation_duration": ENDLESS}, "evaluation_duration is 1.* from 1 to"),
    "staleness": (
        {"max_staleness": 10**4, "overlap": True, "num_workers": 1}, "max_staleness is 10000, .* from 1 to 1000;"
    ),
    "frames": (
        {"agent_connectors": [("FrameStackAgentConnector", {"num_frames": ENDLESS})]}, "num_frames=1.* from 1 to 10000;"
    ),
    "interval": ({"evaluation_interval": ENDLESS}, "evaluation_interval is 1.* from 1 to"),
    "wait": ({"remote_env_batch_wait_ms": ENDLESS, "remote_worker_envs": True}, "remote_env_batch_wait_ms is 1"),
    "timeout": ({"env_timeout": 1e300, "num_workers": 1}, r"env_timeout is 1e\+300, expected .* to 1e\+06, or None"),
    "endless timeout": ({"env_timeout": math.inf, "num_workers": 1}, "env_timeout is inf, expected .*, or None"),
    "rewards": ({"clip_rewards": 10**400}, r"clip_rewards is 2\*\*1328 and more, expected a number from 0 to"),
    "rate": ({"lr": 1e300}, r"lr is 1e\+300, expected a number from 0 to 1000; correct it"),
    "rate of digits": ({"lr": 10**400}, r"lr is 2\*\*1328 and more, expected a number from 0 to 1000"),
    "norm": ({"grad_clip": 10**400}, r"grad_clip is 2\*\*1328 and more, expected .*, or None to switch it off"),
    "width": ({"model": {"fcnet_hiddens": [10**18]}}, r"fcnet_hiddens is \[10*\], expected .* below 2\*\*31"),
    "network": ({"model": {"fcnet_hiddens": [2**30, 2**30]}}, r"model: a network of [\d,]+ weights, .*fcnet_hiddens"),
    "graph": ({"model": {"fcnet_hiddens": [2 * 10**8]}}, r"model: a network of [\d,]+ weights, .* \[\d+, 200000000\]"),
    "memory": ({"model": {"use_lstm": True, "lstm_cell_size": 2**30}}, r"[\d,]+ weights, .*lstm_cell_size"),
    "cell": ({"model": {"use_gru": True, "lstm_cell_size": ENDLESS}}, "lstm_cell_size is 1.* from 1"),
    "sequence": ({"model": {"use_lstm": True, "max_seq_len": ENDLESS}}, "max_seq_len is 1.* from 1"),
    "widths of digits": ({"model": {"fcnet_hiddens": [10**5000]}}, "fcnet_hiddens is a list, expected"),
}  # fmt: skip
OF_PPO: dict[str, tuple[dict[str, Any], str]] = {
    "epochs": ({"num_sgd_iter": ENDLESS}, "num_sgd_iter is 1.*, expected an integer from 1 to 1000000; lower it"),
    "minibatch": ({"sgd_minibatch_size": ENDLESS}, "sgd_minibatch_size is 1.* from 1 to"),
    "value": ({"vf_loss_coeff": 1e300}, r"vf_loss_coeff is 1e\+300, expected a finite number from 0 to 1e\+30"),
    "entropy": ({"entropy_coeff": -1e300}, r"entropy_coeff is -1e\+300, expected a finite number to 1e\+30"),
    "rates": ({"lr_schedule": [[0, 1e300]]}, r"lr_schedule is \[\[0, 1e\+300\]\], expected \[env_steps, value\] pairs"),
    "clip": ({"clip_param": 10**400}, r"clip_param is 2\*\*1328 and more, expected a number from 0 to 1e\+30"),
}  # fmt: skip
OF_DQN: dict[str, tuple[dict[str, Any], str]] = {
    "steps": ({"n_step": ENDLESS}, "n_step is 1.*, expected an integer from 1 to 1000000000, or 'auto'; lower it"),
    "batch": ({"train_batch_size": 10**400}, r"train_batch_size is 2\*\*1328 and more, expected an integer from 1 to"),
    "start": ({"num_steps_sampled_before_learning_starts": ENDLESS}, "learning_starts is 1.* from 0"),
    "copies": ({"target_network_update_freq": 10**400}, "target_network_update_freq is 2.* from 1"),
    "intensity": ({"training_intensity": 1e300}, r"training_intensity is 1e\+300, expected a number from 0 to 1e\+06"),
    "iteration": ({"min_sample_timesteps_per_iteration": ENDLESS}, "min_sample_timesteps_per_iteration is 1"),
    "sequence": ({"model": {"use_gru": True, "max_seq_len": 10**6}}, "max_seq_len is 1000000, .* from 1 to 100000;"),
    "buffer": ({"replay_buffer_config": {"capacity": ENDLESS}}, "capacity is 1.* from 1 to"),
    "priorities": (
        {"replay_buffer_config": {"capacity": 10**12, "prioritized_replay": True}},
        "capacity is 1000000000000, expected an integer from 1 to 100000000; lower it",
    ),
    "exploration": ({"exploration_config": {"epsilon_timesteps": 10**400}}, r"epsilon_timesteps is 2\*\*1328 and more"),
}  # fmt: skip


@pytest.mark.each_value
@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize("case", OF_ALL)
def test_a_size_that_no_machine_has_is_refused_by_name(algorithm: Any, case: str) -> None:
    check(algorithm, *OF_ALL[case])


@pytest.mark.parametrize("case", OF_PPO)
def test_an_absurd_number_of_ppo_is_refused_by_name(case: str) -> None:
    check(PPO, *OF_PPO[case])


@pytest.mark.parametrize("case", OF_DQN)
def test_an_absurd_number_of_dqn_is_refused_by_name(case: str) -> None:
    check(DQN, *OF_DQN[case])


def test_a_mixing_network_of_absurd_width_is_refused_by_name() -> None:
    check(QMIX, {"mixing_embed_dim": ENDLESS}, "QMIX: mixing_embed_dim is 1.* from 1 to")


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


@pytest.mark.parametrize(
    ("value", "advice"), [(0, "raise it"), ("4", "correct it"), (2.0, "correct it"), (9, "lower it")]
)
def test_the_advice_fits_what_is_wrong_with_a_count(value: Any, advice: str) -> None:
    with pytest.raises(ConfigError, match=rf"PPO: epochs is {value!r}, expected an integer .*; {advice}$"):
        check_count("PPO", "epochs", value, 1, 8)


@pytest.mark.parametrize("value", [math.nan, -math.inf, True, None, "1", 1j])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^PPO: rate is .*, expected a finite number; correct it$"):
        check_number("PPO", "rate", value)


@pytest.mark.parametrize("digits", [31, 400, 5000])
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_that_no_network_can_compute_with_are_refused_in_a_short_line(
    digits: int, sign: int
) -> None:
    value = sign * 10**digits
    with pytest.raises(
        ConfigError, match=r"^PPO: rate is .{,50}, expected a finite number to 1e\+30; correct it$"
    ):
        check_number("PPO", "rate", value)


def test_a_network_for_which_memory_ends_is_named() -> None:
    shapes = {"policy.0.weight": (4, 2), "policy.0.bias": (2,)}
    message = r"^policies\['p'\], model: a network of 10 weights, 'policy.0.weight' \[4, 2\] among them, expected fewer"
    with pytest.raises(ConfigError, match=message), memory_for("p", shapes):
        raise MemoryError


def test_long_values_are_cut_in_messages() -> None:
    assert shown([1] * 1000) == "[1" + ", 1" * 32 + ", ..."
    assert shown(-(2**200)) == "-2**200 and more"
    assert shown(0.5) == "0.5"


def check(algorithm: Any, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        algorithm(env=Faulty, config=config)
    assert "; " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


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
