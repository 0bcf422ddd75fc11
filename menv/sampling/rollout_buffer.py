"""What happened, written down once: append-only columns, cut into trajectories when a fragment closes.

`menv.sampling.policy_group` writes a row when an agent waits and its action when it has been answered. A row leaves
in a batch only when its reward is complete, that is, when the same trajectory has a later row or has ended; until then
it is carried into the next fragment. The buffer knows slots and numbers, no environments, policies or networks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.base_env import Column, End
from menv.errors import ContractError
from menv.sample_batch import InfoBuffer, Infos, SampleBatch, TrajectorySlices
from menv.sampling.trajectories import Trajectories, TrajectorySplit, split_trajectories
from menv.spaces import as_flag


@dataclass(slots=True)
class EndedTrajectories:
    """Trajectories that ended, in the order in which they did; lists of numbers leave the collector alone.

    Attributes:
        slots: The slots that they had.
        rewards: Earned since their last rows.
        terminated: Flags.
        truncated: Flags.
        obs: Final observations, None where the environment gave none.
        infos: The info dicts that came with the ends.
        rows: Rows that had been written then.
        env_steps: Env steps of the sub-environment then, where rows are dated.
        withdrawn: Indices of the ends that take the trajectory's last row with them.
    """

    slots: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    obs: list[Any] = field(default_factory=list)
    infos: list[Mapping[str, Any]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    env_steps: list[int] = field(default_factory=list)
    withdrawn: set[int] = field(default_factory=set)

    def add(self, end: End, rows: int) -> None:
        """Note an end after so many rows."""
        if end.withdrawn:
            self.withdrawn.add(len(self.slots))
        self.slots.append(end.slot)
        self.rewards.append(end.reward)
        self.terminated.append(end.terminated)
        self.truncated.append(end.truncated)
        self.obs.append(end.obs)
        self.infos.append(end.info)
        self.rows.append(rows)


Rows = slice | npt.NDArray[np.int64]
Prepared = tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]
PrepareFinals = Callable[[list[Any], Trajectories], Prepared]

_FIRST_ROWS = 256
_RELEASED = ("obs", "actions", "action_mask", "action_dist_inputs")
_ENV_T = SampleBatch.ENV_T
TRAINING_ENABLED = "training_enabled"
"""The entry of an info dict that says whether policies may learn from the agent's trajectory."""
# What the other rows have in columns that only some have.
_ABSENT = {"f": np.nan, "c": np.nan, "i": -1, "u": 0, "b": False, "O": None}


