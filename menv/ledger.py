"""What happened, written down once: append-only columns, cut into trajectories when a fragment closes.

`menv.loop.cohort` writes a row when an agent waits and its action when it has been answered. A row
leaves in a batch only when its reward is complete, that is, when the same trajectory has a later row
or has ended; until then it is carried into the next fragment. The ledger knows slots and numbers,
no environments, policies or networks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.batch import Column, SampleBatch, Segments
from menv.cut import Cut, RowEnd, cut

Rows = slice | npt.NDArray[np.int64]
PrepareFinals = Callable[[list[Any], list["Trajectory"]], npt.NDArray[np.float32]]


@dataclass(slots=True)
class Trajectory:
    """One life of an agent, as far as the ledger cares.

    Attributes:
        slot: Its slot.
        policy: Index of the policy that answers.
        eps_id: Its episode.
        agent_index: The agent's number within the episode.
        env_index: The sub-environment's index.
        agent_id: The agent, for messages.
        released: Rows that have left the ledger.
        prev_action: The last action that has left the ledger, or None.
        prev_reward: Its reward.
    """

    slot: int
    policy: int
    eps_id: int
    agent_index: int
    env_index: int
    agent_id: Any
    released: int = 0
    prev_action: Any = None
    prev_reward: float = 0.0

    @property
    def facts(self) -> tuple[int, int, int, int]:
        """The numbers that all its rows share."""
        return self.policy, self.eps_id, self.agent_index, self.env_index


class Ledger:
    """Append-only columns of one cohort's rows."""

    def __init__(
        self, obs_size: int, mask_width: int, action_shape: tuple[int, ...], action_dtype: npt.DTypeLike
    ) -> None:
        """Prepare columns for rows of `obs_size` floats and `mask_width` flags."""
        self._n = 0
        self._columns: dict[str, Column] = {
            "obs": np.empty((256, obs_size), np.float32),
            "actions": np.zeros((256, *action_shape), action_dtype),
            "slots": np.empty(256, np.int64),
            # What came in with the row; it pays for the row before it in the same trajectory.
            "income": np.empty(256, np.float64),
            "answered": np.zeros(256, np.bool_),
        }
        if mask_width:
            self._columns["action_mask"] = np.empty((256, mask_width), np.bool_)
        self._trajectories: list[Trajectory] = []
        self._ends: list[RowEnd] = []
        self._unrolls = 0
        self._open_before = np.zeros(0, np.int64)
        self._held = 0

    @property
    def obs(self) -> Column:
        """[N, F] observations of all rows so far; room for more behind them."""
        return self._columns["obs"]

    @property
    def masks(self) -> Column | None:
        """[N, M] action masks of all rows so far, if there are any."""
        return self._columns.get("action_mask")

    @property
    def rows(self) -> int:
        """N, the number of rows written."""
        return self._n

    def start(self, trajectory: Trajectory) -> None:
        """Begin a trajectory; its first row must follow in the same poll."""
        self._trajectories.append(trajectory)

    def add(self, slots: Column, obs: Column, mask: Column | None, rewards: Column) -> slice:
        """Write down that R agents wait.

        Args:
            slots: [R].
            obs: [R, F].
            mask: [R, M] or None.
            rewards: [R] earned since each agent's previous row.

        Returns:
            Where the rows are.
        """
        start = self._n
        stop = start + len(slots)
        columns = self._columns
        if stop > len(columns["slots"]):
            self._grow(stop)
        rows = slice(start, stop)
        columns["obs"][rows] = obs
        columns["slots"][rows] = slots
        columns["income"][rows] = rewards
        if mask is not None:
            columns["action_mask"][rows] = mask
        self._n = stop
        return rows

    def answer(self, rows: Rows, actions: Any) -> None:
        """Write down the actions of rows that were added before."""
        self._columns["actions"][rows] = actions
        self._columns["answered"][rows] = True

    def end(self, slot: int, reward: float, terminated: bool, truncated: bool, final_obs: Any) -> None:
        """End the trajectory that has `slot`; `final_obs` is raw, None if there is none."""
        self._ends.append(RowEnd(slot, self._n, reward, terminated, truncated, final_obs))

    def held_rewards(self) -> float:
        """Return what came in with first rows that are still here after `close`."""
        return float(self._columns["income"][: self._n].sum())

    def _grow(self, rows: int) -> None:
        """Make room for at least `rows` rows."""
        capacity = max(rows, 2 * len(self._columns["slots"]))
        for name, column in self._columns.items():
            bigger = np.zeros((capacity, *column.shape[1:]), column.dtype)
            bigger[: self._n] = column[: self._n]
            self._columns[name] = bigger

    def close(self, prepare_finals: PrepareFinals) -> dict[int, SampleBatch]:
        """Cut the rows into trajectories and release those whose reward is complete.

        Args:
            prepare_finals: Turns raw final observations into rows [*, F].

        Returns:
            The batch of each policy index that has rows.
        """
        n = self._n
        cut_rows = cut(self._columns["slots"][:n], self._ends)
        by_slot = sorted(self._trajectories, key=_slot_of)
        released = np.array([trajectory.released for trajectory in by_slot], np.int64)
        segments = self._segments(cut_rows, by_slot, released, prepare_finals)
        terminateds, truncateds = cut_rows.flags()
        sorted_columns = {
            "rewards": cut_rows.rewards(self._columns["income"][:n], released == 0).astype(np.float32),
            "terminateds": terminateds,
            "truncateds": truncateds,
            "t": cut_rows.steps(released),
        }
        policies = np.array([trajectory.policy for trajectory in by_slot], np.int64)
        batches = {
            int(policy): self._batch(cut_rows, sorted_columns, segments, policies == policy)
            for policy in np.unique(policies)
        }
        self._carry(cut_rows, sorted_columns["rewards"], by_slot)
        return {policy: batch for policy, batch in batches.items() if batch.count}

    def _segments(
        self, cut_rows: Cut, by_slot: list[Trajectory], released: Column, prepare_finals: PrepareFinals
    ) -> Segments:
        """Describe the piece of each trajectory, held rows left out."""
        next_obs = self._columns["obs"][cut_rows.order[cut_rows.last]]
        missing = np.zeros(len(by_slot), np.bool_)
        ends = list(zip(cut_rows.end_segments.tolist(), cut_rows.ends, strict=True))
        missing[[segment for segment, end in ends if end.final_obs is None]] = True
        given = [segment for segment, end in ends if end.final_obs is not None]
        if given:
            finals = [end.final_obs for _, end in ends if end.final_obs is not None]
            next_obs[given] = prepare_finals(finals, [by_slot[segment] for segment in given])
        actions = self._columns["actions"]
        prev_action = np.zeros((len(by_slot), *actions.shape[1:]), actions.dtype)
        prev_reward = np.zeros(len(by_slot), np.float32)
        for segment in np.flatnonzero(released).tolist():
            prev_action[segment] = by_slot[segment].prev_action
            prev_reward[segment] = by_slot[segment].prev_reward
        facts = np.array([t.facts for t in by_slot], np.int64).reshape(-1, 4)
        unrolls = np.arange(self._unrolls, self._unrolls + len(by_slot))
        self._unrolls += len(by_slot)
        return Segments(
            cut_rows.lengths - cut_rows.held, next_obs, missing, released,
            facts[:, 1], facts[:, 2], facts[:, 3], unrolls, prev_action,
            prev_reward,
        )  # fmt: skip

    def _batch(
        self, cut_rows: Cut, sorted_columns: dict[str, Column], segments: Segments, mine: Column
    ) -> SampleBatch:
        """Return the released rows of the trajectories `mine` [S]."""
        chosen = cut_rows.released()
        if not mine.all():
            chosen &= np.repeat(mine, cut_rows.lengths)
        rows = cut_rows.order[chosen]
        columns: dict[str, Column] = {
            "obs": self._columns["obs"][rows],
            "actions": self._columns["actions"][rows],
        }
        if "action_mask" in self._columns:
            columns["action_mask"] = self._columns["action_mask"][rows]
        columns.update({name: column[chosen] for name, column in sorted_columns.items()})
        return SampleBatch(columns, segments.take(mine & (segments.lengths > 0)))

    def _carry(self, cut_rows: Cut, rewards: Column, by_slot: list[Trajectory]) -> None:
        """Begin the next fragment with the rows that are held, answered ones first."""
        held = np.flatnonzero(cut_rows.held)
        kept = cut_rows.order[cut_rows.last[held]]
        for segment in held:
            trajectory, length = by_slot[segment], int(cut_rows.lengths[segment])
            if length > 1:
                before = cut_rows.last[segment] - 1
                trajectory.prev_action = self._columns["actions"][cut_rows.order[before]].copy()
                trajectory.prev_reward = float(rewards[before])
                trajectory.released += length - 1
        # What came in with a later row has been booked to the row before it.
        later = np.array([by_slot[segment].released > 0 for segment in held], np.bool_)
        self._columns["income"][kept[later]] = 0.0
        answered = self._columns["answered"][kept]
        self._open_before = np.sort(kept[~answered])
        rows = np.concatenate((np.sort(kept[answered]), self._open_before))
        for column in self._columns.values():
            column[: len(rows)] = column[rows]
        self._columns["answered"][len(rows) :] = False
        self._n = len(rows)
        self._held = int(answered.sum())
        self._trajectories = [by_slot[segment] for segment in held]
        self._ends = []

    def locate(self, row: int) -> tuple[Trajectory, int]:
        """Return the trajectory of a row and the row's index in it; slow, for messages."""
        cut_rows = cut(self._columns["slots"][: self._n], self._ends)
        place = int(np.flatnonzero(cut_rows.order == row)[0])
        segment = int(np.searchsorted(cut_rows.starts, place, "right")) - 1
        trajectory = sorted(self._trajectories, key=_slot_of)[segment]
        return trajectory, trajectory.released + place - int(cut_rows.starts[segment])

    def moved(self, rows: Rows) -> Rows:
        """Return where unanswered rows of before the last `close` are now."""
        before = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        now = self._held + np.searchsorted(self._open_before, before)
        if len(now) and now[-1] - now[0] == len(now) - 1:
            return slice(int(now[0]), int(now[-1]) + 1)
        return now


def _slot_of(trajectory: Trajectory) -> int:
    """Sort key; the sort is stable, so lives that shared a slot stay in order."""
    return trajectory.slot
