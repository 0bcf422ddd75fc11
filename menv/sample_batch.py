"""`SampleBatch`: the timesteps of one policy as columns; `MultiAgentBatch`: the batches of all policies.

The rollout buffer makes them, learners and users read them. Rows of one trajectory are adjacent, in time order. A batch
stores what was sampled and derives the rest on demand; it holds no Python object per row except the info dicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from menv.base_env import Column
from menv.errors import ConfigError

Info = Mapping[str, Any]

NOTHING_CAME = -1
"""The source of a row that no info dict belongs to."""

Rows: TypeAlias = slice | Sequence[int] | npt.NDArray[np.int64]

_NO_NAME = (
    "SampleBatch: {!r:.60} as the name of a column, expected a name or a slice such as batch[:3]; take(rows) returns "
    "rows by index"
)
_DONES = "SampleBatch: 'dones' is split into 'terminateds' and 'truncateds'; use those"


class SampleBatch(Mapping[str, Column]):
    """The timesteps of one policy, as columns.

    Stored: `obs` as flat rows, `actions` in the network's form (choices counted from 0; Box actions before scaling and
    clipping; nested ones flattened in the order of the space, choices and numbers together as float32), `rewards,
    terminateds, truncateds, t`, `action_mask` if there is one, `state_in_0` and so on of recurrent policies (the hidden
    state before each row), `env_t` and `next_env_t` if a policy or a callback reads trajectories, `weights_seq_no` (of
    the weights that chose the action) with `overlap`, and what a learner adds. Derived on demand: `new_obs,
    prev_actions, prev_rewards, infos, eps_id, agent_index, env_id, unroll_id`, and `action_prob` if there is an
    `action_logp`.

    `infos` holds for each row the info dict that the row's action led to: it came with the agent's next row or with its
    end. `seq_lens` [S] is not a column: it holds the number of rows of each trajectory chunk.

    Attributes:
        segments: Where the trajectory chunks begin and end.
    """

    OBS = CUR_OBS = "obs"
    NEXT_OBS = "new_obs"
    ACTIONS = "actions"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    DONES = "dones"  # Not a column: reading it raises an error that names the two flags.
    INFOS = "infos"
    EPS_ID = "eps_id"
    AGENT_INDEX = "agent_index"
    ENV_ID = "env_id"
    UNROLL_ID = "unroll_id"
    T = "t"
    ENV_T = "env_t"
    NEXT_ENV_T = "next_env_t"
    PREV_ACTIONS = "prev_actions"
    PREV_REWARDS = "prev_rewards"
    SEQ_LENS = "seq_lens"
    ACTION_MASK = "action_mask"
    STATE_IN = "state_in_{}"
    ACTION_LOGP = "action_logp"
    OFF_POLICY = "off_policy"
    WEIGHTS_SEQ_NO = "weights_seq_no"
    ACTION_PROB = "action_prob"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    CRITIC_OBS = "critic_obs"
    NEXT_GLOBAL_STATE = "next_global_state"
    NEXT_CRITIC_OBS = "next_critic_obs"
    CRITIC_STATE_IN = "critic_state_in"
    VF_PREDS = "vf_preds"
    NEXT_VF_PREDS = "next_vf_preds"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"

    _OF_SEGMENT = (EPS_ID, AGENT_INDEX, ENV_ID, UNROLL_ID)
    _DERIVED = (NEXT_OBS, PREV_ACTIONS, PREV_REWARDS, INFOS, *_OF_SEGMENT)

    def __init__(
        self,
        columns: Mapping[str, Column],
        segments: TrajectorySlices | None = None,
        infos: Infos | None = None,
    ) -> None:
        """Create a batch of `columns`, arrays of equal length, split as `segments` say; without `infos` they are empty.

        Raises:
            ConfigError: There are no segments.
        """
        if segments is None:
            raise ConfigError(
                "SampleBatch: columns alone, expected segments too, which mark where trajectories begin and end; set "
                "columns of a sampled batch, and pass your own experience through an ExternalEnv (log_action)"
            )
        self._columns = dict(columns)
        self.segments = segments
        self._infos = Infos.nothing(self.count) if infos is None else infos

    @overload
    def __getitem__(self, key: str) -> Column: ...

    @overload
    def __getitem__(self, key: slice) -> SampleBatch: ...

    def __getitem__(self, key: str | slice) -> Column | SampleBatch:
        """Return a column; for a slice, such as `batch[:3]`, a batch of these rows."""
        if not isinstance(key, str):
            if isinstance(key, slice):
                return self.take(key)
            raise KeyError(_NO_NAME.format(key))
        column = self._columns.get(key)
        if column is not None:
            return column
        # These two change with the columns that they are derived from, and cost little.
        if key == self.SEQ_LENS:
            return self.segments.lengths
        if key == self.ACTION_PROB and self.ACTION_LOGP in self._columns:
            return np.exp(self._columns[self.ACTION_LOGP])
        if key not in self._DERIVED:
            other = f"SampleBatch: no column {key!r}, expected one of {sorted(self)}"
            raise KeyError(_DONES if key == "dones" else other)
        column = self._columns[key] = self._derived(key)
        return column

    def __setitem__(self, key: str, column: Column) -> None:
        if len(column) != self.count:
            raise ConfigError(
                f"SampleBatch: column {key!r} has {len(column)} rows, expected {self.count}; "
                "give one value for each row"
            )
        self._columns[key] = column

    def __delitem__(self, key: str) -> None:
        """Drop a stored column."""
        del self._columns[key]

    def __iter__(self) -> Iterator[str]:
        with_logp = (self.ACTION_PROB,) if self.ACTION_LOGP in self._columns else ()
        return iter(dict.fromkeys([*self._columns, *self._DERIVED, *with_logp]))

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.count

    def keys(self) -> KeysView[str]:
        """Return the names of stored and derived columns."""
        return dict.fromkeys(self).keys()

    def __repr__(self) -> str:
        return f"SampleBatch({self.count} rows: {', '.join(self)})"

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self._columns[self.OBS])

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a dict."""
        names = list(self)
        for index in range(self.count):
            yield {name: self[name][index] for name in names}

    def stored(self) -> dict[str, Column]:
        """Return the stored columns, not copied."""
        return {name: column for name, column in self._columns.items() if name not in self._DERIVED}

    def copy(self) -> SampleBatch:
        """Return the same rows; the info dicts are shared."""
        columns = {name: column.copy() for name, column in self._columns.items()}
        return SampleBatch(columns, self.segments.copy(), self._infos)

    def take(self, rows: Rows) -> SampleBatch:
        """Return some rows in a given order; each keeps the values of all its columns.

        Args:
            rows: A slice, or [M] indices from 0 to `count - 1`.
        """
        at = rows if isinstance(rows, slice) else np.asarray(rows, np.int64)
        return SampleBatch(
            {name: column[at] for name, column in self._columns.items()},
            self._slices_of(np.arange(self.count)[at]),
            self._infos.take(at),
        )

    def split_by_episode(self) -> list[SampleBatch]:
        """Return one batch for each trajectory chunk."""
        segments = self.segments
        spans = zip(segments.starts.tolist(), segments.ends.tolist(), strict=True)
        return [
            SampleBatch(
                {name: column[start:end] for name, column in self._columns.items()},
                segments.take(np.array([index])),
                self._infos.take(slice(start, end)),
            )
            for index, (start, end) in enumerate(spans)
        ]

    def in_pieces(self, most: int, more: int = 0) -> SampleBatch:
        """Return the same rows, sharing the columns, in trajectory chunks of at most `most` rows.

        The first piece of a chunk may have `more` rows in addition.
        """
        since = np.arange(self.count) - np.repeat(self.segments.starts, self.segments.lengths)
        shorter = self._slices_of(np.arange(self.count), np.maximum(since - more, 0) // most)
        return SampleBatch(self._columns, shorter, self._infos)

    @staticmethod
    def concat_samples(batches: Sequence[SampleBatch]) -> SampleBatch:
        """Return the rows of several batches, in order, with the columns that all of them have.

        Adjacent parts of one trajectory chunk are joined.

        Raises:
            ConfigError: There is no batch.
        """
        if not batches:
            raise ConfigError(
                "SampleBatch.concat_samples: no batches, expected at least one; leave the call out"
            )
        if len(batches) == 1:
            return batches[0]
        if any(SampleBatch.INFOS in batch._columns for batch in batches):
            for batch in batches:
                batch[SampleBatch.INFOS]
        names = [name for name in batches[0]._columns if all(name in batch._columns for batch in batches)]
        columns = {name: np.concatenate([batch._columns[name] for batch in batches]) for name in names}
        segments = TrajectorySlices.concat([batch.segments for batch in batches])
        infos = Infos.concat([batch._infos for batch in batches])
        return SampleBatch(columns, segments.joined(), infos)

    def _derived(self, key: str) -> Column:
        segments = self.segments
        if key == self.NEXT_OBS:
            return self._successors(self[self.OBS], segments.next_obs)
        if key == self.PREV_ACTIONS:
            return self._predecessors(self[self.ACTIONS], segments.prev_action)
        if key == self.PREV_REWARDS:
            return self._predecessors(self[self.REWARDS], segments.prev_reward)
        return self._infos.column() if key == self.INFOS else segments.spread(key)

    def _slices_of(self, rows: Column, labels: Column | None = None) -> TrajectorySlices:
        parts, first, last, cut_before, cut_after = self.segments.select(rows, labels)
        before, after = first[cut_before] - 1, last[cut_after] + 1
        parts.next_obs[cut_after] = self[self.OBS][after]
        parts.prev_action[cut_before] = self[self.ACTIONS][before]
        parts.prev_reward[cut_before] = self[self.REWARDS][before]
        if self.ACTION_MASK in self._columns:
            parts.next_mask[cut_after] = self[self.ACTION_MASK][after]
        return parts

    def _successors(self, column: Column, after: Column) -> Column:
        """Return each row's successor; `after` follows the last row of each slice."""
        out = np.empty_like(column)
        out[:-1] = column[1:]
        out[self.segments.ends - 1] = after
        return out

    def _predecessors(self, column: Column, before: Column) -> Column:
        """Return each row's predecessor; `before` precedes the first row of each slice."""
        out = np.empty_like(column)
        out[1:] = column[:-1]
        out[self.segments.starts] = before
        return out


class MultiAgentBatch:
    """The timesteps of all policies in the same env steps.

    Attributes:
        policy_batches: The batch of each policy that has rows.
    """

    def __init__(self, policy_batches: Mapping[str, SampleBatch], env_steps: int) -> None:
        self.policy_batches = dict(policy_batches)
        self._env_steps = env_steps

    def __repr__(self) -> str:
        rows = {policy: batch.count for policy, batch in self.policy_batches.items()}
        return f"MultiAgentBatch({self._env_steps} env steps, rows {rows})"

    def __getitem__(self, policy_id: str) -> SampleBatch:
        if policy_id not in self.policy_batches:
            raise KeyError(
                f"MultiAgentBatch: no rows of {policy_id!r}, expected one of {list(self.policy_batches)}"
            )
        return self.policy_batches[policy_id]

    def __contains__(self, policy_id: object) -> bool:
        return policy_id in self.policy_batches

    def __iter__(self) -> Iterator[str]:
        return iter(self.policy_batches)

    @property
    def count(self) -> int:
        """Number of env steps."""
        return self._env_steps

    def env_steps(self) -> int:
        """Return the number of env steps, over all sub-environments."""
        return self._env_steps

    def agent_steps(self) -> int:
        """Return the number of rows of all policies."""
        return sum(batch.count for batch in self.policy_batches.values())

    def env_steps_of(self, policy_ids: Collection[str], env_per_agent_step: float) -> int:
        """Return the number of env steps in which the agents of some policies acted, as far as their rows show.

        Rows do not say which agents acted together. Turn-based agents have an env step for each row, simultaneous
        agents one for each pair of `eps_id` and `t`. Between the two, the ratio of all rows decides.

        Args:
            policy_ids: Policies that have rows.
            env_per_agent_step: Env steps for each row of all policies.
        """
        some = _rows_and_times([self[name] for name in policy_ids])
        rows, times = _rows_and_times(list(self.policy_batches.values()))
        share = (rows * env_per_agent_step - times) / (rows - times) if rows > times else 1.0
        return round(some[1] + min(1.0, max(0.0, share)) * (some[0] - some[1]))

    def copy(self) -> MultiAgentBatch:
        """Return the same rows in new arrays."""
        copies = {policy: batch.copy() for policy, batch in self.policy_batches.items()}
        return MultiAgentBatch(copies, self._env_steps)

    @staticmethod
    def concat_samples(batches: Sequence[MultiAgentBatch]) -> MultiAgentBatch:
        """Return several fragments as one batch."""
        ids = dict.fromkeys(policy for batch in batches for policy in batch.policy_batches)
        merged = {
            policy: SampleBatch.concat_samples(
                [batch.policy_batches[policy] for batch in batches if policy in batch.policy_batches]
            )
            for policy in ids
        }
        return MultiAgentBatch(merged, sum(batch.env_steps() for batch in batches))


def _rows_and_times(batches: Sequence[SampleBatch]) -> tuple[int, int]:
    """Return the number of rows, and of different pairs of `eps_id` and `t` among them."""
    rows = sum(batch.count for batch in batches)
    if not rows:
        return 0, 0
    episodes = np.concatenate([batch["eps_id"] for batch in batches])
    steps = np.concatenate([batch["t"] for batch in batches])
    # Few runs of consecutive steps are sorted instead of many rows.
    begins = np.append(0, 1 + np.flatnonzero((np.diff(steps) != 1) | (np.diff(episodes) != 0)))
    ends = np.append(begins[1:], rows) - 1
    order = np.lexsort((steps[begins], episodes[begins]))
    begins, ends = begins[order], ends[order]
    episodes, first, after = episodes[begins], steps[begins], steps[ends] + 1
    # Moves each episode behind the one before, so that steps of two episodes are never the same.
    apart = np.cumsum(np.diff(episodes, prepend=episodes[:1]) != 0) * int(after.max())
    first, covered = first + apart, np.maximum.accumulate(after + apart)
    seen = np.append(0, covered[:-1])
    return rows, int(np.maximum(covered - np.maximum(first, seen), 0).sum())


@dataclass(slots=True)
class TrajectorySlices:
    """Where the S trajectory chunks of a batch are and the rows around each; it knows row numbers, not columns.

    Attributes:
        lengths: [S] rows.
        next_obs: [S, F] the observation after the last row: the final one, or that of the next row.
        next_mask: [S, M] the action mask that came with it, all True if none did; M is 0 without masks.
        final_missing: [S] True if the environment gave no final observation and `next_obs` repeats the last one.
        first_t: [S] index of the first row within its trajectory.
        eps_id: [S] episode id.
        agent_index: [S] number of the agent, in order of appearance in its episode.
        env_id: [S] index of the sub-environment.
        unroll_id: [S] unique for each chunk of the run; parts of one chunk share it.
        prev_action: [S, ...] the action before the first row, zeros at the start of a trajectory.
        prev_reward: [S] its reward.
        life: [S] a key of the agent and of which of its trajectories in the episode this is.
    """

    lengths: Column
    next_obs: Column
    next_mask: Column
    final_missing: Column
    first_t: Column
    eps_id: Column
    agent_index: Column
    env_id: Column
    unroll_id: Column
    prev_action: Column
    prev_reward: Column
    life: Column

    def take(self, which: Column) -> TrajectorySlices:
        """Return the slices selected by a mask or by indices."""
        return TrajectorySlices(*(getattr(self, name)[which] for name in self.__slots__))

    def copy(self) -> TrajectorySlices:
        """Return the same slices in new arrays."""
        return TrajectorySlices(*(getattr(self, name).copy() for name in self.__slots__))

    @property
    def ends(self) -> Column:
        """[S] index of the row after the last one of each slice."""
        return np.cumsum(self.lengths)

    @property
    def starts(self) -> Column:
        """[S] index of the first row of each slice."""
        return self.ends - self.lengths

    def spread(self, name: str) -> Column:
        """Return [N, ...]: a field of each row's slice."""
        return np.repeat(getattr(self, name), self.lengths, axis=0)

    def select(
        self, rows: Column, labels: Column | None = None
    ) -> tuple[TrajectorySlices, Column, Column, Column, Column]:
        """Return the slices of chosen rows put one after the other; rows that follow each other stay together.

        Where a slice was shortened, what surrounds it is still that of the whole one: the caller corrects it.

        Args:
            rows: [M] row indices, in the new order.
            labels: [M]; rows with different labels come into different slices.

        Returns:
            The P slices, [P] old indices of their first and last rows, and [P] whether rows of the old slice were left
            out before and after them.
        """
        ends = self.ends
        owners = np.searchsorted(ends, rows, "right")
        begins = np.ones(len(rows), np.bool_)
        begins[1:] = (rows[1:] != rows[:-1] + 1) | (owners[1:] != owners[:-1])
        if labels is not None:
            begins[1:] |= labels[1:] != labels[:-1]
        at = np.flatnonzero(begins)
        until = np.append(at[1:], len(rows))[: len(at)]
        first, last, owner = rows[at], rows[until - 1], owners[at]
        parts = self.take(owner)
        whole_start, whole_end = (ends - self.lengths)[owner], ends[owner]
        parts.lengths = until - at
        parts.first_t = parts.first_t + first - whole_start
        parts.final_missing = parts.final_missing & (last == whole_end - 1)
        return parts, first, last, first > whole_start, last < whole_end - 1

    def joined(self) -> TrajectorySlices:
        """Return the slices with adjacent parts of one chunk joined."""
        follows = np.zeros(len(self.lengths), np.bool_)
        follows[1:] = (self.first_t[:-1] + self.lengths[:-1]) == self.first_t[1:]
        for name in ("unroll_id", "eps_id", "agent_index", "env_id"):
            values = getattr(self, name)
            follows[1:] &= values[1:] == values[:-1]
        if not follows.any():
            return self
        first = np.flatnonzero(~follows)
        last = np.append(first[1:], len(follows)) - 1
        whole = self.take(first)
        whole.lengths = np.add.reduceat(self.lengths, first)
        whole.next_obs, whole.next_mask = self.next_obs[last], self.next_mask[last]
        whole.final_missing = self.final_missing[last]
        return whole

    @staticmethod
    def concat(parts: Sequence[TrajectorySlices]) -> TrajectorySlices:
        """Return the slices of several batches, in order."""
        names = TrajectorySlices.__slots__
        return TrajectorySlices(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class Infos:
    """The info dicts of B rows, as indices [B] into the dicts of all `buffers`; `NOTHING_CAME` for none."""

    __slots__ = ("_buffers", "_source")

    def __init__(self, buffers: Sequence[InfoBuffer], source: npt.NDArray[np.int64]) -> None:
        self._buffers = tuple(buffers)
        self._source = source

    @classmethod
    def nothing(cls, count: int) -> Infos:
        """Return the infos of `count` rows without info dicts."""
        return cls((), np.full(count, NOTHING_CAME))

    def take(self, rows: slice | npt.NDArray[np.int64]) -> Infos:
        return Infos(self._buffers, self._source[rows])

    def column(self) -> npt.NDArray[np.object_]:
        """Return [B] dicts, an empty one for a row without info."""
        column = np.empty(len(self._source), np.object_)
        offset = 0
        for buffer in self._buffers:
            size = len(buffer)
            mine = (self._source >= offset) & (self._source < offset + size)
            column[mine] = buffer.dicts()[self._source[mine] - offset]
            offset += size
        for row, info in enumerate(column):
            if info is None:
                column[row] = {}
        return column

    @staticmethod
    def concat(parts: Sequence[Infos]) -> Infos:
        offsets: dict[InfoBuffer, int] = {}
        offset = 0
        sources = []
        for part in parts:
            shifted = np.full(len(part._source), NOTHING_CAME)
            before = 0
            for buffer in part._buffers:
                # Parts of one fragment share a buffer; it is kept once.
                if buffer not in offsets:
                    offsets[buffer] = offset
                    offset += len(buffer)
                mine = (part._source >= before) & (part._source < before + len(buffer))
                shifted[mine] = part._source[mine] - before + offsets[buffer]
                before += len(buffer)
            sources.append(shifted)
        return Infos(tuple(offsets), np.concatenate(sources))


class InfoBuffer:
    """The info dicts of one fragment: of its N rows, then of its M ends.

    It keeps one reference for each poll, so that infos which are never read cost no work per row. The dicts belong to
    the environment.
    """

    __slots__ = ("_dicts", "_ends", "_polls", "_rows")

    def __init__(
        self,
        rows: int,
        polls: Sequence[tuple[int, Sequence[Info], npt.NDArray[np.int64] | None]],
        ends: Sequence[Info],
    ) -> None:
        """Keep references.

        Args:
            rows: N, the rows of the fragment.
            polls: The first row of each poll, its dicts, and the places of its rows among them if not all.
            ends: The dicts of the M ends.
        """
        self._rows = rows
        self._polls = polls
        self._ends = ends
        self._dicts: npt.NDArray[np.object_] | None = None

    def __len__(self) -> int:
        return self._rows + len(self._ends)

    def entries(self, name: str) -> list[tuple[int, Any]]:
        """Return the values of a key where there is one, with their places among the N + M dicts."""
        found = []
        for start, infos, places in self._polls:
            names = getattr(infos, "names", None)
            # A sequence that knows its keys need not be searched.
            if names is None or name in names:
                mine = infos if places is None else [infos[place] for place in places.tolist()]
                found += [(start + row, info[name]) for row, info in enumerate(mine) if info and name in info]
        ends = enumerate(self._ends, self._rows)
        return found + [(place, info[name]) for place, info in ends if info and name in info]

    def dicts(self) -> npt.NDArray[np.object_]:
        """Return [N + M] dicts, None for a row without info; computed once."""
        if self._dicts is None:
            found: list[Info | None] = [None] * self._rows
            for start, infos, places in self._polls:
                mine = infos if places is None else [infos[place] for place in places.tolist()]
                found[start : start + len(mine)] = mine
            # Not by assignment from a list: numpy would read a custom mapping as a sequence.
            self._dicts = np.fromiter([*found, *self._ends], np.object_, len(self))
            self._polls, self._ends, self._rows = (), (), len(self)
        return self._dicts
