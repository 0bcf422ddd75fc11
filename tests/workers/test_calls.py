"""Methods of environments are called wherever these live."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from menv import DefaultCallbacks
from menv.algorithms import PPO
from menv.errors import CallOrderError, ConfigError

CONFIG = {"train_batch_size": 40, "rollout_fragment_length": 10, "seed": 0, "engine": "process"}
PLACES: dict[str, dict[str, Any]] = {
    "here": {"num_envs_per_worker": 4},
    "workers": {"num_envs_per_worker": 2, "num_workers": 2},
    "ahead": {"num_envs_per_worker": 2, "num_workers": 2, "overlap": True},
    "remote": {"num_envs_per_worker": 4, "remote_worker_envs": True},
}
every_place = pytest.mark.parametrize("place", PLACES)


class Levels(gym.Env[Any, Any]):
    """Pays its level."""

    observation_space, action_space = Box(0, 1, (1,), np.float32), Discrete(2)

    def __init__(self, context: Any) -> None:
        self.seat, self.level, self.steps = (context.worker_index, context.vector_index), 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(1, np.float32), float(self.level), self.steps == 5, False, {}

    def set_level(self, level: int) -> tuple[Any, int]:
        if level < 0:
            raise ValueError("below the ground")
        before, self.level = self.level, level
        return self.seat, before


@pytest.mark.slow_unless("here", "remote")
@every_place
def test_every_sub_environment_is_called_once_in_their_order(place: str) -> None:
    with PPO(env=Levels, config={**CONFIG, **PLACES[place]}) as algo:
        algo.train()
        first, second = algo.call_envs("set_level", 2), algo.call_envs("set_level", 3)
        assert [before for _, before in first] == [0] * 4
        assert second == [(seat, 2) for seat, _ in first]
        assert sorted({seat for seat, _ in first}) == [seat for seat, _ in first]
        # Those that sample ahead have done so before.
        ahead = 2 if place == "ahead" else 0
        paid = [algo.sample()["default_policy"]["rewards"][-1] for _ in range(ahead + 1)]
        assert paid[-1] == 3.0


@pytest.mark.slow_unless("here", "workers")
@every_place
def test_what_a_method_raises_arrives_and_the_run_goes_on(place: str) -> None:
    with PPO(env=Levels, config={**CONFIG, **PLACES[place]}) as algo:
        with pytest.raises(ValueError, match="below the ground"):
            algo.call_envs("set_level", -1)
        with pytest.raises(ConfigError, match="has no method 'set_levle'"):
            algo.call_envs("set_levle", 1)
        assert algo.train()["num_env_steps_sampled"] == 40
    with pytest.raises(CallOrderError, match=r"call_envs: .*stopped"):
        algo.call_envs("set_level", 1)


def test_a_callback_leads_through_a_curriculum() -> None:
    class Harder(DefaultCallbacks):
        def on_train_result(self, *, algorithm: Any, result: Any, **kwargs: Any) -> None:
            algorithm.call_envs("set_level", result["training_iteration"])

    with PPO(env=Levels, config={**CONFIG, **PLACES["workers"], "callbacks": Harder}) as algo:
        assert [algo.train()["sampler_results"]["hist_stats"]["episode_reward"][-1] for _ in range(3)] == [
            0,
            5,
            10,
        ]


def test_where_nothing_can_be_called_that_is_said() -> None:
    def made(context: Any) -> Any:
        return gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")

    with (
        PPO(env=made, config=CONFIG) as algo,
        pytest.raises(ConfigError, match="GymVectorEnvs shows no sub-environment 0"),
    ):
        algo.call_envs("reset")
