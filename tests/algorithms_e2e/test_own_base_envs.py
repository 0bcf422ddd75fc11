"""A `BaseEnv` of a user's own in training and evaluation: its sub-environments may come and go, uncounted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.algorithms import PPO
from tests.worlds import InDicts

LENGTH = 4
TOGETHER = 12


class Matches(InDicts):
    """Three matches; with `leave` match 2 ends for good after its first episode."""

    ids, length = range(3), LENGTH

    def try_reset(self, env_id: Any = None, **given: Any) -> Any:
        left = self.config.get("leave") and env_id == 2
        return (None, None) if left else super().try_reset(env_id, **given)


class Counted(Matches):
    num_envs = 3


def built(env: type[Matches], **config: Any) -> PPO:
    return PPO(env=env, config={"train_batch_size": TOGETHER, "seed": 1, **config})


@pytest.mark.parametrize("env", [Matches, Counted])
def test_a_train_batch_is_of_all_sub_environments_together(env: type[Matches]) -> None:
    with built(env) as algo:
        assert [algo.train()["num_env_steps_sampled"] for _ in range(3)] == [12, 24, 36]


@pytest.mark.parametrize("env", [Matches, Counted])
def test_a_fragment_has_the_given_number_of_steps_of_each_sub_environment(env: type[Matches]) -> None:
    with built(env, rollout_fragment_length=6) as algo:
        assert np.bincount(algo.sample()["default_policy"]["env_id"]).tolist() == [6, 6, 6]


@pytest.mark.parametrize("env", [Matches, Counted])
@pytest.mark.parametrize(("unit", "duration"), [("episodes", 6), ("timesteps", 24)])
def test_evaluations_are_shared_out_to_all_sub_environments(
    env: type[Matches], unit: str, duration: int
) -> None:
    with built(env, evaluation_duration=duration, evaluation_duration_unit=unit) as algo:
        for _ in range(2):
            found = algo.evaluate()["evaluation"]
            assert found["hist_stats"]["episode_lengths"] == [LENGTH] * 6


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_no_fragment_waits_for_a_sub_environment_that_is_gone(batch_mode: str) -> None:
    with built(Matches, env_config={"leave": True}, batch_mode=batch_mode, evaluation_duration=7) as algo:
        for _ in range(4):
            algo.train()
        assert algo.evaluate()["evaluation"]["episode_len_mean"] == LENGTH


@pytest.mark.slow_unless("Matches")
@pytest.mark.parametrize("env", [Matches, Counted])
def test_workers_have_different_episodes(env: type[Matches]) -> None:
    config = {"num_workers": 2, "engine": "process", "train_batch_size": 6 * LENGTH}
    with built(env, **config) as algo:
        batch = algo.sample()["default_policy"]
    # Two workers with three matches each.
    assert len(np.unique(batch["eps_id"])) == 6
