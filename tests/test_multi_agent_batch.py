"""What all policies experienced in the same env steps: counts, joining, slices in time."""

from __future__ import annotations

import numpy as np
import pytest

from menv.errors import ConfigError
from menv.sample_batch import MultiAgentBatch, SampleBatch
from tests.written_batches import batch, values


def together(lengths: list[int], episodes: list[int], first: int = 0) -> SampleBatch:
    """Return a batch of pieces in given episodes."""
    one = batch(lengths, first)
    one.segments.eps_id = np.array(episodes)
    return one


def test_a_multi_agent_batch_counts_env_steps_and_rows() -> None:
    both = MultiAgentBatch({"p": batch([3]), "q": batch([1])}, 3)
    assert (both.count, both.env_steps(), both.agent_steps()) == (3, 3, 4)
    assert both["q"].count == 1
    assert repr(both) == "MultiAgentBatch(3 env steps, rows {'p': 3, 'q': 1})"


def test_fragments_are_joined_policy_by_policy() -> None:
    joined = MultiAgentBatch.concat_samples(
        [MultiAgentBatch({"p": batch([3])}, 3), MultiAgentBatch({"q": batch([1]), "p": batch([2], 9)}, 2)]
    )
    assert joined.env_steps() == 5
    assert {policy: part.count for policy, part in joined.policy_batches.items()} == {"p": 5, "q": 1}


def test_a_copy_of_all_policies_shares_nothing() -> None:
    both = MultiAgentBatch({"p": batch([3])}, 3)
    copy = both.copy()
    both["p"]["obs"][:] = 0
    assert values(copy["p"]["obs"]) == [0, 1, 2]
    assert copy.env_steps() == 3
    assert both.copy(shallow=True)["p"]["obs"] is both["p"]["obs"]


def test_agents_that_act_together_stay_together_in_time_slices() -> None:
    # Episode 4 is longer than episode 9 and comes first, whatever the order in the batches.
    both = MultiAgentBatch(
        {"p": together([2, 3, 3], [9, 4, 4]), "q": together([1, 3], [9, 4], 1000)}, env_steps=6
    )
    one, two, three = both.timeslices(2)
    assert values(one["p"]["obs"]) == [100, 101, 200, 201]
    assert values(one["q"]["obs"]) == [1100, 1101]
    assert values(two["p"]["obs"]) == [0, 102, 202]
    assert values(two["q"]["obs"]) == [1000, 1102]
    assert values(three["p"]["obs"]) == [1]
    assert "q" not in three
    assert [part.env_steps() for part in (one, two, three)] == [2, 2, 1]
    assert values(one["p"]["new_obs"]) == [101, 102, 201, 202]
    assert one["p"].segments.lengths.tolist() == [2, 2]


def test_time_slices_of_nothing_are_none_and_k_is_positive() -> None:
    assert MultiAgentBatch({}, 0).timeslices(3) == []
    with pytest.raises(ConfigError, match="got k=0 of an unpadded batch, expected at least 1"):
        MultiAgentBatch({"p": batch([3])}, 3).timeslices(0)
    with pytest.raises(ConfigError, match="got k=1 of a padded batch"):
        MultiAgentBatch({"p": batch([3]).right_zero_pad(4)}, 3).timeslices(1)


def test_only_the_default_policy_alone_is_left_unwrapped() -> None:
    one = batch([3])
    assert MultiAgentBatch.wrap_as_needed({"default_policy": one}, 3) is one
    for batches in ({"p": one}, {"default_policy": one, "p": one}):
        wrapped = MultiAgentBatch.wrap_as_needed(batches, 5)
        assert isinstance(wrapped, MultiAgentBatch)
        assert wrapped.policy_batches == batches
        assert wrapped.env_steps() == 5
