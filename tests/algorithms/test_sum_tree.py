"""The tree of sums: draws by hand, and against running sums over all places."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.algorithms.sum_tree import SumTree
from menv.errors import ConfigError

CAPACITIES = [1, 2, 15, 16, 17, 512, 513, 9_000, 140_000]


def filled(capacity: int, priorities: dict[int, float]) -> SumTree:
    tree = SumTree(capacity)
    tree.update(np.array(list(priorities), np.int64), np.array(list(priorities.values()), np.float64))
    return tree


def test_a_share_of_the_total_falls_on_the_place_where_the_running_sum_passes_it() -> None:
    tree = filled(4, {0: 1.0, 1: 0.0, 2: 2.0, 3: 1.0})
    shares = np.array([0.0, 0.2499, 0.25, 0.74, 0.75, 1.0 - 2.0**-53])
    assert tree.sample(shares).tolist() == [0, 0, 2, 2, 3, 3]
    assert (tree.total, tree.min) == (4.0, 1.0)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_every_place_of_any_capacity_is_met_by_its_own_share(capacity: int) -> None:
    tree = SumTree(capacity)
    tree.update(np.arange(capacity), np.ones(capacity))
    places = np.unique(np.linspace(0, capacity - 1, 500).astype(np.int64))
    np.testing.assert_array_equal(tree.sample((places + 0.5) / capacity), places)
    assert tree.total == capacity


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_places_of_priority_0_are_never_drawn_at_either_end(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    for place in {0, capacity // 2, capacity - 1}:
        tree = filled(capacity, {place: float(rng.random()) * 1e-3 + 1e-9})
        assert set(tree.sample(np.array([0.0, 0.3, 1.0 - 2.0**-53])).tolist()) == {place}


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.sampled_from([3, 40, 700, 10_000]),
    seed=st.integers(0, 2**32 - 1),
    rounds=st.integers(1, 6),
)
def test_after_any_updates_sums_minimum_and_draws_are_those_of_all_places(
    capacity: int, seed: int, rounds: int
) -> None:
    rng = np.random.default_rng(seed)
    tree, plain = SumTree(capacity), np.zeros(capacity)
    for _ in range(rounds):
        places = rng.integers(0, capacity, rng.integers(1, 2 * capacity))
        # Whole numbers, so that sums in any order are exact.
        priorities = rng.integers(0, 5, len(places)).astype(np.float64)
        tree.update(places, priorities)
        plain[places] = priorities
    np.testing.assert_array_equal(tree.first(capacity), plain)
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), plain)
    assert tree.total == plain.sum()
    assert tree.min == plain[plain > 0].min(initial=np.inf)
    if plain.any():
        shares = rng.random(200)
        wanted = np.searchsorted(np.cumsum(plain), shares * plain.sum(), "right")
        np.testing.assert_array_equal(tree.sample(shares), wanted)


def test_draws_follow_priorities_of_very_different_size() -> None:
    rng = np.random.default_rng(0)
    priorities = 10.0 ** rng.uniform(-6, 3, 5_000)
    tree = SumTree(5_000)
    tree.update(np.arange(5_000), priorities)
    drawn = np.bincount(tree.sample(rng.random(200_000)), minlength=5_000)
    highest = np.argsort(priorities)[-100:]
    wanted = priorities[highest] / priorities.sum() * 200_000
    np.testing.assert_allclose(drawn[highest].sum(), wanted.sum(), rtol=0.02)
    assert np.abs(drawn[highest] - wanted).max() < 6 * np.sqrt(wanted.max())


@pytest.mark.parametrize("capacity", [700, 10_000])
def test_shares_at_the_very_borders_between_places_pick_none_of_priority_0(capacity: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        priorities = rng.random(capacity) ** 8 * (rng.random(capacity) < 0.2)
        tree = SumTree(capacity)
        tree.update(np.arange(capacity), priorities)
        borders = np.cumsum(priorities) / priorities.sum()
        for shares in (borders, np.nextafter(borders, 0.0), np.nextafter(borders, 2.0)):
            assert priorities[tree.sample(np.clip(shares, 0.0, 1.0 - 2.0**-53))].all()


def test_an_empty_tree_bad_places_and_bad_priorities_are_refused() -> None:
    tree = SumTree(10)
    assert tree.min == np.inf
    with pytest.raises(ConfigError, match="every priority is 0"):
        tree.sample(np.array([0.5]))
    for place in (-1, 10):
        with pytest.raises(ConfigError, match=f"places {place} to {place}, expected 0 to 9"):
            tree.update(np.array([place]), np.ones(1))
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(ConfigError, match=r"priorities from .* expected finite ones"):
            tree.update(np.array([0]), np.array([bad]))
    with pytest.raises(ConfigError, match="capacity 0"):
        SumTree(0)
