"""Advantages: hand-computed ends of trajectories, and equality with the plain backward loop."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.algorithms import compute_advantages
from tests.written_batches import batch


def advantages_of(
    lengths: list[int],
    rewards: Any,
    values: Any,
    last: Any,
    gamma: float,
    lambda_: float,
    terminated: Any = True,
) -> Any:
    rows = batch(lengths)
    rows["rewards"], rows["vf_preds"] = np.asarray(rewards, np.float32), np.asarray(values, np.float32)
    rows["terminateds"][rows.segments.ends - 1] = terminated
    return compute_advantages(rows, last, gamma, lambda_)["advantages"]


def test_what_follows_the_last_reward_is_worth_nothing_if_terminated_and_the_last_value_otherwise() -> None:
    # delta_2 = 4 - 3 = 1; delta_1 = 2 + 0.5 * 3 - 2 = 1.5; delta_0 = 1 + 0.5 * 2 - 1 = 1.
    # A_2 = 1; A_1 = 1.5 + 0.25 * 1 = 1.75; A_0 = 1 + 0.25 * 1.75 = 1.4375.
    found = advantages_of([3], [1.0, 2.0, 4.0], [1.0, 2.0, 3.0], 8.0, 0.5, 0.5)
    assert (found.tolist(), found.dtype) == ([1.4375, 1.75, 1.0], np.float32)
    # With a last state that is worth 8: delta_2 = 4 + 0.5 * 8 - 3 = 5.
    found = advantages_of([3], [1.0, 2.0, 4.0], [1.0, 2.0, 3.0], 8.0, 0.5, 0.5, terminated=False)
    assert found.tolist() == [1.6875, 2.75, 5.0]


@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=8),
    gamma=st.floats(0.0, 1.0),
    lambda_=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_advantages_of_several_pieces_are_those_of_the_backward_loop_over_each(
    lengths: list[int], gamma: float, lambda_: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rewards, values = rng.standard_normal((2, sum(lengths))) * 10.0
    last, terminated = rng.standard_normal(len(lengths)) * 10.0, rng.random(len(lengths)) < 0.5
    found, end = advantages_of(lengths, rewards, values, last, gamma, lambda_, terminated), 0
    for piece, length in enumerate(lengths):
        end += length
        after, running = last[piece] * (not terminated[piece]), 0.0
        for row in reversed(range(end - length, end)):
            running = rewards[row] + gamma * after - values[row] + gamma * lambda_ * running
            after = values[row]
            assert found[row] == pytest.approx(running, rel=1e-4, abs=1e-3)
