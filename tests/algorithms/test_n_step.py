"""n-step transitions: by hand, and against a loop over rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from menv.algorithms.dqn.learner import transitions
from menv.errors import ConfigError
from menv.sample_batch import SampleBatch
from tests.written_batches import batch as written


def batch_of(lengths: list[int], terminated: list[bool], rewards: list[float] | None = None) -> SampleBatch:
    """Observations count on within a piece; what follows a piece is its last observation plus 11."""
    batch = written(lengths)
    batch["terminateds"][batch.segments.ends - 1] = terminated
    batch["truncateds"][batch.segments.ends - 1] = ~np.array(terminated, bool)
    if rewards is not None:
        batch["rewards"] = np.array(rewards, np.float32)
    return batch


def test_two_steps_by_hand_over_a_terminated_and_a_cut_piece() -> None:
    found = transitions(batch_of([3, 2], [True, False], [1.0, 2.0, 4.0, 8.0, 16.0]), 0.5, 2)
    assert found.returns.tolist() == [2.0, 4.0, 4.0, 16.0, 16.0]
    assert found.discounts.tolist() == [0.25, 0.0, 0.0, 0.25, 0.5]
    assert found.next_obs[:, 0].tolist() == [2.0, 13.0, 13.0, 112.0, 112.0]
    assert found.returns.dtype == found.discounts.dtype == np.float32
    assert found.next_mask is None


def test_one_step_is_the_reward_and_the_next_observation() -> None:
    batch = batch_of([3, 1, 2], [False, True, True])
    found = transitions(batch, 0.9, 1)
    np.testing.assert_array_equal(found.returns, batch["rewards"])
    np.testing.assert_array_equal(found.next_obs, batch["new_obs"])
    np.testing.assert_allclose(found.discounts, [0.9, 0.9, 0.9, 0.0, 0.9, 0.0])


@given(
    pieces=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=6),
    n=st.integers(1, 12),
    gamma=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_any_pieces_give_what_a_loop_over_rows_gives(
    pieces: list[tuple[int, bool]], n: int, gamma: float
) -> None:
    batch = batch_of([length for length, _ in pieces], [ended for _, ended in pieces])
    found = transitions(batch, gamma, n)
    row = 0
    for piece, (length, ended) in enumerate(pieces):
        for place in range(length):
            steps = min(n, length - place)
            wanted = sum(gamma**lag * float(batch["rewards"][row + lag]) for lag in range(steps))
            beyond = place + steps == length
            assert found.returns[row] == pytest.approx(wanted, rel=1e-6)
            assert found.discounts[row] == pytest.approx(0.0 if beyond and ended else gamma**steps)
            after = batch.segments.next_obs[piece] if beyond else batch["obs"][row + steps]
            assert found.next_obs[row] == after
            row += 1
    assert row == batch.count == len(found.returns)


def test_the_mask_is_that_of_the_observation_after_the_steps() -> None:
    batch = batch_of([3, 1], [False, False])
    masks = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]], bool)
    batch["action_mask"] = masks
    batch.segments.next_mask = np.array([[1, 1, 1], [0, 1, 1]], bool)
    found = transitions(batch, 0.9, 2)
    assert found.next_mask is not None
    after = [masks[2], [True, True, True], [True, True, True], [False, True, True]]
    np.testing.assert_array_equal(found.next_mask, after)


def test_padding_and_no_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="n is 0 with an unpadded batch"):
        transitions(batch_of([2], [True]), 0.9, 0)
    with pytest.raises(ConfigError, match="with a padded batch"):
        transitions(batch_of([2], [True]).right_zero_pad(3), 0.9, 1)
