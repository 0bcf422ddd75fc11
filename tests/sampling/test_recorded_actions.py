"""The actions of running episodes: all of these, in order, and not for ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.sampling import episode_checkpoint
from menv.sampling.episode_checkpoint import EpisodeCheckpoint


class Part:
    """As much of a batch as is noted; its pieces are numbered from `first` on."""

    def __init__(self, pieces: list[tuple[int, int, list[int]]], first: int) -> None:
        self.actions = np.array([action for _, _, actions in pieces for action in actions])
        self.segments: Any = type("Pieces", (), {})()
        self.segments.eps_id = np.array([episode for episode, _, _ in pieces])
        self.segments.agent_index = np.array([agent for _, agent, _ in pieces])
        self.segments.lengths = np.array([len(actions) for _, _, actions in pieces])
        self.segments.unroll_id = first + np.arange(len(pieces))

    def __getitem__(self, name: str) -> Any:
        return self.actions


def recorder() -> EpisodeCheckpoint:
    nothing: Any = None
    return EpisodeCheckpoint(nothing, nothing, nothing, nothing, nothing)


def noted(log: EpisodeCheckpoint, *pieces: tuple[int, int, list[int]], first: int | None = None) -> Part:
    part: Any = Part(list(pieces), log.rows if first is None else first)
    log.record(part)
    return part  # type: ignore[no-any-return]


def told(log: EpisodeCheckpoint, *episodes: int) -> Any:
    found = log.actions_of(episodes)
    return {
        episode: {agent: actions.tolist() for agent, actions in by_agent.items()}
        for episode, by_agent in found.items()
    }


def test_each_agent_has_its_actions_in_order_over_fragments_and_lives() -> None:
    log = recorder()
    noted(log, (7, 0, [1, 2]), (7, 0, [3]), (8, 0, [9]))
    noted(log, (7, 1, [5]))
    noted(log, (7, 0, [4]), (8, 0, [8]))
    for _ in range(2):
        assert told(log, 7, 8) == {7: {0: [1, 2, 3, 4], 1: [5]}, 8: {0: [9, 8]}}


def test_lives_are_in_their_order_whichever_batch_they_are_in() -> None:
    log = recorder()
    noted(log, (7, 0, [3]), (7, 1, [9]), (7, 0, [6]), first=1)
    noted(log, (7, 0, [1, 2]), first=0)
    noted(log, (7, 0, [8]), first=4)
    for _ in range(2):
        assert told(log, 7) == {7: {0: [1, 2, 3, 6, 8], 1: [9]}}


def test_episodes_that_are_over_are_let_go() -> None:
    log = recorder()
    noted(log, (7, 0, [1, 2]), (8, 0, [9]))
    log.keep_only([8])
    assert (log.rows, told(log, 7, 8)) == (1, {7: {}, 8: {0: [9]}})


def test_what_is_noted_does_not_change_with_the_batch() -> None:
    log = recorder()
    noted(log, (7, 0, [1, 2])).actions[:] = 0
    assert told(log, 7) == {7: {0: [1, 2]}}


def test_it_is_full_after_many_rows_and_no_more_once_they_are_let_go() -> None:
    log = recorder()
    while not log.full:
        noted(log, (7, 0, [0] * 10_000))
    log.keep_only([])
    assert not log.full
    assert log.rows == 0


def test_an_episode_that_is_too_long_is_let_go_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_checkpoint, "LONGEST", 3)
    log = recorder()
    noted(log, (7, 0, [1, 2]), (7, 1, [1, 2]), (8, 0, [1, 2, 3]))
    log.keep_only([7, 8])
    noted(log, (7, 0, [5]))
    log.keep_only([7, 8])
    assert (told(log, 7, 8), log.rows) == ({8: {0: [1, 2, 3]}}, 3)
    log.keep_only([8])
    assert told(log, 7, 8) == {7: {}, 8: {0: [1, 2, 3]}}
