"""Batches: stored and derived columns, pieces, concatenation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.batch import MultiAgentBatch, SampleBatch, Segments


def batch(lengths: list[int], first: int = 0) -> SampleBatch:
    """Return a batch whose observations count on from `first` and jump by 10 after each piece."""
    rows = [first + 100 * piece + step for piece, length in enumerate(lengths) for step in range(length)]
    ends = [first + 100 * piece + length + 10 for piece, length in enumerate(lengths)]
    count, pieces = len(rows), len(lengths)
    segments = Segments(
        lengths=np.array(lengths), next_obs=np.array(ends, np.float32)[:, None], final_missing=np.zeros(pieces, bool),
        first_t=np.zeros(pieces, np.int64), eps_id=np.arange(pieces) + first, agent_index=np.arange(pieces) * 2,
        env_id=np.arange(pieces) * 3, unroll_id=np.arange(pieces) + 50, prev_action=np.arange(pieces) + 70,
        prev_reward=np.arange(pieces, dtype=np.float32) + 0.5,
    )  # fmt: skip
    flags = np.zeros(count, bool)
    columns: dict[str, Any] = {
        "obs": np.array(rows, np.float32)[:, None], "actions": np.arange(count) % 4,
        "rewards": np.arange(count, dtype=np.float32), "terminateds": flags, "truncateds": flags, "t": np.arange(count),
    }  # fmt: skip
    return SampleBatch(columns, segments)


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
    assert len(two) == len(list(two)) == len(set(two))
    assert "obs" in two
    assert "vf_preds" not in two
    assert all(len(column) == 5 for column in two.values())
    assert "5 rows" in repr(two)


def test_columns_can_be_added_if_they_have_a_value_for_each_row() -> None:
    two = batch([3, 2])
    two["advantages"] = np.ones(5, np.float32)
    assert two["advantages"].sum() == 5
    with pytest.raises(ValueError, match="column 'advantages' has 4 rows, expected 5"):
        two["advantages"] = np.ones(4, np.float32)


def test_the_old_dones_and_unknown_columns_are_explained() -> None:
    with pytest.raises(KeyError, match="'dones' is split into 'terminateds' and 'truncateds'"):
        batch([1])["dones"]
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
