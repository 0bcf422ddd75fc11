"""The rollout buffer: append-only columns of timesteps, split into trajectories when a fragment closes.

`menv.sampling.policy_group` adds a row when an agent waits for an action, and the action when the policy acted. A row
is released in a batch once its reward is complete, that is, once the trajectory has a later row or has ended; until
then it is carried into the next fragment. No Python object exists per agent and step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from menv.base_env import GLOBAL_STATE, Column, End, Ends
from menv.env_calls import as_flag
from menv.errors import ContractError
from menv.sample_batch import InfoBuffer, Infos, SampleBatch, TrajectorySlices
from menv.sampling.trajectories import Trajectories, TrajectorySplit, TrajectoryStart, split_trajectories

Rows = slice | npt.NDArray[np.int64]
States = npt.NDArray[np.float32]
Prepared = tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]
PrepareFinals = Callable[[Any, Trajectories], Prepared]
Starts = Callable[[Sequence[Column]], Sequence[Column]]
"""Returns the fields of `TrajectoryStart` as columns [K], given other columns [K]."""
Released = list[tuple[int, bool, SampleBatch]]
"""Batches with their policy's index, and whether policies may learn from them."""

_FIRST_ROWS = 256
_RELEASED = ("obs", "actions", "action_mask", "action_dist_inputs")
_NO_STARTS: tuple[Sequence[Any], ...] = ((),) * len(TrajectoryStart._fields)
_ENV_T = SampleBatch.ENV_T
TRAINING_ENABLED = "training_enabled"
"""The entry of an info dict that says whether policies may learn from the agent's trajectory."""
INTERNAL = "menv."
"""Begins the names of columns that no batch has, so that fetches of custom policies may have any other name. The names
are keys of checkpoints."""
INCOMING_REWARD, ANSWERED = INTERNAL + "income", INTERNAL + "answered"
"""Columns: the reward that arrived with a row, earned by the previous action; whether the row has an action."""
_SLOTS = INTERNAL + "slots"
_NO_INFO: Mapping[str, Any] = {}
_END_DTYPES = {"slots": np.int64, "rewards": np.float64, "terminated": np.bool_, "truncated": np.bool_}
_ABSENT = {"f": np.nan, "c": np.nan, "i": -1, "u": 0, "b": False, "O": None}
"""The values of other rows in optional columns, by kind of dtype."""


