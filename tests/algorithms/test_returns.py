"""Advantages: hand-computed ends of trajectories, and equality with the plain backward loop."""

import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.algorithms import compute_advantages
from menv.algorithms.ppo.advantages import gae
from menv.errors import ConfigError
from tests.written_batches import batch

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def by_backward_loop(
    rewards: Numbers, values: Numbers, next_values: Numbers, is_last: Flags, gamma: float, lambda_: float
) -> Numbers:
    advantages = np.zeros(len(rewards))
    running = 0.0
    for row in reversed(range(len(rewards))):
        delta = rewards[row] + gamma * next_values[row] - values[row]
        running = delta + (0.0 if is_last[row] else gamma * lambda_ * running)
        advantages[row] = running
    return advantages


def test_a_terminated_trajectory_has_nothing_after_its_last_reward() -> None:
    # delta_2 = 4 - 3 = 1; delta_1 = 2 + 0.5 * 3 - 2 = 1.5; delta_0 = 1 + 0.5 * 2 - 1 = 1.
    # A_2 = 1; A_1 = 1.5 + 0.25 * 1 = 1.75; A_0 = 1 + 0.25 * 1.75 = 1.4375.
    advantages = gae(
        np.array([1.0, 2.0, 4.0]),
        np.array([1.0, 2.0, 3.0]),
        np.array([2.0, 3.0, 0.0]),
        np.array([False, False, True]),
        0.5,
        0.5,
    )
    assert advantages.tolist() == [1.4375, 1.75, 1.0]
    assert advantages.dtype == np.float32


def test_a_truncated_trajectory_is_bootstrapped_from_the_value_of_its_final_observation() -> None:
    # As above, but the last state is worth 8: delta_2 = 4 + 0.5 * 8 - 3 = 5.
    advantages = gae(
        np.array([1.0, 2.0, 4.0]),
        np.array([1.0, 2.0, 3.0]),
        np.array([2.0, 3.0, 8.0]),
        np.array([False, False, True]),
        0.5,
        0.5,
    )
    assert advantages.tolist() == [1.6875, 2.75, 5.0]


def test_a_cut_keeps_the_two_sides_apart() -> None:
    # Row 0 ends a terminated trajectory, rows 1 and 2 are cut before an observation worth 2.
    advantages = gae(
        np.array([10.0, 1.0, 1.0]),
        np.array([4.0, 1.0, 1.0]),
        np.array([0.0, 1.0, 2.0]),
        np.array([True, False, True]),
        1.0,
        0.5,
    )
    # A_2 = 1 + 2 - 1 = 2; A_1 = 1 + 1 - 1 + 0.5 * 2 = 2; A_0 = 10 - 4 = 6.
    assert advantages.tolist() == [6.0, 2.0, 2.0]


def test_lambda_1_gives_monte_carlo_returns_as_value_targets() -> None:
    values = np.array([5.0, -3.0, 2.0])
    advantages = gae(
        np.array([1.0, 1.0, 1.0]),
        values,
        np.array([-3.0, 2.0, 0.0]),
        np.array([False, False, True]),
        1.0,
        1.0,
    )
    np.testing.assert_allclose(advantages + values, [3.0, 2.0, 1.0], rtol=1e-6)


@given(
    lengths=st.lists(st.integers(1, 70), max_size=8),
    gamma=st.floats(0.0, 1.0),
    lambda_=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_doubling_equals_the_backward_loop(
    lengths: list[int], gamma: float, lambda_: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    rewards, values, next_values = rng.standard_normal((3, rows)) * 10.0
    is_last = np.zeros(rows, np.bool_)
    is_last[np.cumsum(np.array(lengths, np.int64)) - 1] = True
    found = gae(rewards, values, next_values, is_last, gamma, lambda_)
    wanted = by_backward_loop(rewards, values, next_values, is_last, gamma, lambda_)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def test_the_columns_that_come_in_are_left_alone() -> None:
    rewards, values, next_values = np.ones((3, 3))
    is_last = np.array([False, False, True])
    gae(rewards, values, next_values, is_last, 0.9, 0.9)
    assert (np.stack((rewards, values, next_values)) == 1.0).all()
    assert is_last.tolist() == [False, False, True]


def test_advantages_need_no_torch() -> None:
    code = (
        "import sys; import menv.algorithms.ppo.advantages, menv.algorithms.ppo.config;"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_compute_advantages_takes_the_classic_arguments() -> None:
    rows = batch([3])
    rows["vf_preds"] = np.arange(3, dtype=np.float32)
    here = compute_advantages(rows.copy(), 0.5, gamma=0.9, lambda_=0.8)
    classic: Any = compute_advantages
    for there in (
        classic(rows.copy(), 0.5, 0.9, 0.8),
        classic(rollout=rows.copy(), last_r=0.5, gamma=0.9, lambda_=0.8),
    ):
        assert there["advantages"].tolist() == here["advantages"].tolist()
    with pytest.raises(ConfigError, match=r"^compute_advantages: use_gae is given.*leave it out"):
        classic(rows, 0.5, 0.9, 0.8, use_gae=True)