class RolloutBuffer:
    """Append-only columns of one group's rows.

    Attributes:
        carried: The first rows, so many, were answered before the last `close`.
        excluded_late: Rows of trajectories that the last `close` excluded from training and that had left before.
        disowned: Rewards that came in with the only row of a trajectory, where the last `close` withdrew that row.
    """

    def __init__(
        self,
        obs_size: int,
        mask_width: int,
        action_shape: tuple[int, ...],
        action_dtype: npt.DTypeLike,
        inputs_width: int = 0,
        obs_dtype: npt.DTypeLike = np.float32,
    ) -> None:
        """Prepare columns for rows of `obs_size` numbers and `mask_width` flags.

        Args:
            obs_size: F.
            mask_width: M, 0 without masks.
            action_shape: Of one action.
            action_dtype: Of actions.
            inputs_width: D, the distribution inputs that `answer` is told; 0 for none.
            obs_dtype: Of observations.
        """
        self._n = 0
        self._columns: dict[str, Column] = {
            "obs": np.empty((_FIRST_ROWS, obs_size), obs_dtype),
            "actions": np.zeros((_FIRST_ROWS, *action_shape), action_dtype),
            "slots": np.empty(_FIRST_ROWS, np.int64),
            # What came in with the row; it pays for the row before it in the same trajectory.
            "income": np.empty(_FIRST_ROWS, np.float64),
            "answered": np.zeros(_FIRST_ROWS, np.bool_),
        }
        if mask_width:
            self._columns["action_mask"] = np.empty((_FIRST_ROWS, mask_width), np.bool_)
        if inputs_width:
            self._columns["action_dist_inputs"] = np.zeros((_FIRST_ROWS, inputs_width), np.float32)
        self._released: tuple[str, ...] = _RELEASED
        # Trajectories that lived on over the last close, and those that began since.
        self._living = Trajectories.begun((), (), self._columns["actions"])
        self._starts: list[int] = []
        self._agent_ids: list[Any] = []
        self._ends = EndedTrajectories()
        self._unrolls = 0
        # Columns that not all rows have, and what the others have there.
        self._marks: dict[str, Any] = {}
        # The first row of each poll, the info dicts that came in with it, and the rows' places among these.
        self._info_polls: list[tuple[int, Sequence[Mapping[str, Any]], Column | None]] = []
        # Where unanswered rows were before the last close, and how many answered ones lie before them now.
        self._open_before = np.zeros(0, np.int64)
        self.carried = self.excluded_late = 0
        self.disowned: Sequence[float] = ()

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

    def start(self, start: tuple[int, ...], agent_id: Any) -> None:
        """Begin a trajectory, with the fields of a `Start`; its first row must follow in the same poll."""
        self._starts.extend(start)
        self._agent_ids.append(agent_id)

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
        for name, absent in self._marks.items():
            columns[name][rows] = absent
        self._n = stop
        return rows

    def inform(self, infos: Sequence[Mapping[str, Any]] | None, places: Column | None) -> None:
        """Note the info dicts that came in with the rows of the last `add`; only a reference is kept.

        Args:
            infos: Those of a whole poll, a sequence that nobody changes any more.
            places: [R] where the rows' own are among them, None if they are all.
        """
        # Empty dicts are let go at once: keeping thousands of them alive slows sampling by 2 %. A sequence that
        # makes its dicts when it is read is left unread.
        if infos and (not isinstance(infos, list) or any(infos)):
            count = len(infos) if places is None else len(places)
            self._info_polls.append((self._n - count, infos, places))

    def answer(self, rows: Rows, actions: Any, dist_inputs: Column | None = None) -> None:
        """Write down the actions of rows that were added before, and what they were drawn from."""
        if dist_inputs is not None:
            self._columns["action_dist_inputs"][rows] = dist_inputs
        self._columns["actions"][rows] = actions
        self._columns["answered"][rows] = True

    def end(self, end: End) -> None:
        """End the trajectory that has the slot of `end`."""
        self._ends.add(end, self._n)

    def columns_at(self, rows: Rows, names: Sequence[str]) -> dict[str, Column]:
        """Return copies of some columns at some rows, of those names that there are."""
        return {name: self._columns[name][rows].copy() for name in names if name in self._columns}

    def mark(self, name: str, rows: Rows, values: Any) -> None:
        """Write `values` [R, ...], or one for all, into a column in which other rows have NaN, -1, 0, False or None."""
        if name not in self._columns:
            kind = np.asarray(values)
            room = (len(self._columns["slots"]), *kind.shape[1:])
            self._marks[name] = _ABSENT[kind.dtype.kind]
            self._columns[name] = np.full(room, self._marks[name], kind.dtype)
            self._released = (*self._released, name)
        self._columns[name][rows] = values

    def date(self, rows: Rows, env_steps: Column) -> None:
        """Note the env steps [R] of the sub-environments of rows that were added; who dates some dates all."""
        if _ENV_T not in self._columns:
            self._columns[_ENV_T] = np.zeros(len(self._columns["slots"]), np.int64)
        self._columns[_ENV_T][rows] = env_steps

    def date_end(self, env_steps: int) -> None:
        """Note the env steps of the sub-environment of the trajectory that ended last."""
        self._ends.env_steps.append(env_steps)

    def held_rewards(self) -> float:
        """Return what came in with first rows that are still here after `close`."""
        return float(self._columns["income"][: self._n].sum())

    def close(self, prepare_finals: PrepareFinals) -> dict[int, SampleBatch]:
        """Cut the rows into trajectories and release those whose reward is complete.

        Args:
            prepare_finals: Turns raw final observations, and the trajectories that they end, into rows
                [*, F] and masks [*, M].

        Returns:
            The batch of each policy index that has rows; of its complement those that nobody learns from.
        """
        cut_rows = self._cut()
        owners = self._trajectories()
        self._check_answered(cut_rows, owners)
        segments = self._segments(cut_rows, owners, prepare_finals)
        ends = self._ends
        income = self._columns["income"][: self._n]
        rewards = cut_rows.rewards(income, owners.released == 0, np.array(ends.rewards, np.float64))
        sorted_columns = {
            "rewards": rewards,
            "terminateds": cut_rows.flags(np.array(ends.terminated, np.bool_)),
            "truncateds": cut_rows.flags(np.array(ends.truncated, np.bool_)),
            "t": cut_rows.steps(owners.released),
        }
        if _ENV_T in self._columns:
            sorted_columns |= self._dates(cut_rows)
        infos = self._info_log()
        self._exclude(cut_rows, owners, infos.entries(TRAINING_ENABLED))
        by = np.where(owners.excluded, np.minimum(owners.policy, ~owners.policy), owners.policy)
        batches = {
            int(policy): self._batch(cut_rows, sorted_columns, segments, infos, by == policy)
            for policy in np.unique(by)
        }
        # What was paid before a first action that does not count is no action's.
        none_left = cut_rows.withdrawn & (cut_rows.lengths == 1) & (owners.released == 0)
        self.disowned = income[cut_rows.order[cut_rows.last[none_left]]].tolist()
        self._carry(cut_rows, rewards, owners)
        return {policy: batch for policy, batch in batches.items() if batch.count}

    def _exclude(
        self, cut_rows: TrajectorySplit, owners: Trajectories, told: Sequence[tuple[int, Any]]
    ) -> None:
        """Note in `owners` which trajectories are excluded from training by the last info that says so.

        Args:
            cut_rows: The trajectories.
            owners: The same.
            told: Values of `training_enabled`, with the places of their infos; see `InfoBuffer.entries`.
        """
        self.excluded_late = 0
        if not told:
            return
        # Where each info lies in the sorted order; that of an end comes after the last row.
        at = np.empty(self._n + len(cut_rows.end_order), np.float64)
        at[cut_rows.order] = np.arange(self._n)
        at[self._n + cut_rows.end_order] = cut_rows.last[cut_rows.end_segments] + 0.5
        # A row that is no step carries the info of the episode before; see `_segments`.
        at[cut_rows.order[cut_rows.starts[owners.released < 0]]] = -1.0
        when = at[[place for place, _ in told]]
        own = np.searchsorted(cut_rows.starts, when, "right") - 1
        allowed = np.array(
            [_training_flag(flag, owners, index) for (_, flag), index in zip(told, own, strict=True)]
        )
        in_time = np.argsort(when, kind="stable")
        in_time = in_time[when[in_time] >= 0]
        before = owners.excluded.copy()
        # Of several values for one trajectory the last one stays.
        owners.excluded[own[in_time]] = ~allowed[in_time]
        late = owners.excluded & ~before & (owners.policy >= 0)
        self.excluded_late = int(np.maximum(owners.released[late], 0).sum())

    def locate(self, row: int) -> tuple[int, Any, int]:
        """Return the env index and the agent of a row, and the row's index in its trajectory, for messages."""
        cut_rows = self._cut()
        place = int(np.flatnonzero(cut_rows.order == row)[0])
        segment = int(np.searchsorted(cut_rows.starts, place, "right")) - 1
        owners = self._trajectories()
        t = int(owners.released[segment]) + place - int(cut_rows.starts[segment])
        return int(owners.env_index[segment]), owners.agent_id[segment], t

    @property
    def closed(self) -> bool:
        """Whether nothing has been written since the last `close`."""
        return self._n == len(self._living.slot) and not self._starts and not self._ends.slots

    def held(self) -> tuple[Trajectories, dict[str, Column]]:
        """Return the trajectories that live on after `close`, and the columns of the one row that each has."""
        rank = np.argsort(np.argsort(self._columns["slots"][: self._n], kind="stable"))
        return self._living.take(rank), {name: column[: self._n] for name, column in self._columns.items()}

    def fits(self, columns: Mapping[str, Column]) -> bool:
        """Return whether rows of another buffer could lie here."""
        return all(
            name in columns and columns[name].shape[1:] == column.shape[1:]
            for name, column in self._columns.items()
        )

    def take_up(self, living: Trajectories, columns: Mapping[str, Column]) -> None:
        """Go on with trajectories of another buffer, the columns of whose rows are like those here.

        Args:
            living: S trajectories.
            columns: [S, ...] as from `held`.
        """
        start, stop = self._n, self._n + len(living.slot)
        if _ENV_T in columns:
            self._columns.setdefault(_ENV_T, np.zeros(len(self._columns["slots"]), np.int64))
        if stop > len(self._columns["slots"]):
            self._grow(stop)
        for name, column in columns.items():
            if name != SampleBatch.WEIGHTS_SEQ_NO:  # These count anew.
                self.mark(name, slice(start, stop), column)
        self._n = stop
        self._living = self._living.and_then(living)

    def moved(self, rows: Rows) -> Rows:
        """Return where unanswered rows of before the last `close` are now."""
        before = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        now = self.carried + np.searchsorted(self._open_before, before)
        if len(now) and now[-1] - now[0] == len(now) - 1:
            return slice(int(now[0]), int(now[-1]) + 1)
        return now

    def _cut(self) -> TrajectorySplit:
        end_slots, end_rows = np.array(self._ends.slots, np.int64), np.array(self._ends.rows, np.int64)
        return split_trajectories(
            self._columns["slots"][: self._n], end_slots, end_rows, self._ends.withdrawn
        )

    def _trajectories(self) -> Trajectories:
        """Return all trajectories that have rows here, in the order of a cut."""
        return self._living.and_then(
            Trajectories.begun(self._starts, self._agent_ids, self._columns["actions"])
        )

    def _check_answered(self, cut_rows: TrajectorySplit, owners: Trajectories) -> None:
        unanswered = ~self._columns["answered"][cut_rows.order[cut_rows.last]] & ~cut_rows.incomplete
        if unanswered.any():
            index = int(np.argmax(unanswered))
            raise ContractError(
                f"env {owners.env_index[index]}: the trajectory of agent {owners.agent_id[index]!r} ended while the "
                "agent waited for an action, expected an answer first; end it after the action was sent"
            )

    def _grow(self, rows: int) -> None:
        capacity = max(rows, 2 * len(self._columns["slots"]))
        for name, column in self._columns.items():
            bigger = np.zeros((capacity, *column.shape[1:]), column.dtype)
            bigger[: self._n] = column[: self._n]
            self._columns[name] = bigger

    def _segments(
        self, cut_rows: TrajectorySplit, owners: Trajectories, prepare_finals: PrepareFinals
    ) -> TrajectorySlices:
        """Describe the piece of each trajectory, held rows left out."""
        last = cut_rows.order[cut_rows.last]
        masks = self._columns.get("action_mask")
        next_obs = self._columns["obs"][last]
        next_mask = np.zeros((len(last), 0), np.bool_) if masks is None else masks[last]
        missing = np.zeros(len(owners.slot), np.bool_)
        finals = [self._ends.obs[index] for index in cut_rows.end_order.tolist()]
        absent = np.array([final is None for final in finals], np.bool_)
        missing[cut_rows.end_segments[absent]] = True
        missing &= ~cut_rows.withdrawn
        if not absent.all():
            given = cut_rows.end_segments[~absent]
            shown = [final for final in finals if final is not None] if absent.any() else finals
            rows, final_masks = self._prepared(shown, owners.take(given), prepare_finals)
            next_obs[given] = rows
            next_mask[given] = True if final_masks is None else final_masks
        # Unique in this buffer, in the order of their first rows; the sampler numbers the pieces of all its buffers.
        unrolls = self._unrolls + cut_rows.order[cut_rows.starts]
        self._unrolls += self._n
        # A trajectory may begin with a row that is no step; it counts as number -1 and never leaves.
        lengths = cut_rows.lengths - cut_rows.incomplete - (owners.released < 0)
        return TrajectorySlices(
            lengths, next_obs, next_mask, missing, np.maximum(owners.released, 0), owners.eps_id,
            owners.agent_index, owners.env_index, unrolls, owners.prev_action, owners.prev_reward, owners.life,
        )  # fmt: skip

    def _dates(self, cut_rows: TrajectorySplit) -> dict[str, Column]:
        """Return [N] the env steps at each row and at what came after it, in the sorted order.

        The last row of a trajectory that lives on, which nothing has come after, is not released.
        """
        dates = self._columns[_ENV_T][: self._n]
        at_ends = np.array(self._ends.env_steps, np.int64)
        after = np.concatenate((dates, at_ends))
        return {_ENV_T: dates[cut_rows.order], SampleBatch.NEXT_ENV_T: after[cut_rows.sources()]}

    def _info_log(self) -> InfoBuffer:
        return InfoBuffer(self._n, self._info_polls, self._ends.infos)

    def _prepared(self, finals: list[Any], owners: Trajectories, prepare_finals: PrepareFinals) -> Prepared:
        return prepare_finals(finals, owners)

    def _batch(
        self,
        cut_rows: TrajectorySplit,
        sorted_columns: dict[str, Column],
        segments: TrajectorySlices,
        infos: InfoBuffer,
        mine: Column,
    ) -> SampleBatch:
        """Return the released rows of the trajectories `mine` [S]."""
        chosen = cut_rows.released() & (sorted_columns["t"] >= 0)
        if not mine.all():
            chosen &= np.repeat(mine, cut_rows.lengths)
        pieces = np.flatnonzero(mine & (segments.lengths > 0))
        # Taking by index is twice as fast as selecting by a mask, and than indexing in square brackets.
        places, pieces = cut_rows.by_env(np.flatnonzero(chosen), pieces, segments.env_id)
        rows = cut_rows.order.take(places)
        columns = {
            name: self._columns[name].take(rows, axis=0) for name in self._released if name in self._columns
        }
        columns.update({name: column.take(places) for name, column in sorted_columns.items()})
        return SampleBatch(columns, segments.take(pieces), Infos((infos,), cut_rows.sources().take(places)))

    def _carry(self, cut_rows: TrajectorySplit, rewards: Column, owners: Trajectories) -> None:
        """Begin the next fragment with the rows that are held, answered ones first."""
        held = np.flatnonzero(cut_rows.held)
        last = cut_rows.last[held]
        kept = cut_rows.order[last]
        living = owners.take(held)
        living.released += cut_rows.lengths[held] - 1
        more = (cut_rows.lengths[held] > 1) & (living.released > 0)
        before = last[more] - 1
        living.prev_action[more] = self._columns["actions"][cut_rows.order[before]]
        living.prev_reward[more] = rewards[before]
        # What came in with a later row has been booked to the row before it.
        self._columns["income"][kept[living.released != 0]] = 0.0
        answered = self._columns["answered"][kept]
        self._open_before = np.sort(kept[~answered])
        rows = np.concatenate((np.sort(kept[answered]), self._open_before))
        for column in self._columns.values():
            column[: len(rows)] = column[rows]
        self._columns["answered"][len(rows) :] = False
        self._n = len(rows)
        self.carried = int(answered.sum())
        self._living = living
        self._starts, self._agent_ids, self._ends = [], [], EndedTrajectories()
        self._info_polls = []