class RolloutBuffer:
    """Append-only columns of one policy group's rows.

    Args:
        obs_size: F, numbers in an observation.
        mask_width: M, flags in an action mask; 0 without masks.
        action_shape: Shape of one action.
        action_dtype: Type of actions.
        inputs_width: D, the distribution inputs stored per action; 0 for none.
        obs_dtype: Type of observations.
        state_sizes: Sizes of the parts of the recurrent state, which are the columns `state_in_0`, `state_in_1` and so
            on. A state belongs to one agent episode: it is zero at the start and is kept across fragments.

    Attributes:
        carried: The number of first rows that were answered before the last `close`.
        excluded_late: Released rows of trajectories that the last `close` excluded from training.
        unclaimed_rewards: Rewards that arrived with the only row of a trajectory, where that row was withdrawn.
    """

    def __init__(
        self,
        obs_size: int,
        mask_width: int,
        action_shape: tuple[int, ...],
        action_dtype: npt.DTypeLike,
        inputs_width: int = 0,
        obs_dtype: npt.DTypeLike = np.float32,
        state_sizes: tuple[int, ...] = (),
    ) -> None:
        self._n = 0
        self._columns: dict[str, Column] = {
            "obs": np.empty((_FIRST_ROWS, obs_size), obs_dtype),
            "actions": np.zeros((_FIRST_ROWS, *action_shape), action_dtype),
            _SLOTS: np.empty(_FIRST_ROWS, np.int64),
            INCOMING_REWARD: np.empty(_FIRST_ROWS, np.float64),
            ANSWERED: np.zeros(_FIRST_ROWS, np.bool_),
        }
        if mask_width:
            self._columns["action_mask"] = np.empty((_FIRST_ROWS, mask_width), np.bool_)
        if inputs_width:
            self._columns["action_dist_inputs"] = np.zeros((_FIRST_ROWS, inputs_width), np.float32)
        bounds = [0, *itertools.accumulate(state_sizes)]
        self._state_parts = {
            SampleBatch.STATE_IN.format(number): slice(start, stop)
            for number, (start, stop) in enumerate(itertools.pairwise(bounds))
        }
        for name, part in self._state_parts.items():
            self._columns[name] = np.zeros((_FIRST_ROWS, part.stop - part.start), np.float32)
        # [slots, S] the current states.
        self._states: States = np.zeros((64, bounds[-1]), np.float32)
        self._released: tuple[str, ...] = (*_RELEASED, *self._state_parts)
        # Trajectories that have rows here, and trajectories that started after them, one by one and as columns.
        self._living = Trajectories.begun(_NO_STARTS, self._columns["actions"])
        self._starts: list[TrajectoryStart] = []
        self._started: list[tuple[Starts | None, Sequence[Any]]] = []
        self._ends = EndedTrajectories()
        self._next_unroll_id = 0
        # Optional columns, and the values of rows without an entry.
        self._marks: dict[str, Any] = {}
        # The first row of each poll, the poll's info dicts, and the positions of the rows among them.
        self._info_polls: list[tuple[int, Sequence[Mapping[str, Any]], Column | None]] = []
        # Positions of the unanswered rows before the last close.
        self._open_before = np.zeros(0, np.int64)
        self.carried = self.excluded_late = 0
        self.unclaimed_rewards: Sequence[float] = ()

    @property
    def obs(self) -> Column:
        """[N, F] observations of all rows so far; room for more behind them."""
        return self._columns["obs"]

    def inputs(self, rows: Rows) -> tuple[Column, Column | None]:
        """Return the observations [R, F] and masks [R, M] of some rows."""
        masks = self._columns.get("action_mask")
        return self._columns["obs"][rows], None if masks is None else masks[rows]

    @property
    def incoming(self) -> Column:
        """[N] the rewards that arrived with the rows."""
        return self._columns[INCOMING_REWARD][: self._n]

    @property
    def rows(self) -> int:
        """N, the number of rows written."""
        return self._n

    def start(self, start: TrajectoryStart) -> None:
        """Start a trajectory."""
        self._starts.append(start)
        if self._state_parts:
            self._make_room_for_states(start.slot)
            self._states[start.slot] = 0.0

    def start_all(self, columns: Sequence[Column], starts: Starts) -> None:
        """Start trajectories: `columns` [K] of whatever `starts` needs to tell their fields, slots first.

        `starts` is called once for all that start in a row, when a fragment closes.
        """
        slots = columns[0]
        if self._starts:
            # In order, where a slot is used again.
            self._started.append((None, tuple(zip(*self._starts, strict=True))))
            self._starts = []
        self._started.append((starts, columns))
        if self._state_parts and len(slots):
            self._make_room_for_states(int(slots.max()))
            self._states[slots] = 0.0

    def add(self, slots: Column, obs: Column, mask: Column | None, rewards: Column) -> slice:
        """Add rows of R agents that wait, with the rewards [R] since each agent's previous row.

        Return their positions.
        """
        start = self._n
        stop = start + len(slots)
        columns = self._columns
        if stop > len(columns[_SLOTS]):
            self._grow(stop)
        rows = slice(start, stop)
        columns["obs"][rows] = obs
        columns[_SLOTS][rows] = slots
        columns[INCOMING_REWARD][rows] = rewards
        if mask is not None:
            columns["action_mask"][rows] = mask
        for name, absent in self._marks.items():
            columns[name][rows] = absent
        self._n = stop
        return rows

    def add_infos(self, infos: Sequence[Mapping[str, Any]] | None, places: Column | None) -> None:
        """Add the info dicts of the poll whose rows the last `add` wrote; only a reference is kept.

        `places` [R] are the positions of the rows in the poll, None if the rows are all of it.
        """
        # Keeping thousands of empty dicts alive slows sampling by 2 %. A lazy sequence of dicts is not read here.
        if infos and (not isinstance(infos, list) or any(infos)):
            count = len(infos) if places is None else len(places)
            self._info_polls.append((self._n - count, infos, places))

    def set_actions(self, rows: Rows, actions: Any, dist_inputs: Column | None = None) -> None:
        """Store the actions of rows, and the distribution inputs that they were sampled from."""
        if dist_inputs is not None:
            self._columns["action_dist_inputs"][rows] = dist_inputs
        self._columns["actions"][rows] = actions
        self._columns[ANSWERED][rows] = True

    def end(self, end: End) -> None:
        """End the trajectory that has the slot of `end`."""
        self._ends.add(end, self._n)

    def end_all(self, ends: Ends) -> None:
        """End trajectories, in order."""
        self._ends.columns.append(ends)
        self._ends.column_rows.append(self._n)

    def columns_at(self, rows: Rows, names: Sequence[str]) -> dict[str, Column]:
        """Return copies of the columns that exist at some rows."""
        return {name: self._columns[name][rows].copy() for name in names if name in self._columns}

    def mark(self, name: str, rows: Rows, values: Any) -> None:
        """Write `values` [R, ...], or one for all, into an optional column."""
        kind, have = np.asarray(values), self._columns.get(name)
        if have is None:
            room = (len(self._columns[_SLOTS]), *kind.shape[1:])
            self._marks[name] = _ABSENT[kind.dtype.kind]
            self._columns[name] = np.full(room, self._marks[name], kind.dtype)
            self._released = (*self._released, name)
        elif not np.can_cast(kind.dtype, have.dtype, "same_kind"):
            self._columns[name] = have.astype(np.result_type(have.dtype, kind.dtype))
        self._columns[name][rows] = values

    def _make_room_for_states(self, slot: int) -> None:
        while slot >= len(self._states):
            self._states = np.concatenate((self._states, np.zeros_like(self._states)))

    def states(self, slots: Column) -> States:
        """Return copies of the current states [R, S] of trajectories by slot [R]."""
        states: States = self._states.take(slots, axis=0)
        return states

    def states_at(self, rows: Rows) -> States:
        """Return the states [R, S] before answered rows."""
        return np.concatenate([self._columns[name][rows] for name in self._state_parts], 1)

    def set_states(self, rows: Rows, slots: Column, before: States, after: States) -> None:
        """Store the states [R, S] before and after answered rows of the trajectories `slots` [R]."""
        for name, part in self._state_parts.items():
            self._columns[name][rows] = before[:, part]
        self._states[slots] = after

    def set_env_t(self, rows: Rows, env_steps: Column) -> None:
        """Store the env steps [R] of the sub-environments of rows; call it for all rows or none."""
        if _ENV_T not in self._columns:
            self._columns[_ENV_T] = np.zeros(len(self._columns[_SLOTS]), np.int64)
        self._columns[_ENV_T][rows] = env_steps

    def set_end_env_t(self, env_steps: int) -> None:
        """Store the env steps of the sub-environment of the last trajectory that ended."""
        self._ends.env_steps.append(env_steps)

    def held_rewards(self) -> float:
        """Return the rewards that arrived with first rows that are carried."""
        return float(self.incoming.sum())

    def close(self, prepare_finals: PrepareFinals) -> Released:
        """Split the rows into trajectories and release the rows whose reward is complete.

        `prepare_finals` turns final observations into rows [*, F] and masks [*, M].
        """
        split = self._split()
        owners = self._trajectories()
        self._check_answered(split, owners)
        segments = self._segments(split, owners, prepare_finals)
        ends = self._ends
        incoming = self.incoming
        rewards = split.rewards(incoming, owners.released == 0, ends.column("rewards"))
        sorted_columns = {
            "rewards": rewards,
            "terminateds": split.flags(ends.column("terminated")),
            "truncateds": split.flags(ends.column("truncated")),
            "t": split.steps(owners.released),
        }
        if _ENV_T in self._columns:
            sorted_columns |= self._env_t_columns(split)
        if GLOBAL_STATE in self._columns:
            sorted_columns[SampleBatch.NEXT_GLOBAL_STATE] = self._next_states(split)
        infos = InfoBuffer(self._n, self._info_polls, ends.all_infos())
        self._exclude(split, owners, infos.entries(TRAINING_ENABLED))
        trained = owners.trained & ~owners.excluded
        released: Released = []
        for policy, flag in itertools.product(np.unique(owners.policy).tolist(), (True, False)):
            mine = (owners.policy == policy) & (trained == flag)
            if mine.any():
                batch = self._batch(split, sorted_columns, segments, infos, mine)
                released += [(policy, flag, batch)] if batch.count else []
        # A reward before a withdrawn first action belongs to no action.
        none_left = split.withdrawn & (split.lengths == 1) & (owners.released == 0)
        self.unclaimed_rewards = incoming[split.order[split.last[none_left]]].tolist()
        self._carry(split, rewards, owners)
        return released

    def _exclude(
        self, split: TrajectorySplit, owners: Trajectories, flags: Sequence[tuple[int, Any]]
    ) -> None:
        """Mark trajectories in `owners` as excluded from training if their last `training_enabled` info says so.

        `flags` are the values with the positions of their infos; see `InfoBuffer.entries`.
        """
        self.excluded_late = 0
        if not flags:
            return
        # Position of each info in the sorted order; the info of an end comes after the last row.
        at = np.empty(self._n + len(split.end_order), np.float64)
        at[split.order] = np.arange(self._n)
        at[self._n + split.end_order] = split.last[split.end_segments] + 0.5
        when = at[[place for place, _ in flags]]
        own = np.searchsorted(split.starts, when, "right") - 1
        allowed = np.array(
            [_training_flag(flag, owners, index) for (_, flag), index in zip(flags, own, strict=True)]
        )
        in_time = np.argsort(when, kind="stable")
        before = owners.excluded.copy()
        # The last value for a trajectory counts.
        owners.excluded[own[in_time]] = ~allowed[in_time]
        late = owners.excluded & ~before & owners.trained
        self.excluded_late = int(owners.released[late].sum())

    def actions_of(self, episode_id: int) -> dict[int, Column]:
        """Return the actions [n, ...] of an episode's answered rows, in order, by the agent's number in it."""
        split, owners, found = self._split(), self._trajectories(), dict[int, list[int]]()
        # An agent that has just joined may have no row yet.
        slots = self._columns[_SLOTS][split.order[split.starts]]
        known = len(slots) == len(owners.slot) and (slots == owners.slot).all()
        for segment in np.flatnonzero(owners.eps_id == episode_id).tolist() if known else ():
            start = split.starts[segment]
            rows = split.order[start : split.starts[segment] + split.lengths[segment]]
            answered = rows[self._columns[ANSWERED][rows]].tolist()
            found.setdefault(int(owners.agent_index[segment]), []).extend(answered)
        return {number: self._columns["actions"][np.sort(rows)] for number, rows in found.items()}

    def locate(self, row: int) -> tuple[int, Any, int]:
        """Return the env index, agent id and trajectory step of a row, for messages."""
        split = self._split()
        place = int(np.flatnonzero(split.order == row)[0])
        segment = int(np.searchsorted(split.starts, place, "right")) - 1
        owners = self._trajectories()
        t = int(owners.released[segment]) + place - int(split.starts[segment])
        return int(owners.env_index[segment]), owners.agent_id[segment], t

    @property
    def closed(self) -> bool:
        """Whether nothing was added since the last `close`."""
        started = self._starts or self._started
        return (
            self._n == len(self._living.slot) and not started and not (self._ends.slots or self._ends.columns)
        )

    def held(self) -> tuple[Trajectories, dict[str, Column]]:
        """Return the trajectories that continue after `close`, and the columns of the one row that each has."""
        rank = np.argsort(np.argsort(self._columns[_SLOTS][: self._n], kind="stable"))
        columns = {name: column[: self._n] for name, column in self._columns.items()}
        return self._living.take(rank), columns

    def moved(self, rows: Rows) -> Rows:
        """Return the new positions of rows that were unanswered at the last `close`."""
        before = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        now = self.carried + np.searchsorted(self._open_before, before)
        if len(now) and now[-1] - now[0] == len(now) - 1:
            return slice(int(now[0]), int(now[-1]) + 1)
        return now

    def _split(self) -> TrajectorySplit:
        ends = self._ends
        return split_trajectories(
            self._columns[_SLOTS][: self._n], ends.column("slots"), ends.all_rows(), ends.withdrawn
        )

    def _trajectories(self) -> Trajectories:
        """Return all trajectories that have rows here, in the order of the split."""
        pieces = list(self._started)
        if self._starts:
            pieces.append((None, tuple(zip(*self._starts, strict=True))))
        parts = []
        for starts, same in itertools.groupby(pieces, itemgetter(0)):
            all_columns = [columns for _, columns in same]
            if starts is None:
                fields = all_columns
            else:
                fields = [starts([np.concatenate(parts) for parts in zip(*all_columns, strict=True)])]
            parts += [Trajectories.begun(columns, self._columns["actions"]) for columns in fields]
        return self._living.and_then(parts) if parts else self._living

    def _check_answered(self, split: TrajectorySplit, owners: Trajectories) -> None:
        unanswered = ~self._columns[ANSWERED][split.order[split.last]] & ~split.incomplete
        if unanswered.any():
            index = int(np.argmax(unanswered))
            raise ContractError(
                f"env {owners.env_index[index]}: the trajectory of agent {owners.agent_id[index]!r} ended while the "
                "agent waited for an action, expected an answer first; end it after the action was sent"
            )

    def _grow(self, rows: int) -> None:
        capacity = max(rows, 2 * len(self._columns[_SLOTS]))
        for name, column in self._columns.items():
            bigger = np.zeros((capacity, *column.shape[1:]), column.dtype)
            bigger[: self._n] = column[: self._n]
            self._columns[name] = bigger

    def _segments(
        self, split: TrajectorySplit, owners: Trajectories, prepare_finals: PrepareFinals
    ) -> TrajectorySlices:
        """Return the released chunk of each trajectory."""
        last = split.order[split.last]
        masks = self._columns.get("action_mask")
        next_obs = self._columns["obs"][last]
        next_mask = np.zeros((len(last), 0), np.bool_) if masks is None else masks[last]
        missing = np.zeros(len(owners.slot), np.bool_)
        given, finals = split.end_segments, self._ends.all_obs()
        shown: Any
        if isinstance(finals, np.ndarray):
            shown = finals.take(split.end_order, axis=0)
        else:
            ordered = [finals[index] for index in split.end_order.tolist()]
            absent = np.array([final is None for final in ordered], np.bool_)
            missing[given[absent]] = True
            missing &= ~split.withdrawn
            given, shown = given[~absent], [final for final in ordered if final is not None]
        if len(given):
            rows, final_masks = prepare_finals(shown, owners.take(given))
            next_obs[given] = rows
            next_mask[given] = True if final_masks is None else final_masks
        # Unique in this buffer and ordered by first row; the sampler numbers the chunks of all buffers.
        unrolls = self._next_unroll_id + split.order[split.starts]
        self._next_unroll_id += self._n
        lengths = split.lengths - split.incomplete
        return TrajectorySlices(
            lengths, next_obs, next_mask, missing, owners.released, owners.eps_id,
            owners.agent_index, owners.env_index, unrolls, owners.prev_action, owners.prev_reward, owners.life,
        )  # fmt: skip

    def _env_t_columns(self, split: TrajectorySplit) -> dict[str, Column]:
        """Return `env_t` and `next_env_t` [N] in the sorted order."""
        dates = self._columns[_ENV_T][: self._n]
        at_ends = np.array(self._ends.env_steps, np.int64)
        after = np.concatenate((dates, at_ends))
        return {_ENV_T: dates[split.order], SampleBatch.NEXT_ENV_T: after[split.sources()]}

    def _next_states(self, split: TrajectorySplit) -> Column:
        """Return the states [N, S] after the rows in the sorted order: NaN where an end came without one."""
        states = self._columns[GLOBAL_STATE][: self._n]
        unknown = np.full(states.shape[1:], np.nan, np.float32)
        at_ends = [info.get(GLOBAL_STATE, unknown) for info in self._ends.all_infos()]
        after = np.concatenate((states, np.stack([*at_ends, unknown])))
        return after[split.sources()]

    def _batch(
        self,
        split: TrajectorySplit,
        sorted_columns: dict[str, Column],
        segments: TrajectorySlices,
        infos: InfoBuffer,
        mine: Column,
    ) -> SampleBatch:
        """Return the released rows of the trajectories `mine` [S] as a batch."""
        chosen = split.released()
        if not mine.all():
            chosen &= np.repeat(mine, split.lengths)
        pieces = np.flatnonzero(mine & (segments.lengths > 0))
        # `take` is twice as fast as a mask or square brackets.
        places, pieces = split.by_env(np.flatnonzero(chosen), pieces, segments.env_id)
        rows = split.order.take(places)
        columns = {
            name: self._columns[name].take(rows, axis=0) for name in self._released if name in self._columns
        }
        columns.update({name: column.take(places, axis=0) for name, column in sorted_columns.items()})
        return SampleBatch(columns, segments.take(pieces), Infos((infos,), split.sources().take(places)))

    def _carry(self, split: TrajectorySplit, rewards: Column, owners: Trajectories) -> None:
        """Carry the last row of each running trajectory into the next fragment, answered rows first."""
        held = np.flatnonzero(split.held)
        last = split.last[held]
        kept = split.order[last]
        living = owners.take(held)
        living.released += split.lengths[held] - 1
        more = split.lengths[held] > 1
        before = last[more] - 1
        living.prev_action[more] = self._columns["actions"][split.order[before]]
        living.prev_reward[more] = rewards[before]
        # The reward that arrived with a later row was credited to the row before it.
        self._columns[INCOMING_REWARD][kept[living.released != 0]] = 0.0
        answered = self._columns[ANSWERED][kept]
        self._open_before = np.sort(kept[~answered])
        rows = np.concatenate((np.sort(kept[answered]), self._open_before))
        for column in self._columns.values():
            column[: len(rows)] = column[rows]
        self._columns[ANSWERED][len(rows) :] = False
        self._n = len(rows)
        self.carried = int(answered.sum())
        self._living = living
        self._starts, self._started, self._ends = [], [], EndedTrajectories()
        self._info_polls = []


