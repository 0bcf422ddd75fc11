"""The rows of one policy: stored and derived columns, pieces, and what is done with them."""

from __future__ import annotations

import numpy as np
import pytest

from menv.errors import ConfigError
from menv.sample_batch import MultiAgentBatch, SampleBatch
from tests.written_batches import batch, values


def test_the_observation_after_each_row_is_derived() -> None:
    assert batch([3, 1])["new_obs"][:, 0].tolist() == [1, 2, 13, 111]


def test_previous_actions_and_rewards_are_derived() -> None:
    two = batch([3, 2])
    assert two["prev_actions"].tolist() == [70, 0, 1, 71, 3]
    assert two["prev_rewards"].tolist() == [0.5, 0, 1, 1.5, 3]


def test_what_belongs_to_a_piece_is_repeated_for_its_rows() -> None:
    two = batch([3, 2])
    assert two["eps_id"].tolist() == [0, 0, 0, 1, 1]
    assert two["agent_index"].tolist() == [0, 0, 0, 2, 2]
    assert two["env_id"].tolist() == [0, 0, 0, 3, 3]
    assert two["unroll_id"].tolist() == [50, 50, 50, 51, 51]


def test_a_batch_is_a_mapping_of_columns() -> None:
    two = batch([3, 2])
    assert two.count == two.agent_steps() == 5
    assert {"obs", "new_obs", "rewards", "eps_id"} <= set(two)
    assert len(two.keys()) == len(list(two)) == len(set(two))
    assert two.keys() == set(two)
    assert "obs" in two
    assert "vf_preds" not in two
    assert all(len(column) == 5 for column in two.values())
    assert "5 rows" in repr(two)


def test_the_length_of_a_batch_is_its_number_of_rows_as_in_the_classic_api() -> None:
    two = batch([3, 2])
    assert len(two) == two.count == 5
    two["weights"] = np.ones(len(two), np.float32)
    assert [len(piece) for piece in two.split_by_episode()] == [3, 2]
    assert not two.slice(0, 0)


def test_columns_can_be_added_if_they_have_a_value_for_each_row() -> None:
    two = batch([3, 2])
    two["advantages"] = np.ones(5, np.float32)
    assert two["advantages"].sum() == 5
    with pytest.raises(ConfigError, match="column 'advantages' has 4 rows, expected 5"):
        two["advantages"] = np.ones(4, np.float32)


def test_the_old_dones_and_unknown_columns_are_explained() -> None:
    with pytest.raises(KeyError, match="'dones' is split into 'terminateds' and 'truncateds'"):
        batch([1])[SampleBatch.DONES]
    assert SampleBatch.CUR_OBS == SampleBatch.OBS
    with pytest.raises(
        KeyError, match=r"holds batches and not tuples: write other_agent_batches\[agent_id\]"
    ):
        batch([1])[1]  # type: ignore[call-overload]
    with pytest.raises(KeyError, match="'dones' is split into"):
        SampleBatch({"obs": np.zeros(1), "dones": np.zeros(1)}, batch([1]).segments)
    with pytest.raises(KeyError, match="no column 'advantage', expected one of"):
        batch([1])["advantage"]


def test_rows_are_dicts() -> None:
    first, second = batch([2]).rows()
    assert first["obs"].tolist() == [0]
    assert first["new_obs"].tolist() == second["obs"].tolist() == [1]
    assert second["new_obs"].tolist() == [12]


def test_pieces_come_apart_and_together_again() -> None:
    whole = batch([3, 1, 2])
    pieces = whole.split_by_episode()
    assert [piece.count for piece in pieces] == [3, 1, 2]
    assert pieces[2]["obs"][:, 0].tolist() == [200, 201]
    assert pieces[2]["eps_id"].tolist() == [2, 2]
    again = SampleBatch.concat_samples(pieces)
    for name in whole:
        np.testing.assert_array_equal(again[name], whole[name])


