"""Whatever is done with a batch, each row keeps the values of all its columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.sample_batch import SampleBatch
from tests.written_batches import batch, values

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)
quick = settings(max_examples=50, deadline=None, derandomize=True)


@st.composite
def batches(draw: st.DrawFn, first: int = 0) -> SampleBatch:
    """A batch of which some derived columns have been read, and which a learner has added to."""
    made = batch(draw(LENGTHS), first)
    made["action_logp"] = -made["rewards"] / 10
    for name in draw(
        st.sets(st.sampled_from(["new_obs", "prev_actions", "prev_rewards", "infos", "eps_id"]))
    ):
        made[name]
    return made


def known(*whole: SampleBatch) -> dict[float, dict[str, Any]]:
    """Return the rows of batches by their observation, and whether the final one after them is missing."""
    found = {}
    for one in (one.copy() for one in whole):
        missing = np.zeros(one.count, np.bool_)
        missing[one.segments.ends - 1] = one.segments.final_missing
        found.update(
            {row["obs"].item(): {**row, "missing": missing[at]} for at, row in enumerate(one.rows())}
        )
    return found


def check(result: SampleBatch, rows: dict[float, dict[str, Any]], order: list[float]) -> None:
    """Check that a batch holds rows in an order, all columns equal, and that its pieces are right."""
    assert values(result["obs"]) == order
    assert result.segments.lengths.sum() == result.count
    missing = np.zeros(result.count, np.bool_)
    missing[result.segments.ends - 1] = result.segments.final_missing
    for at, row in enumerate(result.rows()):
        meant = rows[row["obs"].item()]
        assert {**row, "missing": missing[at]} == meant
    since = np.arange(result.count) - np.repeat(result.segments.starts, result.segments.lengths)
    np.testing.assert_array_equal(result.segments.spread("first_t") + since, result["t"])


@given(whole=batches(), data=st.data())
@quick
def test_slices_of_slices_keep_their_rows(whole: SampleBatch, data: st.DataObject) -> None:
    rows, order, part = known(whole), values(whole["obs"]), whole
    for _ in range(3):
        start, end = (data.draw(st.integers(-part.count - 1, part.count + 1)) for _ in range(2))
        part, order = part[start:end], order[start:end]
        check(part, rows, order)


@given(whole=batches(), seed=st.integers(0, 2**32), data=st.data())
@quick
def test_any_mixture_of_operations_keeps_each_row(whole: SampleBatch, seed: int, data: st.DataObject) -> None:
    rows, order = known(whole), values(whole["obs"])
    for name in data.draw(
        st.lists(st.sampled_from(["shuffle", "slice", "split", "copy", "twice"]), max_size=5)
    ):
        if name == "shuffle":
            permutation = np.random.default_rng(seed).permutation(len(order))
            whole, order = whole.take(permutation), [order[at] for at in permutation]
        elif name == "slice":
            whole, order = whole[1:], order[1:]
        elif name == "split" and whole.count:
            whole = SampleBatch.concat_samples(whole.split_by_episode()[::-1])
            order = values(whole["obs"])
        elif name == "copy":
            whole = whole.copy()
        else:
            whole, order = SampleBatch.concat_samples([whole, whole]), [*order, *order]
    check(whole, rows, order)


@given(first=batches(), second=batches(5000))
@quick
def test_a_concatenation_keeps_the_rows_of_both(first: SampleBatch, second: SampleBatch) -> None:
    rows, order = known(first, second), [*values(first["obs"]), *values(second["obs"])]
    both = SampleBatch.concat_samples([first, second])
    # Parts of parts, before anybody has read the infos: those of one fragment share what they refer to.
    nested = SampleBatch.concat_samples([both[1:], second, both])
    check(both, rows, order)
    check(nested, rows, [*order[1:], *values(second["obs"]), *order])


@given(whole=batches(), size=st.integers(1, 20))
@quick
def test_slices_put_together_are_the_batch(whole: SampleBatch, size: int) -> None:
    rows, order = known(whole), values(whole["obs"])
    parts = [whole[start : start + size] for start in range(0, whole.count, size)]
    for part in parts:
        check(part, rows, values(part["obs"]))
    again = SampleBatch.concat_samples(parts)
    check(again, rows, order)
    np.testing.assert_array_equal(again.segments.lengths, whole.segments.lengths)
    np.testing.assert_array_equal(again.segments.next_obs, whole.segments.next_obs)
