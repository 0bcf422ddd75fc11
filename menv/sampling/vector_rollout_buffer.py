"""The buffer of sub-environments that step together: a frame is written down as it comes.

What a `RolloutBuffer` is told when it happens (this trajectory ends, that one begins) is read here from two
columns of flags when a fragment closes, for all rows at once. `menv.sampling.vector_loop` writes it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from menv.base_env import SINGLE_AGENT, Column, VectorStep
from menv.errors import ContractError
from menv.sample_batch import InfoBuffer
from menv.sampling.rollout_buffer import Prepared, PrepareFinals, RolloutBuffer, Rows
from menv.sampling.trajectories import Trajectories, TrajectorySplit, cut_frames

NewIds = Callable[[Column], Column]
_FLAGS = ("terminated", "truncated")


class FinishedEpisodes(NamedTuple):
    """Episodes that ended in a fragment, in this order.

    Attributes:
        returns: [K] sums of their rewards.
        lengths: [K] env steps.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]


class VectorRolloutBuffer(RolloutBuffer):
    """Rows of E sub-environments, E at a time; slot = env index.

    Where the last observation of an episode comes as a row of its own, because the next step resets,
    that row is kept as the first of the next trajectory: its action goes nowhere and it never leaves.

    Args:
        obs_size: See `RolloutBuffer`; so are the next five.
        mask_width: M.
        action_shape: Of one action.
        action_dtype: Of actions.
        inputs_width: D.
        obs_dtype: Of observations.
        policy: Index of the policy that answers for everybody.
        num_envs: E.
        new_ids: Gives each of the sub-environments [K] the id of its next episode.
        lives: [E] keys of their agents' lives.
        rows: A closed buffer of rows of the same columns, to go on from: row number e is that of sub-environment e, and
            waits. It is not to be used any more. None begins with new episodes.

    Attributes:
        finished: The episodes that the last `close` found to have ended.
    """

    def __init__(
        self,
        obs_size: int,
        mask_width: int,
        action_shape: tuple[int, ...],
        action_dtype: npt.DTypeLike,
        inputs_width: int = 0,
        obs_dtype: npt.DTypeLike = np.float32,
        *,
        policy: int,
        num_envs: int,
        new_ids: NewIds,
        lives: Column,
        rows: RolloutBuffer | None = None,
    ) -> None:
        super().__init__(obs_size, mask_width, action_shape, action_dtype, inputs_width, obs_dtype)
        if rows is not None:
            _go_on(self, rows)
        for name in _FLAGS:
            self._columns[name] = np.zeros(len(self._columns["slots"]), np.bool_)
        self.finished = FinishedEpisodes(np.zeros(0), np.zeros(0, np.int64))
        self._policy = policy
        self._num_envs = num_envs
        self._everybody = np.arange(num_envs)
        self._seat_all()
        self._new_ids = new_ids
        self._lives = lives
        if rows is None:
            self._living = self._begun_at(self._everybody, 0)
        self._begun = self._begun_at(self._everybody[:0], 0)
        # [E] what the running episodes have earned with rows that have left.
        self._earned = np.zeros(num_envs)
        # Rows up to here have been looked through for ends.
        self._read = self._n
        # Last observations that came beside the rows, and whether they are rows themselves.
        self._finals: list[Any] = []
        self._as_rows = False

    def add_frame(self, frame: VectorStep, obs: Column, mask: Column | None) -> slice:
        """Write a frame down.

        Args:
            frame: Its rewards and flags.
            obs: [E, F] its observations as rows.
            mask: [E, M] or None.

        Returns:
            Where the rows are.
        """
        columns, start = self._columns, self._n
        stop = start + self._num_envs
        if stop > len(columns["slots"]):
            self._grow(stop)
        rows = slice(start, stop)
        columns["obs"][rows] = obs
        columns["income"][rows] = frame.rewards
        if mask is not None:
            columns["action_mask"][rows] = mask
        for name, absent in self._marks.items():
            columns[name][rows] = absent
        self._n = stop
        if frame.infos:
            self.inform(frame.infos, None)
        terminated, truncated = columns["terminated"], columns["truncated"]
        if frame.done is None:
            terminated[rows] = False
            truncated[rows] = False
            return rows
        terminated[rows] = frame.terminated
        truncated[rows] = frame.truncated
        if frame.finals is None:
            self._as_rows = True
        else:
            self._finals.extend(frame.finals)
            self._ends.infos.extend(frame.final_infos)
        return rows

    def answer(self, rows: Rows, actions: Any, dist_inputs: Column | None = None) -> None:
        """Write down the actions of the last frame; see `RolloutBuffer.answer`."""
        columns = self._columns
        if dist_inputs is not None:
            columns["action_dist_inputs"][rows] = dist_inputs
        columns["actions"][rows] = actions

    def close(self, prepare_finals: PrepareFinals) -> dict[int, Any]:
        """Cut the rows into trajectories; see `RolloutBuffer.close`.

        Raises:
            ContractError: A reward is not a finite number, or no float64 holds the sum of them; it names whose.
        """
        income = self._columns["income"][: self._n]
        # One reduction for all rows of the fragment instead of one for each step.
        with np.errstate(over="ignore", invalid="ignore"):
            if not math.isfinite(np.add.reduce(income)):
                raise self._bad_income(income)
        self._read_flags()
        # There is no frame before the one before it was answered.
        self._note_answered(self._n - self._num_envs)
        return super().close(prepare_finals)

    def _bad_income(self, income: Column) -> ContractError:
        """Return the error for the first reward that is not finite, or with which the sum of them no longer is."""
        finite, expected = np.isfinite(income), "expected a finite number; look for a division by zero"
        if finite.all():
            finite = np.isfinite(np.add.accumulate(income))
            expected = "with which no float64 holds their sum, expected smaller ones; scale the rewards"
        row = int(np.argmin(finite))
        return ContractError(
            f"env {self._columns['slots'][row]}, env step {row // len(self._everybody)} of the fragment: the "
            f"reward is {income[row]}, {expected}"
        )

    def hand_over(self, rows: RolloutBuffer, *, answered: bool) -> None:
        """Let an empty buffer of rows go on from here; this one is not to be used any more.

        Args:
            rows: With the same columns.
            answered: Whether the last frame has been.
        """
        self._read_flags()
        self._note_answered(self._n if answered else self._n - self._num_envs)
        _go_on(rows, self)
        for name in _FLAGS:
            del rows._columns[name]

    def running(self) -> Column:
        """Return [E] the ids of the episodes that run."""
        self._read_flags()
        owners = self._trajectories()
        last = np.searchsorted(owners.slot, self._everybody, "right") - 1
        eps_id: Column = owners.eps_id[last]
        return eps_id

    def _note_answered(self, rows: int) -> None:
        self._columns["answered"][:rows] = True

    def locate(self, row: int) -> tuple[int, Any, int]:
        """Return whose a row is; see `RolloutBuffer.locate`."""
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
        # What came in with these rows was the last of the trajectory before.
        ends.rewards += self._columns["income"][rows].tolist()
        self._columns["income"][rows] = 0.0
        # Those that are rows themselves are looked up there.
        ends.obs.extend(rows.tolist() if self._as_rows else self._finals)
        self._finals = []
        begun = self._begun_at(slots, -1 if self._as_rows else 0)
        self._begun = self._begun.and_then(begun) if len(self._begun.slot) else begun
        self._read = self._n

    def _begun_at(self, slots: Column, released: int) -> Trajectories:
        count = len(slots)
        starts = np.zeros((count, 6), np.int64)
        starts[:, 0] = starts[:, 4] = slots
        starts[:, 1] = self._policy
        starts[:, 2] = self._new_ids(slots)
        starts[:, 5] = self._lives[slots]
        begun = Trajectories.begun(starts, [SINGLE_AGENT] * count, self._columns["actions"])
        begun.released[:] = released
        return begun

    def _grow(self, rows: int) -> None:
        super()._grow(rows)
        self._seat_all()

    def _seat_all(self) -> None:
        slots = self._columns["slots"]
        slots[:] = np.arange(len(slots)) % self._num_envs

    def _cut(self) -> TrajectorySplit:
        end_slots, end_rows = np.array(self._ends.slots, np.int64), np.array(self._ends.rows, np.int64)
        return cut_frames(self._n // self._num_envs, self._num_envs, end_slots, end_rows)

    def _trajectories(self) -> Trajectories:
        """Return all trajectories that have rows here, in the order of a cut."""
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
        """Return last observations as rows and masks; those that came as rows are."""
        if self._as_rows:
            masks = self._columns.get("action_mask")
            return self._columns["obs"][finals], None if masks is None else masks[finals]
        return super()._prepared(finals, owners, prepare_finals)

    def _carry(self, cut_rows: TrajectorySplit, rewards: Column, owners: Trajectories) -> None:
        # Of each sub-environment's trajectories the first one goes on from the last fragment.
        total = _step_by_step(rewards, cut_rows, np.searchsorted(owners.slot, self._everybody), self._earned)
        ended = cut_rows.end_segments
        returns, lengths = np.empty(len(ended)), np.empty(len(ended), np.int64)
        returns[cut_rows.end_order] = total[ended]
        lengths[cut_rows.end_order] = owners.released[ended] + cut_rows.lengths[ended]
        self.finished = FinishedEpisodes(returns, lengths)
        self._earned = total[cut_rows.held]
        super()._carry(cut_rows, rewards, owners)
        self._begun = self._begun.take(slice(0, 0))
        self._read = self._n


def _step_by_step(rewards: Column, cut_rows: TrajectorySplit, going_on: Column, earned: Column) -> Column:
    """Return [S] the rewards of each trajectory, added up in the order in which they were paid, as elsewhere.

    Args:
        rewards: [N] in the sorted order.
        cut_rows: Where the trajectories are.
        going_on: [E] trajectories that began before.
        earned: [E] what they had earned then.
    """
    starts, lengths = cut_rows.starts, cut_rows.lengths
    owner = np.repeat(np.arange(len(starts)), lengths)
    table = np.zeros((int(lengths.max()), len(starts)))
    table[np.arange(len(rewards)) - starts[owner], owner] = rewards
    table[0, going_on] += earned
    # A sum may add in another order, which changes the last bit.
    total: Column = np.add.accumulate(table, axis=0)[-1]
    return total


def _go_on(buffer: RolloutBuffer, before: RolloutBuffer) -> None:
    """Let an empty buffer go on with the rows of another, which is done with."""
    for name in ("_n", "_columns", "_marks", "_released", "_unrolls", "_ends", "_info_polls", "carried"):
        setattr(buffer, name, getattr(before, name))
    buffer._living = before._trajectories()