def test_concatenation_keeps_the_order_and_the_columns_that_all_have() -> None:
    first, second = batch([2], 0), batch([1], 7)
    first["vf_preds"] = np.zeros(2)
    joined = SampleBatch.concat_samples([first, second])
    assert joined["obs"][:, 0].tolist() == [0, 1, 7]
    assert joined["new_obs"][:, 0].tolist() == [1, 12, 18]
    assert "vf_preds" not in joined


def test_infos_are_the_dicts_of_the_environment_and_empty_where_it_gave_none() -> None:
    one = batch([3, 1])
    assert one["infos"].tolist() == [{"of": 0}, {"of": 1}, {}, {"of": 100}]
    assert one["infos"].dtype == object
    assert one.slice(1, 3)["infos"][0] is one["infos"][1]
    without = SampleBatch({"obs": np.zeros((2, 1))}, batch([2]).segments)
    assert without["infos"].tolist() == [{}, {}]


def test_the_probability_of_an_action_follows_from_its_logarithm() -> None:
    one = batch([2])
    assert "action_prob" not in one
    one["action_logp"] = np.log(np.array([0.25, 1.0]))
    assert "action_prob" in set(one)
    np.testing.assert_allclose(one["action_prob"], [0.25, 1.0])
    one["action_logp"] = np.log(np.array([0.5, 1.0]))
    np.testing.assert_allclose(one["action_prob"], [0.5, 1.0])


def test_several_columns_are_returned_in_the_order_asked_for() -> None:
    rewards, after = batch([2, 1]).columns(["rewards", "new_obs"])
    assert rewards.tolist() == [0, 1, 2]
    assert values(after) == [1, 12, 111]


def test_a_copy_shares_nothing_and_a_shallow_one_the_arrays() -> None:
    one = batch([2, 1])
    deep, shallow = one.copy(), one.copy(shallow=True)
    shallow["advantages"] = np.zeros(3)
    shallow.segments.unroll_id = np.zeros(2)
    assert "advantages" not in one
    assert one["unroll_id"].tolist() == [50, 50, 51]
    one["obs"][0] = 5
    one.segments.next_obs[0] = 6
    assert (values(deep["obs"])[0], values(deep["new_obs"])[1]) == (0, 12)
    assert (values(shallow["obs"])[0], values(shallow["new_obs"])[1]) == (5, 6)


def test_a_slice_knows_what_lies_around_it() -> None:
    part = batch([4, 3]).slice(1, 6)
    assert values(part["obs"]) == [1, 2, 3, 100, 101]
    assert values(part["new_obs"]) == [2, 3, 14, 101, 102]
    assert part["prev_actions"].tolist() == [0, 1, 2, 71, 0]
    assert part["prev_rewards"].tolist() == [0, 1, 2, 1.5, 4]
    assert part["eps_id"].tolist() == [0, 0, 0, 1, 1]
    assert part.segments.lengths.tolist() == [3, 2]
    assert part.segments.first_t.tolist() == [1, 0]
    # The second piece lacks its final observation, but it goes on beyond the slice.
    assert part.segments.final_missing.tolist() == [False, False]
    assert batch([4, 3]).slice(5, 7).segments.final_missing.tolist() == [True]


def test_slices_count_as_python_does_and_are_views() -> None:
    one = batch([4])
    assert values(one.slice(-2, 99)["obs"]) == [2, 3]
    assert one.slice(3, 1).count == one.slice(4, 9).count == 0
    assert one.slice(2, 2)["new_obs"].shape == (0, 1)
    assert np.shares_memory(one.slice(1, 3)["obs"], one["obs"])


def test_a_shuffled_batch_is_the_same_object_with_the_same_rows_in_another_order() -> None:
    one = batch([40, 20])
    before = {row["obs"].item(): row for row in batch([40, 20]).rows()}
    assert one.shuffle(3) is one
    assert values(one["obs"]) != sorted(before)
    assert sorted(values(one["obs"])) == sorted(before)
    for row in one.rows():
        assert row == before[row["obs"].item()]
    assert values(one["obs"]) == values(batch([40, 20]).shuffle(np.random.default_rng(3))["obs"])
    assert values(one["obs"]) != values(batch([40, 20]).shuffle(4)["obs"])


