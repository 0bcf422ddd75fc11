"""The rollout buffer of the vector loops: it stores whole vector steps.

A `RolloutBuffer` is called when a trajectory starts or ends. This one reads starts and ends from two columns of flags,
for all rows at once, when a fragment closes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.base_env import SINGLE_AGENT, Column, VectorStep
from menv.errors import ContractError
from menv.sample_batch import InfoBuffer
from menv.sampling.rollout_buffer import (
    INCOMING_REWARD,
    Prepared,
    PrepareFinals,
    Released,
    RolloutBuffer,
    Rows,
)
from menv.sampling.trajectories import Trajectories, TrajectorySplit, split_vector_steps

NewIds = Callable[[Column], Column]
_FLAGS = ("terminated", "truncated")


class VectorRolloutBuffer(RolloutBuffer):
    """Rows of E sub-environments, E at a time; the slot is the env index.

    Where the final observation of an episode is a row of its own, because the next step resets, that row is the first
    of the next trajectory: its action has no effect, and it is never released.

    Args:
        columns: The arguments of `RolloutBuffer`.
        policy: Index of the policy that acts for all agents.
        num_envs: E.
        new_ids: Returns the id of the next episode of each sub-environment [K].
        lives: [E] keys of the agent episodes.
        rows: A closed buffer with the same columns to continue from, which must not be used afterwards. Row e is the
            pending row of sub-environment e. None starts with new episodes.

    Attributes:
        finished_returns: [K] returns of the episodes that the last `close` found to have ended.
        finished_lengths: [K] their env steps.
    """

    def __init__(
        self,
        *columns: Any,
        policy: int,
        num_envs: int,
        new_ids: NewIds,
        lives: Column,
        rows: RolloutBuffer | None = None,
    ) -> None:
        super().__init__(*columns)
        if rows is not None:
            _move_rows(self, rows)
        for name in _FLAGS:
            self._columns[name] = np.zeros(len(self._columns["slots"]), np.bool_)
        self.finished_returns: npt.NDArray[np.float64] = np.zeros(0)
        self.finished_lengths: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._policy = policy
        self._num_envs = num_envs
        self._all_envs = np.arange(num_envs)
        self._fill_slots()
        self._new_ids = new_ids
        self._lives = lives
        if rows is None:
            self._living = self._begun_at(self._all_envs, 0)
        self._begun = self._begun_at(self._all_envs[:0], 0)
        # [E] rewards of the running episodes in released rows.
        self._earned = np.zeros(num_envs)
        # The flags of rows up to here have been read.
        self._read = self._n
        # Final observations apart from rows, and whether they are rows instead.
        self._finals: list[Any] = []
        self._as_rows = False

    def add_step(self, step: VectorStep, obs: Column, mask: Column | None) -> slice:
        """Add a vector step with its observations [E, F] and masks [E, M] as rows; return their positions."""
        columns, start = self._columns, self._n
        stop = start + self._num_envs
        if stop > len(columns["slots"]):
            self._grow(stop)
        rows = slice(start, stop)
        columns["obs"][rows] = obs
        columns[INCOMING_REWARD][rows] = step.rewards
        if mask is not None:
            columns["action_mask"][rows] = mask
        for name, absent in self._marks.items():
            columns[name][rows] = absent
        self._n = stop
        if step.infos:
            self.add_infos(step.infos, None)
        terminated, truncated = columns["terminated"], columns["truncated"]
        if step.done is None:
            terminated[rows] = False
            truncated[rows] = False
            return rows
        terminated[rows] = step.terminated
        truncated[rows] = step.truncated
        if step.finals is None:
            self._as_rows = True
        else:
            self._finals.extend(step.finals)
            self._ends.infos.extend(step.final_infos)
        return rows

    def set_actions(self, rows: Rows, actions: Any, dist_inputs: Column | None = None) -> None:
        columns = self._columns
        if dist_inputs is not None:
            columns["action_dist_inputs"][rows] = dist_inputs
        columns["actions"][rows] = actions

    def close(self, prepare_finals: PrepareFinals) -> Released:
        incoming = self._columns[INCOMING_REWARD][: self._n]
        # One reduction for all rows of the fragment instead of one for each step.
        with np.errstate(over="ignore", invalid="ignore"):
            if not math.isfinite(np.add.reduce(incoming)):
                raise self._reward_error(incoming)
        self._read_flags()
        # Every step but the last has been answered.
        self._columns["answered"][: self._n - self._num_envs] = True
        return super().close(prepare_finals)

    def _reward_error(self, incoming: Column) -> ContractError:
        """Return the error for the first reward that is not finite, or that makes the sum infinite."""
        finite, expected = np.isfinite(incoming), "expected a finite number; look for a division by zero"
        if finite.all():
            finite = np.isfinite(np.add.accumulate(incoming))
            expected = "with which no float64 holds their sum, expected smaller ones; scale the rewards"
        row = int(np.argmin(finite))
        return ContractError(
            f"env {self._columns['slots'][row]}, env step {row // len(self._all_envs)} of the fragment: the "
            f"reward is {incoming[row]}, {expected}"
        )

    def hand_over(self, rows: RolloutBuffer, *, answered: bool) -> None:
        """Move all rows to an empty `RolloutBuffer`; this buffer must not be used afterwards."""
        self._read_flags()
        self._columns["answered"][: self._n if answered else self._n - self._num_envs] = True
        _move_rows(rows, self)
        for name in _FLAGS:
            del rows._columns[name]

    def running(self) -> Column:
        """Return the ids of the running episodes [E]."""
        self._read_flags()
        owners = self._trajectories()
        last = np.searchsorted(owners.slot, self._all_envs, "right") - 1
        eps_id: Column = owners.eps_id[last]
        return eps_id

    def locate(self, row: int) -> tuple[int, Any, int]:
        self._read_flags()
        return super().locate(row)

    def _read_flags(self) -> None:
        flags = [self._columns[name][self._read : self._n] for name in _FLAGS]
        rows = np.flatnonzero(flags[0] | flags[1])
        ends, slots = self._ends, self._columns["slots"][self._read : self._n][rows]
        ends.slots += slots.tolist()
        ends.terminated += flags[0][rows].tolist()
        ends.truncated += flags[1][rows].tolist()
        rows += self._read
        ends.rows += rows.tolist()
        # The rewards that arrived with these rows belong to the trajectories that ended.
        ends.rewards += self._columns[INCOMING_REWARD][rows].tolist()
        self._columns[INCOMING_REWARD][rows] = 0.0
        # Final observations that are rows are looked up there.
        ends.obs.extend(rows.tolist() if self._as_rows else self._finals)
        self._finals = []
        begun = self._begun_at(slots, -1 if self._as_rows else 0)
        self._begun = self._begun.and_then(begun) if len(self._begun.slot) else begun
        self._read = self._n

    def _begun_at(self, slots: Column, released: int) -> Trajectories:
        count = len(slots)
        starts = (
            slots, [self._policy] * count, [True] * count, self._new_ids(slots), [0] * count, slots,
            self._lives[slots], [SINGLE_AGENT] * count,
        )  # fmt: skip
        begun = Trajectories.begun(starts, self._columns["actions"])
        begun.released[:] = released
        return begun

    def _grow(self, rows: int) -> None:
        super()._grow(rows)
        self._fill_slots()

    def _fill_slots(self) -> None:
        slots = self._columns["slots"]
        slots[:] = np.arange(len(slots)) % self._num_envs

    def _split(self) -> TrajectorySplit:
        end_slots, end_rows = np.array(self._ends.slots, np.int64), np.array(self._ends.rows, np.int64)
        return split_vector_steps(self._n // self._num_envs, self._num_envs, end_slots, end_rows)

    def _trajectories(self) -> Trajectories:
        """Return all trajectories that have rows here, in the order of the split."""
        return self._living.and_then(self._begun)

    def _info_log(self) -> InfoBuffer:
        ends = self._ends
        if self._as_rows:
            ends.infos = (
                [self._info_at(row) for row in ends.rows] if self._info_polls else [{}] * len(ends.rows)
            )
        return super()._info_log()

    def _info_at(self, row: int) -> Mapping[str, Any]:
        place = bisect_right(self._info_polls, row, key=itemgetter(0)) - 1
        start, infos, _ = self._info_polls[place]
        return infos[row - start] if place >= 0 and row - start < len(infos) else {}

    def _prepared(self, finals: list[Any], owners: Trajectories, prepare_finals: PrepareFinals) -> Prepared:
        """Return final observations as rows and masks."""
        if self._as_rows:
            masks = self._columns.get("action_mask")
            return self._columns["obs"][finals], None if masks is None else masks[finals]
        return super()._prepared(finals, owners, prepare_finals)

    def _carry(self, split: TrajectorySplit, rewards: Column, owners: Trajectories) -> None:
        # The first trajectory of each sub-environment continues from the previous fragment.
        total = _step_by_step(rewards, split, np.searchsorted(owners.slot, self._all_envs), self._earned)
        ended = split.end_segments
        returns, lengths = np.empty(len(ended)), np.empty(len(ended), np.int64)
        returns[split.end_order] = total[ended]
        lengths[split.end_order] = owners.released[ended] + split.lengths[ended]
        self.finished_returns, self.finished_lengths = returns, lengths
        self._earned = total[split.held]
        super()._carry(split, rewards, owners)
        self._begun = self._begun.take(slice(0, 0))
        self._read = self._n


def _step_by_step(rewards: Column, split: TrajectorySplit, continuing: Column, earned: Column) -> Column:
    """Return [S] the return of each trajectory, added in time order as in the general loop.

    `continuing` [E] are the trajectories that began before, with the returns `earned` [E].
    """
    starts, lengths = split.starts, split.lengths
    owner = np.repeat(np.arange(len(starts)), lengths)
    table = np.zeros((int(lengths.max()), len(starts)))
    table[np.arange(len(rewards)) - starts[owner], owner] = rewards
    table[0, continuing] += earned
    # `np.sum` may add in another order, which changes the last bit.
    total: Column = np.add.accumulate(table, axis=0)[-1]
    return total


def _move_rows(buffer: RolloutBuffer, before: RolloutBuffer) -> None:
    """Move the rows of a buffer, which must not be used afterwards, to an empty one."""
    names = "_n", "_columns", "_marks", "_released", "_next_unroll_id", "_ends", "_info_polls", "carried"
    for name in names:
        setattr(buffer, name, getattr(before, name))
    buffer._living = before._trajectories()
