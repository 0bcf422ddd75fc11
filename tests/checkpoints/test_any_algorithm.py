"""`Algorithm` itself goes on with a checkpoint of any of menv's algorithms, and callbacks are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from menv import ConfigError, DefaultCallbacks, PolicySpec, RandomPolicy
from menv.algorithms import DQN, PPO, Algorithm
from tests.checkpoints.runs import REPLAYED, weights_of

told: list[int] = []


class Told(DefaultCallbacks):
    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        told.append(algorithm.iteration)


def test_the_class_of_all_algorithms_takes_the_one_that_was_saved(tmp_path: Path) -> None:
    with DQN(env="CartPole-v1", config=REPLAYED) as first:
        first.train()
        folder = first.save(checkpoint_dir=tmp_path)  # type: ignore[call-arg]
        with Algorithm.from_checkpoint(folder, config={"callbacks": Told}) as again:
            assert type(again) is DQN
            assert weights_of(again) == weights_of(first)
            again.restore(folder)
    assert told == [1, 1]


def test_an_algorithm_of_somebody_else_is_loaded_by_its_class(tmp_path: Path) -> None:
    class Mine(DQN):
        class Own(type(DQN.recipe)):  # type: ignore[misc]
            name = "Mine"

        recipe = Own()

    with Mine(env="CartPole-v1", config=REPLAYED) as first:
        folder = first.save(tmp_path)
    with pytest.raises(ConfigError, match="'Mine', expected one of DQN, PPO, QMIX"):
        Algorithm.from_checkpoint(folder)


class Heuristic(RandomPolicy):
    """Without weights, in the words of classic heuristics."""

    def get_weights(self) -> Any:
        return None

    def set_weights(self, weights: Any) -> None:
        return None


def test_a_policy_whose_get_weights_returns_none_has_none(tmp_path: Path) -> None:
    multiagent = {"policies": {"default_policy": PolicySpec(policy_class=Heuristic)}}
    with PPO(env="CartPole-v1", config={"train_batch_size": 8, "multiagent": multiagent}) as algo:
        algo.train()
        algo.restore(algo.save(tmp_path))
        assert algo.get_weights() == {"default_policy": {}}
        algo.set_weights(algo.get_weights())
