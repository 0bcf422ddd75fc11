"""Actions of choices and numbers together, such as steering and braking: trained, masked, stopped, spread, refused."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from menv import RandomPolicy
from menv.algorithms import DQN, PPO, QMIX
from menv.algorithms.algorithm import Algorithm
from menv.checking import check_env
from menv.errors import ConfigError
from tests.algorithms_e2e.roads import BY_CAR, DRIVE, SEEN, Convoy, Road
from tests.worlds import Several, like

FAST: dict[str, Any] = {
    "train_batch_size": 1000, "sgd_minibatch_size": 100, "num_sgd_iter": 10, "num_envs_per_worker": 10, "lr": 1e-2,
    "gamma": 0.0, "model": {"fcnet_hiddens": [32]},
}  # fmt: skip
SMALL: dict[str, Any] = {
    "train_batch_size": 80, "sgd_minibatch_size": 40, "num_sgd_iter": 2, "model": {"fcnet_hiddens": [8]}, "seed": 1,
}  # fmt: skip
LSTM = {"model": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4}}


def convoy(context: Any) -> Any:
    return Convoy(context)


def road(context: Any) -> Any:
    return Road(context)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [None, "flat", "dict"])
def test_ppo_learns_to_steer_and_to_brake(mask: str | None) -> None:
    best = {"evaluation_duration": 20, "evaluation_config": {"explore": False}, "seed": 0}
    with PPO(env=road, config={**FAST, **best, "env_config": {"mask": mask}}) as algorithm:
        for _ in range(6):
            algorithm.train()
        # Who only steers, or only brakes, earns 10 of 20 at best.
        assert algorithm.evaluate()["evaluation"]["episode_reward_mean"] > 15.0


def test_a_batch_holds_choices_and_numbers_in_the_order_of_the_space_with_their_distribution_inputs() -> None:
    acted: list[Any] = []

    class Notes(Road):
        def step(self, action: Any) -> Any:
            acted.append((action["brake"], action["steer"][0]))
            return super().step(action)

    with PPO(env=Notes, config={**SMALL, "rollout_fragment_length": 40}) as algorithm:
        batch = algorithm.sample()["default_policy"]
    assert batch["actions"].dtype == np.float32
    assert batch["actions"].shape == (40, 2)
    assert batch["action_dist_inputs"].shape == (40, 3 + 2)
    brake, steer = batch["actions"].T
    np.testing.assert_array_equal(brake, [one[0] for one in acted])
    np.testing.assert_allclose(np.clip(2 * steer, -2, 2), [one[1] for one in acted], rtol=1e-6)
    logits, mean, log_std = np.split(batch["action_dist_inputs"].astype(np.float64), [3, 4], 1)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    z = (steer - mean[:, 0]) / np.exp(log_std[:, 0])
    density = -0.5 * z * z - log_std[:, 0] - 0.5 * np.log(2 * np.pi)
    wanted = np.log(chances[np.arange(40), brake.astype(int)]) + density
    np.testing.assert_allclose(batch["action_logp"], wanted, rtol=1e-5)


@pytest.mark.each_value
@pytest.mark.parametrize("inference", ["onnx", "torch"])
@pytest.mark.parametrize("more", [{}, LSTM, {"explore": False}, {"inference": "torch", **LSTM}], ids=str)
def test_masked_choices_are_never_taken(inference: str, more: dict[str, Any]) -> None:
    config = {**SMALL, "inference": inference, "env_config": {"mask": "flat"}, **more}
    with PPO(env=road, config=config) as algorithm:
        info = algorithm.train()["info"]["default_policy"]
        assert all(np.isfinite(value) for value in info.values())
        batch = algorithm.sample()["default_policy"]
    assert (batch["action_dist_inputs"][:, 2] == -1e9).all()
    assert (batch["actions"][:, 0] < 2).all()


def as_gym_vector(context: Any) -> Any:
    return gym.vector.SyncVectorEnv([Road, Road])


FAR = {"remote_worker_envs": True, "engine": "process"}


@pytest.mark.parametrize(
    ("env", "more"),
    [
        (as_gym_vector, {}),
        pytest.param(road, {**FAR, "num_envs_per_worker": 2}, marks=pytest.mark.slow),
        (convoy, {"multiagent": {**BY_CAR, "policies": {"car": None, "truck": RandomPolicy}}}),
        (convoy, {"multiagent": BY_CAR, "critic_obs": "all_agents", "env_config": {"mask": "flat"}}),
        (road, {"observation_filter": "MeanStdFilter", "num_envs_per_worker": 3}),
        (road, {"agent_connectors": [("FrameStackAgentConnector", {"num_frames": 2})]}),
        (road, {"inference": "torch", "vf_clip_param": 10.0, "entropy_coeff": 0.01}),
    ],
    ids=["vector", "remote", "random", "critic", "filter", "frames", "torch"],
)  # fmt: skip
def test_every_kind_of_environment_and_setting_trains(env: Any, more: dict[str, Any]) -> None:
    with PPO(env=env, config={**SMALL, **more}) as algorithm:
        for _ in range(2):
            info = algorithm.train()["info"]
        learned = [name for name in ("default_policy", "car", "truck") if name in info]
        assert learned
        assert all(np.isfinite(info[name]["total_loss"]) for name in learned)


class Wheel(torch.nn.Module):
    """Gives three logits, a mean and a log_std."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        assert num_outputs == 5
        self.policy, self.value = torch.nn.Linear(2, num_outputs), torch.nn.Linear(2, 1)

    def forward(self, obs: Any) -> Any:
        """Return outputs and values."""
        seen = obs["observations"]
        return self.policy(seen), self.value(seen)[:, 0]


def test_a_custom_module_gives_logits_means_and_deviations() -> None:
    config = {**SMALL, "model": {"custom_model": Wheel}, "env_config": {"mask": "flat"}}
    with PPO(env=road, config=config) as algorithm:
        algorithm.train()
        batch = algorithm.sample()["default_policy"]
        weights = algorithm.get_weights()["default_policy"]
    outputs = batch["obs"] @ weights["policy.weight"].T + weights["policy.bias"]
    outputs[:, 2] = -1e9
    np.testing.assert_allclose(batch["action_dist_inputs"], outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algorithm", [DQN, QMIX])
def test_value_based_algorithms_refuse_mixed_actions(algorithm: type[Algorithm]) -> None:
    env: Any = road
    if algorithm is QMIX:
        env = lambda context: Twins().with_agent_groups({"team": ["a", "b"]})  # noqa: E731
    with pytest.raises(ConfigError, match=algorithm.__name__):
        algorithm(env=env)


# Two agents that drive alike.
Twins = like(Several, observation_space=SEEN, action_space=DRIVE)


def test_the_checker_names_a_mask_of_parts_that_does_not_fit() -> None:
    class Odd(Road):
        def see(self) -> Any:
            return {**super().see(), "action_mask": {"steer": None, "brakes": np.ones(3, np.int8)}}

        def step(self, action: Any) -> Any:
            self.form = None
            return super().step(action)

    assert "ME052" in {finding.code for finding in check_env(Odd({"mask": "flat"}))}