def test_rows_that_stay_neighbours_stay_in_one_piece() -> None:
    part = batch([4, 2]).take([2, 3, 4, 0, 1, 1])
    assert part.segments.lengths.tolist() == [2, 1, 2, 1]
    assert part.segments.first_t.tolist() == [2, 0, 0, 1]


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        ({"size": 4}, [4, 4, 2]),
        ({"size": 5}, [5, 5]),
        ({"size": 99}, [10]),
        ({"num_slices": 3}, [3, 3, 4]),
        ({"num_slices": 12}, None),
    ],
)
def test_time_slices_are_of_equal_size(asked: dict[str, int], sizes: list[int] | None) -> None:
    found = [part.count for part in batch([6, 4]).timeslices(**asked)]
    if sizes is None:
        assert (len(found), sum(found), max(found)) == (asked["num_slices"], 10, 1)
    else:
        assert found == sizes


@pytest.mark.parametrize("asked", [{}, {"size": 1, "num_slices": 1}, {"size": 0}, {"num_slices": -1}])
def test_time_slices_need_one_positive_number(asked: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"timeslices: got size=.*, expected one of the two, at least 1"):
        batch([2]).timeslices(**asked)


def test_a_batch_can_be_split_by_a_column() -> None:
    one = batch([2, 3, 1])
    one["eps_id"] = np.array([7, 7, 7, 7, 7, 9])
    assert [part.count for part in one.split_by_episode("eps_id")] == [5, 1]
    one["truncateds"] = np.array([False, False, True, False, False, False])
    assert [part.count for part in one.split_by_episode("truncateds")] == [3, 3]
    assert [part.count for part in one.split_by_episode("terminateds")] == [2, 3, 1]
    (whole,) = batch([1]).split_by_episode("terminateds")
    assert whole.count == 1
    assert batch([]).split_by_episode("eps_id") == [] == batch([]).split_by_episode()
    with pytest.raises(ConfigError, match=r"column 'obs' has rows of shape \(1,\), expected one value a row"):
        one.split_by_episode("obs")
    with pytest.raises(KeyError, match="no column 'episode'"):
        one.split_by_episode("episode")


def test_padding_makes_all_pieces_equally_long() -> None:
    one = batch([2, 5])
    assert one["seq_lens"].tolist() == [2, 5]
    assert one.right_zero_pad(3) is one
    assert one.count == 9
    assert one["seq_lens"].tolist() == [2, 3, 2]
    assert one["seq_mask"].tolist() == [True, True, False, True, True, True, True, True, False]
    assert values(one["obs"]) == [0, 1, 0, 100, 101, 102, 103, 104, 0]
    assert values(one["new_obs"]) == [1, 12, 0, 101, 102, 103, 104, 115, 0]
    assert one["eps_id"].tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 0]
    assert one["infos"].tolist() == [
        {"of": 0}, {"of": 1}, {}, {}, {"of": 101}, {"of": 102}, {}, {"of": 104}, {}
    ]  # fmt: skip
    assert one.segments.first_t.tolist() == [0, 0, 3]
    assert one.agent_steps() == one.env_steps() == 7
    assert one.as_multi_agent().agent_steps() == 7


def test_parts_of_a_padded_batch_keep_their_rows_and_lengths() -> None:
    one = batch([2, 5]).right_zero_pad(4)
    whole = {name: one[name].copy() for name in one}
    parts = one.timeslices(size=5)
    assert [part["seq_lens"].tolist() for part in parts] == [[2, 1], [3, 1], [0]]
    again = SampleBatch.concat_samples(parts)
    for name, column in whole.items():
        np.testing.assert_array_equal(again[name], column)
    assert one.concat(one.copy())["seq_lens"].tolist() == [2, 4, 1, 2, 4, 1]
    assert values(one.slice(0, 2).segments.next_obs) == [12]
    assert one.shuffle(0)["seq_lens"].sum() == 7


