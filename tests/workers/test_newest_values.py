"""Where workers run ahead, actions are told as they were drawn, and states are judged by the critic of now."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.algorithms import compute_advantages
from menv.algorithms.sequences import state_before
from menv.callbacks import DefaultCallbacks
from tests.workers.crews import PLAYERS, running, weights_of

KINDS: dict[str, dict[str, Any]] = {
    "choices": {},
    "numbers": {"env": "Pendulum-v1"},
    "memory": {"model": {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 8}},
    "two policies": {"env": "tictactoe", "multiagent": PLAYERS},
    "clipped rewards": {"clip_rewards": 0.5},
}


@pytest.mark.slow_unless("memory", "two policies")
@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_values_are_those_of_now_and_probabilities_those_of_the_draw(settings: dict[str, Any]) -> None:
    with running(2, overlap=True, lr=0.01, **settings) as algo:
        # By their number, which begins with 1.
        weights = [{}, weights_of(algo)]
        for _ in range(3):
            algo.train()
            weights.append(weights_of(algo))
        batch = algo.sample()
        assert batch.policy_batches
        for name, rows in batch.policy_batches.items():
            policy = algo.get_policy(name)
            backend, index = policy.networks.backend, policy.index
            state = state_before(rows) if backend.state_size else None
            values = backend.values(index, rows["obs"], state)
            np.testing.assert_array_equal(rows["vf_preds"], values)
            numbers = rows["weights_seq_no"]
            assert set(numbers.tolist()) <= {2, 3}
            for number in np.unique(numbers).tolist():
                acted = numbers == number
                backend.set_weights(index, weights[number][name])
                mask = rows.get("action_mask")
                told = backend.evaluate(index, rows["obs"], mask, rows["actions"], state)
                np.testing.assert_allclose(rows["action_logp"][acted], told.logp[acted], rtol=1e-5, atol=1e-6)
                assert not np.array_equal(
                    backend.values(index, rows["obs"], state)[acted], rows["vf_preds"][acted]
                )
            backend.set_weights(index, weights[4][name])


def test_advantages_are_made_of_the_values_of_now() -> None:
    with running(1, overlap=True, lr=0.01, gamma=0.9) as algo:
        for _ in range(3):
            algo.train()
        batch = algo.sample()["default_policy"]
        policy = algo.get_policy("default_policy")
        backend, segments = policy.networks.backend, batch.segments
        last = backend.values(0, segments.next_obs)
        expected = compute_advantages(batch.copy(), last, gamma=0.9, lambda_=algo.config.lambda_)
        for name in ("advantages", "value_targets"):
            np.testing.assert_allclose(batch[name], expected[name], rtol=1e-5, atol=1e-6)


class Onlooker(DefaultCallbacks):
    """Counts the pieces of trajectories that it is shown with advantages."""

    def on_postprocess_trajectory(self, *, episode: Any, postprocessed_batch: Any, **kwargs: Any) -> None:
        """Look at a piece, in a worker."""
        whole = "advantages" in postprocessed_batch and "vf_preds" in postprocessed_batch
        episode.custom_metrics["whole"] = float(whole)


class Reader(DefaultCallbacks):
    """Reads the advantages of whole fragments, and raises where there are none."""

    def on_sample_end(self, *, worker: Any, samples: Any, **kwargs: Any) -> None:
        """Look at a fragment, in a worker."""
        for rows in samples.policy_batches.values():
            assert np.isfinite(rows["advantages"]).all()


@pytest.mark.parametrize("callbacks", [Onlooker, Reader])
def test_callbacks_in_workers_are_shown_whole_batches(callbacks: type[DefaultCallbacks]) -> None:
    with running(1, overlap=True, callbacks=callbacks) as algo:
        results = [algo.train() for _ in range(3)]
    if callbacks is Onlooker:
        assert results[-1]["custom_metrics"]["whole_mean"] == 1.0
