"""Rows become trajectories when a fragment closes: rewards moved, rows held, ends found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from menv.base_env import End
from menv.errors import ContractError
from menv.sample_batch import SampleBatch
from menv.sampling.rollout_buffer import RolloutBuffer
from menv.sampling.trajectories import TrajectoryStart


class Play:
    """A buffer for one policy whose observations are the numbers 0, 1, 2, ... in the order of writing."""

    def __init__(self) -> None:
        self.buffer = RolloutBuffer(1, 0, (), np.int64)
        self.written = 0

    def join(self, slot: int, policy: int = 0, episode: int = 0, env_index: int = 3) -> None:
        self.buffer.start(TrajectoryStart(slot, policy, True, episode, slot, env_index, 0, f"agent{slot}"))

    def rows(self, slots: list[int], rewards: list[float], answer: bool = True) -> Any:
        obs = np.arange(self.written, self.written + len(slots), dtype=np.float32)[:, None]
        rows = self.buffer.add(np.array(slots), obs, None, np.array(rewards, np.float64))
        if answer:
            self.buffer.set_actions(rows, 100 + obs[:, 0].astype(np.int64))
        self.written += len(slots)
        return rows

    def end(self, slot: int, reward: float, terminated: bool = True, final: float | None = None) -> None:
        self.buffer.end(End(slot, 3, f"agent{slot}", reward, terminated, not terminated, final, {}))

    def close(self) -> dict[int, SampleBatch]:
        released = self.buffer.close(lambda finals, _: (np.array(finals, np.float32)[:, None], None))
        return {policy: batch for policy, _, batch in released}

    def only(self) -> SampleBatch:
        (batch,) = self.close().values()
        return batch


def column(batch: SampleBatch, name: str) -> list[Any]:
    values: list[Any] = batch[name].reshape(batch.count, -1)[:, 0].tolist()
    return values


def test_infos_are_read_once_and_when_they_are_asked_for() -> None:
    class Made(Sequence[dict[str, int]]):
        """Makes its dicts when it is read, and knows which entries they will have."""

        names = ("made",)
        reads = 0

        def __len__(self) -> int:
            return 1

        def __getitem__(self, place: Any) -> Any:
            if place:
                raise IndexError
            self.reads += 1
            return {"made": self.reads}

    made = Made()
    play = Play()
    play.join(0)
    play.rows([0], [0.0])
    play.rows([0], [0.0])
    play.buffer.add_infos(made, None)
    batch = play.only()
    other = batch.copy()
    assert made.reads == 0
    assert batch["infos"].tolist() == other["infos"].tolist() == [{"made": 1}]
    assert made.reads == 1


def test_trajectories_are_sorted_by_sub_environment_and_there_by_their_first_rows() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        play, slots = Play(), rng.permutation(12)
        envs = {int(slot): place % 3 for place, slot in enumerate(slots)}
        for slot, env_index in envs.items():
            play.join(slot, env_index=env_index)
        for start in (0, 4, 8):
            play.rows([int(slot) for slot in slots[start : start + 4]], [0.0] * 4)
        for slot in envs:
            play.end(slot, float(slot))
        got = column(play.only(), "rewards")
        assert got == [slot for env_index in range(3) for slot in slots.tolist() if envs[slot] == env_index]


@pytest.mark.parametrize("agents", [1, 7, 70_000])
def test_any_number_of_slots_and_rows_fits(agents: int) -> None:
    play = Play()
    for slot in range(agents):
        play.join(slot)
    slots = list(range(agents))
    for _ in range(3 if agents > 100 else 500):
        play.rows(slots, [1.0] * agents)
    for slot in slots:
        play.end(slot, 1.0)
    batch = play.only()
    steps = 3 if agents > 100 else 500
    assert batch.count == steps * agents
    assert batch["rewards"].sum() == (steps + 1) * agents
    assert batch.segments.lengths.tolist() == [steps] * agents


def test_a_bad_row_can_be_located() -> None:
    play = Play()
    for slot in (0, 1):
        play.join(slot)
    for _ in range(3):
        play.rows([0, 1], [0, 0])
    assert play.buffer.locate(3) == (3, "agent1", 1)
    play.close()
    play.rows([1, 0], [0, 0])
    assert play.buffer.locate(2) == (3, "agent1", 3)


def test_a_trajectory_that_ends_while_its_agent_waits_is_refused() -> None:
    play = Play()
    play.join(0)
    play.rows([0], [0.0], answer=False)
    play.end(0, 1.0)
    with pytest.raises(ContractError, match="'agent0'"):
        play.close()
