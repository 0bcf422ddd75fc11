"""Running episodes are not part of a checkpoint: a resumed run begins new ones and counts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from menv.algorithms import PPO
from menv.callbacks import DefaultCallbacks
from menv.errors import CallOrderError, ConfigError
from tests.checkpoints.runs import SMALL, trained, weights_of
from tests.worlds import InDicts, like

ENVS = SMALL["num_envs_per_worker"]


def test_sub_environments_that_step_together_begin_again(tmp_path: Path) -> None:
    def vector(context: Any) -> Any:
        return gym.make_vec("CartPole-v1", num_envs=ENVS, vectorization_mode="sync")

    with PPO(env=vector, config={**SMALL, "num_envs_per_worker": 1}) as algo:
        trained(algo, 2)
        algo.save(tmp_path)
        with PPO.from_checkpoint(tmp_path, env=vector) as again:
            assert weights_of(again) == weights_of(algo)
            result = trained(again, 1)
            assert result["num_episodes_not_resumed"] == ENVS
            assert result["num_env_steps_sampled"] >= 3 * SMALL["train_batch_size"]
            again.restore(tmp_path)
            assert weights_of(again) == weights_of(algo)
            assert trained(again, 1)["num_episodes_not_resumed"] == ENVS


def test_a_custom_base_env_restarts_in_a_new_algorithm_only(tmp_path: Path) -> None:
    counter = like(InDicts, ids=(0,), length=7)
    with PPO(env=counter, config={**SMALL, "num_envs_per_worker": 1}) as algo:
        trained(algo, 1)
        algo.save(tmp_path)
        wanted = weights_of(algo)
        with PPO.from_checkpoint(tmp_path, env=counter) as again:
            assert weights_of(again) == wanted
            result = trained(again, 1)
            assert result["num_episodes_not_resumed"] == 1
            assert result["num_env_steps_sampled"] == 2 * SMALL["train_batch_size"]
        trained(algo, 1)
        before = weights_of(algo)
        with pytest.raises(ConfigError, match="restore"):
            algo.restore(tmp_path)
        assert weights_of(algo) == before


class Saving(DefaultCallbacks):
    """Saves where it must not."""

    path: Any = None
    algorithm: Any = None

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        self.algorithm = algorithm

    def on_episode_end(self, **kwargs: Any) -> None:
        self.algorithm.save(self.path)


def test_a_half_sampled_fragment_is_not_saved(tmp_path: Path) -> None:
    callbacks = Saving()
    callbacks.path = tmp_path
    with (
        PPO(env="CartPole-v1", config={**SMALL, "callbacks": callbacks}) as algo,
        pytest.raises(CallOrderError),
    ):
        algo.train()
    assert not list(tmp_path.iterdir())


# What environments are given comes back from a checkpoint as what it was, or has to be given again.