@dataclass(slots=True)
class EndedTrajectories:
    """The ends of a fragment's trajectories: single ends, in one list per field, then columns.

    The order of ends on different slots does not count. Lists of numbers are not tracked by Python's garbage collector.

    Attributes:
        rewards: Rewards since the last row.
        obs: Final observations, None where the environment gave none.
        rows: Rows that had been added at the end.
        env_steps: The sub-environment's env steps at the end, with `set_end_env_t`.
        withdrawn: Indices of the ends that remove the trajectory's last row.
        columns: Ends that came as columns.
        column_rows: Rows that had been added at the end of each of `columns`.
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
    columns: list[Ends] = field(default_factory=list)
    column_rows: list[int] = field(default_factory=list)

    def column(self, name: Literal["slots", "rewards", "terminated", "truncated"]) -> Column:
        """Return a field of all M ends."""
        parts = [getattr(ends, name) for ends in self.columns]
        return np.concatenate([np.array(getattr(self, name), _END_DTYPES[name]), *parts])

    def all_rows(self) -> Column:
        """Return [M] rows that had been added at each end."""
        of_columns = np.repeat(np.array(self.column_rows, np.int64), [len(ends) for ends in self.columns])
        return np.concatenate([np.array(self.rows, np.int64), of_columns])

    def all_obs(self) -> Any:
        """Return the M final observations, as an array if all are rows of arrays."""
        parts = [ends.obs for ends in self.columns]
        if parts and not self.obs and all(type(part) is np.ndarray for part in parts):
            return np.concatenate(parts)
        return [*self.obs, *itertools.chain.from_iterable(parts)]

    def all_infos(self) -> Sequence[Mapping[str, Any]]:
        """Return the M info dicts."""
        of_columns = (ends.infos or [_NO_INFO] * len(ends) for ends in self.columns)
        return [*self.infos, *itertools.chain.from_iterable(of_columns)]

    def add(self, end: End, rows: int) -> None:
        if end.withdrawn:
            self.withdrawn.add(len(self.slots))
        self.slots.append(end.slot)
        self.rewards.append(end.reward)
        self.terminated.append(end.terminated)
        self.truncated.append(end.truncated)
        self.obs.append(end.obs)
        self.infos.append(end.info)
        self.rows.append(rows)


def _training_flag(flag: object, owners: Trajectories, index: int) -> bool:
    """Return a value of `training_enabled` as a bool; the error names the agent."""
    if type(flag) is bool:
        return flag
    whose = f"env {owners.env_index[index]}, agent {owners.agent_id[index]!r}: info[{TRAINING_ENABLED!r}]"
    return as_flag(flag, whose)
