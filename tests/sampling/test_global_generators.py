"""`seed` also seeds `random` and `numpy.random` in every process that has environments."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import VectorEnv
from menv.algorithms import PPO
from tests.worlds import Alone, Sharing


class Lucky(Alone):
    """Shows what the generators of the process give when it is made, at each reset and at each step."""

    observation_space = gym.spaces.Box(0.0, 1.0, (3,))

    def __init__(self, context: Any = None) -> None:
        super().__init__(context)
        self.made = random.random()

    def pay(self, action: Any) -> float:
        if "crash" in self.config and random.random() < 0.05:
            raise RuntimeError("out of luck")
        self.length = self.at if np.random.random() < 0.2 else 0
        return 1.0

    def see(self) -> Any:
        return np.array([self.made, random.random(), np.random.random()], np.float32)


class Pair(Sharing):
    kind = Lucky


def vectorised(context: Any) -> Any:
    return VectorEnv.vectorize_gym_envs(make_env=lambda index: Lucky(), num_envs=3)


CONFIG: dict[str, Any] = {"rollout_fragment_length": 20, "train_batch_size": 60, "num_envs_per_worker": 3}


def played(env: Any, seed: int | None, **more: Any) -> list[Any]:
    """Return what two fragments showed, in the order of the batch."""
    with PPO(env=env, config={**CONFIG, "seed": seed, **more}) as algo:
        return [algo.sample()["default_policy"]["obs"] for _ in range(2)]


def same(one: list[Any], other: list[Any]) -> bool:
    return all(map(np.array_equal, one, other))


@pytest.mark.slow_unless("gym", "agents", "vector", "remote")
@pytest.mark.usefixtures("sent_whole")
@pytest.mark.parametrize(
    ("env", "more"),
    [
        (Lucky, {}),
        (Pair, {}),
        (vectorised, {}),
        (Lucky, {"num_workers": 2, "num_envs_per_worker": 2}),
        (Pair, {"remote_worker_envs": True}),
    ],
    ids=["gym", "agents", "vector", "workers", "remote"],
)
def test_environments_that_draw_from_the_process_repeat(env: Any, more: dict[str, Any]) -> None:
    more = {"engine": "process", **more}
    first = played(env, 3, **more)
    # Of remote environments the order of rows depends on which answers first; here each has a process of its own.
    assert same(first, played(env, 3, **more))
    assert not same(first, played(env, 4, **more))
    # Each process, and each sub-environment, draws its own numbers.
    assert len(np.unique(first[0][:, 0])) >= (1 if env is vectorised else 3)


def test_without_a_seed_the_generators_of_the_process_are_left_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    with PPO(env="CartPole-v1", config={"rollout_fragment_length": 10, "train_batch_size": 10}) as algo:
        algo.train()
        algo.evaluate()
    after = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    assert after == (random.random(), np.random.random())


def test_evaluations_repeat_and_change_nothing_about_training() -> None:
    def run(*, evaluated: bool) -> tuple[list[Any], list[Any]]:
        with PPO(env=Lucky, config={**CONFIG, "seed": 3, "evaluation_duration": 4}) as algo:
            lengths, rows = [], []
            for _ in range(3):
                if evaluated:
                    lengths.append(algo.evaluate()["evaluation"]["hist_stats"]["episode_lengths"])
                rows.append(algo.sample()["default_policy"]["obs"])
        return lengths, rows

    (first, rows), (second, again), (_, alone) = (run(evaluated=flag) for flag in (True, True, False))
    assert first == second
    assert first[0] != first[1]
    assert same(rows, again)
    assert same(rows, alone)


def test_a_resumed_run_does_not_draw_the_first_numbers_again(tmp_path: Path) -> None:
    with PPO(env=Lucky, config={**CONFIG, "seed": 3}) as algo:
        first = algo.sample()["default_policy"]["obs"]
        folder = algo.save(tmp_path)
    resumed = []
    for _ in range(2):
        with PPO.from_checkpoint(folder, config={"env": Lucky}) as again:
            resumed.append(again.sample()["default_policy"]["obs"])
    np.testing.assert_array_equal(resumed[0], resumed[1])
    assert not np.isin(first[:, 1], resumed[0][:, 1]).any()