def _training_flag(flag: Any, owners: Trajectories, index: int) -> bool:
    """Return a value of `training_enabled` as a truth value.

    Raises:
        ContractError: It is none; the message names the agent.
    """
    if type(flag) is bool:
        return flag
    whose = f"env {owners.env_index[index]}, agent {owners.agent_id[index]!r}: info[{TRAINING_ENABLED!r}]"
    return as_flag(flag, whose)


States = npt.NDArray[np.float32]

_STATE = "state"


class RecurrentRolloutBuffer(RolloutBuffer):
    """A `RolloutBuffer` with the columns `state_in_0`, `state_in_1` and so on: the state before each row.

    Args:
        obs_size: See `RolloutBuffer`; so are the next five.
        mask_width: M.
        action_shape: Of one action.
        action_dtype: Of actions.
        inputs_width: D.
        obs_dtype: Of observations.
        state_sizes: Numbers in each part of the state; S together.
    """

    def __init__(
        self,
        obs_size: int,
        mask_width: int,
        action_shape: tuple[int, ...],
        action_dtype: npt.DTypeLike,
        inputs_width: int,
        obs_dtype: npt.DTypeLike,
        state_sizes: tuple[int, ...],
    ) -> None:
        super().__init__(obs_size, mask_width, action_shape, action_dtype, inputs_width, obs_dtype)
        rows = len(self._columns["slots"])
        bounds = [0, *accumulate(state_sizes)]
        self._parts = {
            SampleBatch.STATE_IN.format(number): slice(bounds[number], bounds[number + 1])
            for number in range(len(state_sizes))
        }
        for name, part in self._parts.items():
            self._columns[name] = np.zeros((rows, part.stop - part.start), np.float32)
        self._released = (*self._released, *self._parts)
        self._states: States = np.zeros((64, bounds[-1]), np.float32)

    def start(self, start: tuple[int, ...], agent_id: Any) -> None:
        """Begin a trajectory, with nothing to remember."""
        super().start(start, agent_id)
        slot = start[0]
        while slot >= len(self._states):
            self._states = np.concatenate((self._states, np.zeros_like(self._states)))
        self._states[slot] = 0.0

    def held(self) -> tuple[Trajectories, dict[str, Column]]:
        """Return what goes on, the state before the next row among the columns; see `RolloutBuffer.held`."""
        living, columns = super().held()
        return living, {**columns, _STATE: self._states[living.slot]}

    def take_up(self, living: Trajectories, columns: Mapping[str, Column]) -> None:
        """Go on with trajectories of another buffer; see `RolloutBuffer.take_up`."""
        super().take_up(living, {name: column for name, column in columns.items() if name != _STATE})
        while len(living.slot) and living.slot.max() >= len(self._states):
            self._states = np.concatenate((self._states, np.zeros_like(self._states)))
        self._states[living.slot] = columns[_STATE]

    def states(self, slots: Column) -> States:
        """Return the [R, S] states of the trajectories that have these slots [R]; copies."""
        states: States = self._states.take(slots, axis=0)
        return states

    def states_at(self, rows: Rows) -> States:
        """Return the [R, S] states before rows that have been answered."""
        return np.concatenate([self._columns[name][rows] for name in self._parts], 1)

    def remember(self, rows: Rows, slots: Column, before: States, after: States) -> None:
        """Write down the states [R, S] before and after rows that are answered, of the trajectories `slots` [R]."""
        for name, part in self._parts.items():
            self._columns[name][rows] = before[:, part]
        self._states[slots] = after
