"""The recorded actions of running episodes: complete, in order, and bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.sample_batch import SampleBatch, TrajectorySlices
from menv.sampling import episode_checkpoint
from menv.sampling.episode_checkpoint import EpisodeCheckpoint

Chunk = tuple[int, int, list[int]]


def recorder() -> EpisodeCheckpoint:
    nothing: Any = None
    return EpisodeCheckpoint(nothing, nothing, nothing, nothing, nothing)


def batch(*chunks: Chunk, first: int = 0) -> SampleBatch:
    """Return as much of a batch as is recorded; its chunks of (episode, agent, actions) are numbered from `first`."""
    columns = {name: np.zeros(len(chunks), np.int64) for name in TrajectorySlices.__slots__}
    columns["eps_id"] = np.array([episode for episode, _, _ in chunks])
    columns["agent_index"] = np.array([agent for _, agent, _ in chunks])
    columns["lengths"] = np.array([len(actions) for _, _, actions in chunks])
    columns["unroll_id"] = first + np.arange(len(chunks))
    actions = np.array([action for _, _, own in chunks for action in own])
    obs = np.zeros((len(actions), 1), np.float32)
    return SampleBatch({SampleBatch.OBS: obs, SampleBatch.ACTIONS: actions}, TrajectorySlices(**columns))


def recorded(log: EpisodeCheckpoint, episode: int) -> dict[int, list[int]] | None:
    found = log.actions_of(episode)
    return None if found is None else {agent: actions.tolist() for agent, actions in found.items()}


def test_each_agent_has_its_actions_in_order_over_fragments_and_lives() -> None:
    log = recorder()
    log.record([batch((7, 0, [1, 2]), (7, 0, [3]), (8, 0, [9]))], [7, 8])
    log.record([batch((7, 1, [5]), first=3)], [7, 8])
    log.record([batch((7, 0, [4]), (8, 0, [8]), first=4)], [7, 8])
    assert recorded(log, 7) == {0: [1, 2, 3, 4], 1: [5]}
    assert recorded(log, 8) == {0: [9, 8]}


def test_chunks_are_in_their_order_whichever_batch_they_are_in() -> None:
    log = recorder()
    log.record([batch((7, 0, [3]), (7, 1, [9]), (7, 0, [6]), first=1), batch((7, 0, [1, 2]))], [7])
    log.record([batch((7, 0, [8]), first=4)], [7])
    assert recorded(log, 7) == {0: [1, 2, 3, 6, 8], 1: [9]}


def test_episodes_that_have_ended_are_dropped() -> None:
    log = recorder()
    log.record([batch((7, 0, [1, 2]), (8, 0, [9]))], [8])
    assert recorded(log, 8) == {0: [9]}
    assert recorded(log, 7) == {}


def test_recorded_actions_do_not_change_with_the_batch() -> None:
    log, given = recorder(), batch((7, 0, [1, 2]))
    log.record([given], [7])
    given[SampleBatch.ACTIONS][:] = 0
    assert recorded(log, 7) == {0: [1, 2]}


def test_an_episode_that_is_too_long_is_dropped_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_checkpoint, "LONGEST", 3)
    log = recorder()
    log.record([batch((7, 0, [1, 2]), (7, 1, [1, 2]), (8, 0, [1, 2, 3]))], [7, 8])
    log.record([batch((7, 0, [5]))], [7, 8])
    assert recorded(log, 7) is None
    assert recorded(log, 8) == {0: [1, 2, 3]}
    log.record([], [8])
    assert recorded(log, 7) == {}
