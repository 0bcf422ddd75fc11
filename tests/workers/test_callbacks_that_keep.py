"""Callbacks given as objects that keep the algorithm, which cannot be sent: workers that begin later go without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from menv import DefaultCallbacks
from menv.algorithms import PPO
from tests.workers.crews import running, same, weights_of


class Keeping(DefaultCallbacks):
    """Keeps the algorithm, and marks episodes."""

    algorithm: Any = None

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        self.algorithm = algorithm

    def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
        episode.custom_metrics["marked"] = 1.0 + (self.algorithm is not None)


def test_workers_of_evaluations_begin_without_what_callbacks_keep() -> None:
    with running(0, evaluation_num_workers=1, callbacks=Keeping()) as algo:
        found = [algo.evaluate()]
        algo.add_policy("second", policy_mapping_fn=lambda *args, **kwargs: "second")
        found.append(algo.evaluate())
    assert [one["evaluation"]["custom_metrics"]["marked_mean"] for one in found] == [1.0, 1.0]


def test_a_run_that_overlaps_continues_from_a_checkpoint_though_callbacks_keep_it(tmp_path: Path) -> None:
    with running(1, overlap=True, callbacks=Keeping()) as algo:
        algo.train()
        algo.save(tmp_path)
        before = weights_of(algo)
    with PPO.from_checkpoint(tmp_path, {"callbacks": Keeping()}) as again:
        assert same(weights_of(again), before)
        assert again.train()["training_iteration"] == 2
        again.restore(tmp_path)
        assert again.train()["training_iteration"] == 2
