"""The replay buffer: what is kept, what is drawn how often, and what it weighs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.algorithms.off_policy.learner import transitions
from menv.algorithms.off_policy.replay_buffer import ReplayBuffer
from menv.errors import ConfigError
from menv.sample_batch import SampleBatch
from tests.written_batches import batch as written


def rows(first: int, count: int) -> dict[str, Any]:
    numbers = np.arange(first, first + count)
    return {"obs": np.stack((numbers, -numbers), 1).astype(np.float32), "actions": numbers}


def held(buffer: ReplayBuffer) -> list[int]:
    return sorted(buffer.state()["column.actions"].tolist()) if buffer.rows else []


@settings(max_examples=50, deadline=None)
@given(
    capacity=st.integers(1, 3_000),
    counts=st.lists(st.integers(0, 2_500), max_size=8),
    prioritized=st.booleans(),
)
def test_the_latest_rows_are_kept_and_every_column_stays_with_its_row(
    capacity: int, counts: list[int], prioritized: bool
) -> None:
    buffer = ReplayBuffer(capacity, prioritized=prioritized)
    total = 0
    for count in counts:
        buffer.add(rows(total, count))
        total += count
    assert held(buffer) == list(range(max(0, total - capacity), total))
    assert buffer.rows == min(capacity, total)
    if total:
        sample = buffer.sample(64, np.random.default_rng(total))
        np.testing.assert_array_equal(sample.columns["obs"][:, 0], sample.columns["actions"])
        np.testing.assert_array_equal(sample.columns["obs"][:, 1], -sample.columns["actions"])
        assert set(sample.columns["actions"].tolist()) <= set(held(buffer))


def test_without_priorities_all_rows_are_drawn_alike_and_weigh_1() -> None:
    buffer = ReplayBuffer(10)
    buffer.add(rows(0, 10))
    sample = buffer.sample(20_000, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(sample.indices) / 20_000, 0.1, atol=0.01)
    assert set(sample.weights.tolist()) == {1.0}
    buffer.update_priorities(sample.indices, np.ones(20_000))


def test_chances_and_weights_are_those_of_the_paper() -> None:
    buffer = ReplayBuffer(8, prioritized=True, alpha=0.5, beta=0.5, eps=1e-9)
    buffer.add(rows(0, 3))
    buffer.update_priorities(np.arange(3), np.array([-1.0, 4.0, 9.0], np.float32))
    sample = buffer.sample(600_000, np.random.default_rng(0))
    # Roots 1, 2 and 3: chances 1/6, 1/3 and 1/2, and weights (3 * chance)**-0.5 by the largest of them.
    np.testing.assert_allclose(np.bincount(sample.indices) / 600_000, [1 / 6, 1 / 3, 1 / 2], atol=0.001)
    np.testing.assert_allclose(sample.weights, np.array([1.0, 2.0, 3.0])[sample.indices] ** -0.5, rtol=1e-5)


def test_new_rows_have_the_highest_priority_seen_so_far() -> None:
    buffer = ReplayBuffer(8, prioritized=True, alpha=1.0, eps=1e-9)
    buffer.add(rows(0, 2))
    buffer.update_priorities(np.arange(2), np.array([0.5, 4.0]))
    buffer.update_priorities(np.array([1]), np.array([0.5]))
    buffer.add(rows(2, 1))
    drawn = np.bincount(buffer.sample(500_000, np.random.default_rng(0)).indices) / 500_000
    np.testing.assert_allclose(drawn, [0.1, 0.1, 0.8], atol=0.001)


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("count", [0, 3, 8, 13])
def test_a_restored_buffer_continues_as_if_it_had_never_stopped(prioritized: bool, count: int) -> None:
    whole, resumed = (ReplayBuffer(8, prioritized=prioritized) for _ in range(2))
    resumed.add(rows(70, 5))
    for number in range(count):
        whole.add(rows(number, 1))
        whole.update_priorities(np.array([number % 8]), np.array([float(number)]))
    resumed.set_state(whole.state())
    for buffer in (whole, resumed):
        buffer.add(rows(50, 3))
    one, other = (buffer.sample(16, np.random.default_rng(1)) for buffer in (whole, resumed))
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_array_equal(one.columns["obs"], other.columns["obs"])
    np.testing.assert_array_equal(one.weights, other.weights)


def test_rows_of_another_kind_are_refused() -> None:
    buffer = ReplayBuffer(4)
    buffer.add(rows(0, 2))
    with pytest.raises(ConfigError, match="'obs'"):
        buffer.add({**rows(0, 2), "obs": np.zeros((2, 3), np.float32)})
    with pytest.raises(ConfigError, match=r"\[2, 3\]"):
        buffer.add({**rows(0, 2), "actions": np.arange(3)})


def test_the_state_of_a_buffer_of_another_kind_is_refused() -> None:
    large, small, prioritized = ReplayBuffer(8), ReplayBuffer(4), ReplayBuffer(8, prioritized=True)
    large.add(rows(0, 8))
    prioritized.add(rows(0, 8))
    with pytest.raises(ConfigError, match="capacity"):
        small.set_state(large.state())
    with pytest.raises(ConfigError, match="priorities"):
        prioritized.set_state(large.state())
    with pytest.raises(ConfigError, match="priorities"):
        large.set_state(prioritized.state())


# n-step transitions: by hand, and against a loop over rows.


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


def test_returns_of_no_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="n_step"):
        transitions(batch_of([2], [True]), 0.9, 0)