def test_a_batch_is_padded_once_and_to_a_positive_length() -> None:
    with pytest.raises(ConfigError, match="max_seq_len=0 of an unpadded batch, expected at least 1"):
        batch([2]).right_zero_pad(0)
    padded = batch([2]).right_zero_pad(4)
    with pytest.raises(ConfigError, match="max_seq_len=4 of a padded batch"):
        padded.right_zero_pad(4)
    with pytest.raises(ConfigError, match=r"2 batches, 1 of them padded, expected .* all or none"):
        padded.concat(batch([2]))


def test_infos_that_were_read_or_replaced_are_padded_and_joined_too() -> None:
    one = batch([1])
    one["infos"] = np.array([{"own": 1}], object)
    assert one.concat(batch([1], 5))["infos"].tolist() == [{"own": 1}, {"of": 5}]
    assert one.right_zero_pad(2)["infos"].tolist() == [{"own": 1}, {}]


def test_nothing_cannot_be_concatenated() -> None:
    with pytest.raises(ConfigError, match="got 0 batches"):
        SampleBatch.concat_samples([])


def test_parts_of_a_piece_become_one_piece_again_and_different_pieces_do_not() -> None:
    one = batch([5, 3])
    again = SampleBatch.concat_samples(one.timeslices(size=2))
    assert again.segments.lengths.tolist() == [5, 3]
    assert again.segments.final_missing.tolist() == [False, True]
    assert again.segments.next_obs.tolist() == one.segments.next_obs.tolist()
    first, last = one.slice(0, 2), one.slice(3, 5)
    assert first.concat(last).segments.lengths.tolist() == [2, 2]
    assert values(first.concat(last)["new_obs"]) == [1, 2, 4, 15]


@pytest.mark.parametrize("part", ["unroll_id", "eps_id", "agent_index", "env_id"])
def test_pieces_that_differ_in_anything_stay_apart(part: str) -> None:
    first, last = batch([5]).timeslices(size=3)
    assert first.concat(last).segments.lengths.tolist() == [5]
    setattr(last.segments, part, getattr(last.segments, part) + 1)
    assert first.concat(last).segments.lengths.tolist() == [3, 2]


def test_a_batch_of_one_policy_can_stand_among_several() -> None:
    one = batch([3])
    assert one.as_multi_agent().policy_batches == {"default_policy": one}
    assert one.as_multi_agent("p")["p"] is one
    assert one.as_multi_agent().as_multi_agent().env_steps() == 3


def test_columns_alone_are_no_batch_and_the_line_says_what_is() -> None:
    with pytest.raises(ConfigError, match=r"columns alone.*log_action"):
        SampleBatch({"obs": np.zeros((2, 1))})
    with pytest.raises(KeyError, match="terminateds"):
        SampleBatch({"obs": np.zeros((2, 1)), "dones": np.zeros(2)})
    with pytest.raises(ConfigError, match="SampleBatch: columns are 3, expected a dict"):
        SampleBatch(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"columns alone.*log_action"):
        SampleBatch(obs=np.zeros((2, 1)), actions=np.zeros(2))
    with pytest.raises(ConfigError, match="SampleBatch: columns are None, expected a dict"):
        SampleBatch()


def test_a_slice_of_a_batch_is_a_batch() -> None:
    whole = batch([3, 2])
    first = whole[:4]
    assert isinstance(first, SampleBatch)
    assert first["obs"].tolist() == whole["obs"].tolist()[:4]
    assert first["new_obs"].tolist() == whole["new_obs"].tolist()[:4]
    assert [whole[-1:].count, whole[::2].count, whole[9:].count] == [1, 3, 0]


@pytest.mark.parametrize("key", [[0, 1], (0, 1), 1.5, None, np.array([True])])
def test_a_column_is_asked_for_by_name(key: object) -> None:
    with pytest.raises(
        KeyError, match=r"expected a name or a slice such as batch\[:3\]; take\(rows\) returns"
    ):
        batch([2])[key]  # type: ignore[call-overload]


# What all policies experienced in the same env steps: counts, joining, slices in time.


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
