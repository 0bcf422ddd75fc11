"""PrioritizedSampler: chances point by point and by counting draws, whatever became of the priorities before."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.algorithms.off_policy.replay_buffer import PrioritizedSampler

Floats = npt.NDArray[np.float64]

POINTS_EACH = 256


def filled(priorities: Floats) -> PrioritizedSampler:
    sampler = PrioritizedSampler(len(priorities))
    sampler.update(np.arange(len(priorities)), priorities)
    return sampler


def hits(sampler: PrioritizedSampler) -> npt.NDArray[np.int64]:
    """Count what is drawn at points that cover all tickets evenly."""
    points = (np.arange(sampler.span * POINTS_EACH) + 0.5) / POINTS_EACH
    return np.bincount(sampler.accepted(points, len(points))[0], minlength=sampler.capacity)


def assert_chances(sampler: PrioritizedSampler, priorities: Floats) -> None:
    found, state = hits(sampler), sampler.state()
    # One factor for all places; each ticket may be wrong by one point.
    wanted = priorities * POINTS_EACH / state["raffle"][0]
    assert (np.abs(found - wanted) <= np.bincount(state["tickets"], minlength=sampler.capacity)).all()
    assert not found[priorities == 0.0].any()


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.sampled_from([1, 2, 3, 40, 500]),
    seed=st.integers(0, 2**32 - 1),
    rounds=st.integers(1, 12),
    spread=st.floats(0.0, 4.0),
)
def test_after_any_updates_chances_are_those_of_the_priorities(
    capacity: int, seed: int, rounds: int, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    sampler, plain = PrioritizedSampler(capacity), np.zeros(capacity)
    for _ in range(rounds):
        # Places twice in a batch, and priorities of 0, among them.
        places = rng.integers(0, capacity, rng.integers(1, 2 * capacity))
        priorities = 10.0 ** rng.uniform(-spread, spread, len(places)) * (rng.random(len(places)) < 0.9)
        highest = sampler.update(places, priorities)
        plain[places] = priorities
        assert highest == priorities.max()
    kept = sampler.state()["priorities"]
    np.testing.assert_array_equal(kept, plain[: len(kept)])
    assert not plain[len(kept) :].any()
    if plain.any():
        assert_chances(sampler, plain)
        places, priorities = sampler.sample(64, rng)
        np.testing.assert_array_equal(priorities, plain[places])
        assert priorities.all()
        # Sampling may have dealt anew.
        assert_chances(sampler, plain)


def test_a_restored_raffle_draws_as_the_one_that_was_saved() -> None:
    rng = np.random.default_rng(0)
    saved, restored = PrioritizedSampler(300), filled(np.ones(300))
    for number in range(400):
        places, priorities = rng.integers(0, 300, 20), rng.random(20)
        for sampler in (saved, restored) if number > 100 else (saved,):
            sampler.update(places, priorities)
        if number == 100:
            restored.set_state(saved.state())
        if number > 100:
            one, other = (sampler.sample(32, np.random.default_rng(number)) for sampler in (saved, restored))
            np.testing.assert_array_equal(one[0], other[0])
        else:
            saved.sample(32, rng)
    for name, array in saved.state().items():
        np.testing.assert_array_equal(array, restored.state()[name])


@pytest.mark.slow_unless("0.6-*", "3.0-300")
@pytest.mark.parametrize("count", [1, 7, 300])
@pytest.mark.parametrize("now", [0.01, 0.6, 1.0, 3.0])
def test_the_first_batch_after_a_change_follows_the_new_priorities(count: int, now: float) -> None:
    # At 0.01 hardly a draw counts until all tickets are dealt anew, in the middle of the batch.
    rng = np.random.default_rng(0)
    capacity, kept = 400, 20
    drawn = np.zeros(capacity)
    for _ in range(9_000 // count):
        sampler = filled(np.ones(capacity))
        sampler.update(np.arange(kept, capacity), np.full(capacity - kept, now))
        drawn += np.bincount(sampler.sample(count, rng)[0], minlength=capacity)
    share = kept / (kept + (capacity - kept) * now)
    total = drawn.sum()
    assert abs(drawn[:kept].sum() - share * total) < 4 * np.sqrt(share * (1 - share) * total)
    assert abs(drawn[kept : kept + 190].sum() - (1 - share) * total / 2) < 4 * np.sqrt(total) / 2
