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


def test_values_of_a_piece_are_repeated_for_its_rows() -> None:
    two = batch([3, 2])
    assert two["eps_id"].tolist() == [0, 0, 0, 1, 1]
    assert two["agent_index"].tolist() == [0, 0, 0, 2, 2]
    assert two["env_id"].tolist() == [0, 0, 0, 3, 3]
    assert two["unroll_id"].tolist() == [50, 50, 50, 51, 51]


def test_a_batch_is_a_mapping_of_columns() -> None:
    two = batch([3, 2])
    assert two.count == 5
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
    assert not two[0:0]


def test_columns_can_be_added_if_they_have_a_value_for_each_row() -> None:
    two = batch([3, 2])
    two["advantages"] = np.ones(5, np.float32)
    assert two["advantages"].sum() == 5
    with pytest.raises(ConfigError, match="'advantages'"):
        two["advantages"] = np.ones(4, np.float32)


def test_the_old_dones_and_unknown_columns_are_explained() -> None:
    with pytest.raises(KeyError, match="terminateds"):
        batch([1])[SampleBatch.DONES]
    assert SampleBatch.CUR_OBS == SampleBatch.OBS
    with pytest.raises(KeyError, match="advantage"):
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
    assert one[1:3]["infos"][0] is one["infos"][1]
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


def test_a_copy_shares_no_array() -> None:
    one = batch([2, 1])
    copy = one.copy()
    copy["advantages"] = np.zeros(3)
    assert "advantages" not in one
    one["obs"][0] = 5
    one.segments.next_obs[0] = 6
    assert (values(copy["obs"])[0], values(copy["new_obs"])[1]) == (0, 12)


def test_a_slice_knows_the_rows_before_and_after_it() -> None:
    part = batch([4, 3])[1:6]
    assert values(part["obs"]) == [1, 2, 3, 100, 101]
    assert values(part["new_obs"]) == [2, 3, 14, 101, 102]
    assert part["prev_actions"].tolist() == [0, 1, 2, 71, 0]
    assert part["prev_rewards"].tolist() == [0, 1, 2, 1.5, 4]
    assert part["eps_id"].tolist() == [0, 0, 0, 1, 1]
    assert part.segments.lengths.tolist() == [3, 2]
    assert part.segments.first_t.tolist() == [1, 0]
    # The second piece lacks its final observation, but it goes on beyond the slice.
    assert part.segments.final_missing.tolist() == [False, False]
    assert batch([4, 3])[5:7].segments.final_missing.tolist() == [True]


def test_nothing_cannot_be_concatenated() -> None:
    with pytest.raises(ConfigError):
        SampleBatch.concat_samples([])


def test_parts_of_a_piece_become_one_piece_again_and_different_pieces_do_not() -> None:
    one = batch([5, 3])
    again = SampleBatch.concat_samples([one[:2], one[2:4], one[4:6], one[6:]])
    assert again.segments.lengths.tolist() == [5, 3]
    assert again.segments.final_missing.tolist() == [False, True]
    assert again.segments.next_obs.tolist() == one.segments.next_obs.tolist()
    first, last = one[0:2], one[3:5]
    assert SampleBatch.concat_samples([first, last]).segments.lengths.tolist() == [2, 2]
    assert values(SampleBatch.concat_samples([first, last])["new_obs"]) == [1, 2, 4, 15]


@pytest.mark.parametrize("part", ["unroll_id", "eps_id", "agent_index", "env_id"])
def test_pieces_that_differ_in_anything_stay_apart(part: str) -> None:
    whole = batch([5])
    first, last = whole[:3], whole[3:]
    assert SampleBatch.concat_samples([first, last]).segments.lengths.tolist() == [5]
    setattr(last.segments, part, getattr(last.segments, part) + 1)
    assert SampleBatch.concat_samples([first, last]).segments.lengths.tolist() == [3, 2]


def test_columns_alone_do_not_make_a_batch() -> None:
    with pytest.raises(ConfigError, match="segments"):
        SampleBatch({"obs": np.zeros((2, 1))})


@pytest.mark.parametrize("key", [[0, 1], (0, 1), 1.5, None, np.array([True])])
def test_a_column_is_asked_for_by_name(key: object) -> None:
    with pytest.raises(KeyError, match="take"):
        batch([2])[key]  # type: ignore[call-overload]


# What all policies experienced in the same env steps: counts, joining, slices in time.


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
