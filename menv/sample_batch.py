"""`SampleBatch`: the timesteps of one policy as columns; `MultiAgentBatch`: the batches of all policies.

The rollout buffer makes them, learners and users read them. Rows of one trajectory lie together, in time order. A batch
stores what was sampled and derives the rest on demand; it holds no Python object per row except the info dicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from menv.base_env import Column
from menv.errors import ConfigError
from menv.policy_map import DEFAULT_POLICY

Info = Mapping[str, Any]

NOTHING_CAME = -1
"""The source of a row that no info dict belongs to."""

# Inside the class, `slice` is a method.
RowRange: TypeAlias = slice
Rows = RowRange | Sequence[int] | npt.NDArray[np.int64]

_NO_NAME = (
    "SampleBatch: {!r:.60} as the name of a column, expected a name or a slice such as batch[:3]; take(rows) returns "
    'rows by index, and other_agent_batches holds batches and not tuples: write other_agent_batches[agent_id]["obs"]'
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
    end. `seq_lens` [S] is not a column: it holds the number of rows of each trajectory chunk, without padding.
    `seq_mask` is True for rows and False for padding; only a padded batch has it.

    Attributes:
        segments: Where the trajectory chunks lie.
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
    SEQ_MASK = "seq_mask"
    ACTION_MASK = "action_mask"
    STATE_IN = "state_in_{}"
    ACTION_LOGP = "action_logp"
    OFF_POLICY = "off_policy"
    WEIGHTS_SEQ_NO = "weights_seq_no"
    ACTION_PROB = "action_prob"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    CRITIC_OBS = "critic_obs"
    VF_PREDS = "vf_preds"
    NEXT_VF_PREDS = "next_vf_preds"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"

    _OF_SEGMENT = (EPS_ID, AGENT_INDEX, ENV_ID, UNROLL_ID)
    _DERIVED = (NEXT_OBS, PREV_ACTIONS, PREV_REWARDS, INFOS, *_OF_SEGMENT)

    def __init__(
        self,
        columns: Mapping[str, Column] | None = None,
        segments: TrajectorySlices | None = None,
        infos: Infos | None = None,
        **by_name: Column,
    ) -> None:
        """Create a batch of `columns`, arrays of equal length, split as `segments` say; without `infos` they are empty.

        Raises:
            KeyError: There is a column "dones".
            ConfigError: There are no segments, or no columns.
        """
        columns = by_name if columns is None and by_name else columns
        if not isinstance(columns, Mapping):
            raise ConfigError(f"SampleBatch: columns are {columns!r:.60}, expected a dict; pass one")
        if "dones" in columns:
            raise KeyError(_DONES)
        self._columns = dict(columns)
        if segments is None:
            raise ConfigError(
                "SampleBatch: columns alone, expected segments too, which say where trajectories lie; set columns of a "
                "batch that was sampled, and hand in your own experience through an ExternalEnv (log_action)"
            )
        self.segments = segments
        self._infos = Infos.nothing(self.count) if infos is None else infos

    @overload
    def __getitem__(self, key: str) -> Column: ...

    @overload
    def __getitem__(self, key: RowRange) -> SampleBatch: ...

    def __getitem__(self, key: str | RowRange) -> Column | SampleBatch:
        """Return a column; for a slice, such as `batch[:3]`, a batch of these rows."""
        if not isinstance(key, str):
            if isinstance(key, RowRange):
                return self.take(key)
            raise KeyError(_NO_NAME.format(key))
        column = self._columns.get(key)
        if column is not None:
            return column
        # These two change with the columns that they are derived from, and cost little.
        if key == self.SEQ_LENS:
            return self._seq_lens()
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
        """Number of rows, padding included."""
        return len(self._columns[self.OBS])

    def agent_steps(self) -> int:
        """Return the number of rows without padding."""
        mask = self._columns.get(self.SEQ_MASK)
        return self.count if mask is None else int(mask.sum())

    def env_steps(self) -> int:
        """Return `agent_steps()`, as RLlib counts the batch of a single policy."""
        return self.agent_steps()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a dict."""
        names = list(self)
        for index in range(self.count):
            yield {name: self[name][index] for name in names}

    def stored(self) -> dict[str, Column]:
        """Return the stored columns, not copied."""
        return {name: column for name, column in self._columns.items() if name not in self._DERIVED}

    def columns(self, keys: Iterable[str]) -> list[Column]:
        """Return several columns, in the order of `keys`.

        Raises:
            KeyError: There is no such column.
        """
        return [self[key] for key in keys]

    def copy(self, shallow: bool = False) -> SampleBatch:
        """Return the same rows; a shallow copy shares the arrays, and every copy shares the info dicts."""
        columns = {name: column if shallow else column.copy() for name, column in self._columns.items()}
        return SampleBatch(columns, self.segments.copy(shallow), self._infos)

    def slice(self, start: int, end: int) -> SampleBatch:
        """Return rows `start` to `end`, as Python slices count; stored columns are views."""
        return self.take(slice(start, end))

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

    def shuffle(self, seed: int | np.random.Generator | None = None) -> Self:
        """Shuffle the rows in place and return this batch.

        Each row keeps its own `new_obs`, `prev_actions` and so on, but trajectories are no longer contiguous: compute
        advantages before.

        Args:
            seed: A seed or a generator; None differs from call to call.
        """
        self._become(self.take(np.random.default_rng(seed).permutation(self.count)))
        return self

    def timeslices(self, size: int | None = None, num_slices: int | None = None) -> list[SampleBatch]:
        """Return the rows in order, as batches of `size` rows or as `num_slices` nearly equal batches.

        With `size` the last batch may be shorter; with more slices than rows some are empty.

        Raises:
            ConfigError: Not exactly one of the two is given, or it is below 1.
        """
        given = [number for number in (size, num_slices) if number is not None]
        if len(given) != 1 or given[0] < 1:
            raise ConfigError(
                f"SampleBatch.timeslices: got size={size}, num_slices={num_slices}, expected one of the two, "
                "at least 1; leave the other out"
            )
        count = self.count
        even = (count * number // given[0] for number in range(given[0] + 1))
        bounds = [*even] if size is None else [*range(0, count, size), count]
        return [self.slice(start, end) for start, end in pairwise(bounds)]

    def split_by_episode(self, key: str | None = None) -> list[SampleBatch]:
        """Return one batch for each trajectory chunk.

        Args:
            key: Split by a column instead: after each row with a flag for "terminateds" and "truncateds", and where the
                value changes for any other column, such as "eps_id".

        Raises:
            KeyError: There is no such column.
            ConfigError: The column has more than one value a row.
        """
        if key is not None:
            bounds = [0, *self._changes(key), self.count] if self.count else []
            return [self.slice(start, end) for start, end in pairwise(bounds)]
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

    def in_pieces(self, most: int) -> SampleBatch:
        """Return the same rows, sharing the columns, in trajectory chunks of at most `most` rows."""
        since = np.arange(self.count) - np.repeat(self.segments.starts, self.segments.lengths)
        shorter = self._slices_of(np.arange(self.count), since // most)
        return SampleBatch(self._columns, shorter, self._infos)

    def right_zero_pad(self, max_seq_len: int) -> Self:
        """Make every trajectory chunk `max_seq_len` rows long, in place, and return this batch.

        Longer chunks are split; shorter ones are filled with zeros (`{}` in `infos`). `seq_mask` is False for padding,
        and `seq_lens` does not count it.

        Raises:
            ConfigError: The length is below 1, or the batch is padded already.
        """
        if max_seq_len < 1 or self.SEQ_MASK in self._columns:
            state = "of a padded batch" if self.SEQ_MASK in self._columns else "of an unpadded batch"
            raise ConfigError(
                f"SampleBatch.right_zero_pad: got max_seq_len={max_seq_len} {state}, expected at least 1 and an "
                "unpadded batch; pad a copy once"
            )
        segments = self.in_pieces(max_seq_len).segments
        total = len(segments.lengths) * max_seq_len
        firsts = np.arange(0, total, max_seq_len)
        places = np.repeat(firsts - segments.starts, segments.lengths) + np.arange(self.count)
        columns = {name: _spread(self[name], places, total) for name in self if name != self.INFOS}
        columns[self.SEQ_MASK] = _spread(np.ones(self.count, np.bool_), places, total)
        segments.lengths = np.full(len(firsts), max_seq_len)
        infos = self._infos.placed(places, total)
        if self.INFOS in self._columns:
            columns[self.INFOS] = infos.column()
            columns[self.INFOS][places] = self[self.INFOS]
        self._become(SampleBatch(columns, segments, infos))
        return self

    def as_multi_agent(self, policy_id: str = DEFAULT_POLICY) -> MultiAgentBatch:
        """Return this batch as that of one policy among several; each row counts as an env step."""
        return MultiAgentBatch({policy_id: self}, self.env_steps())

    def concat(self, other: SampleBatch) -> SampleBatch:
        """Return these rows, then the rows of `other`."""
        return self.concat_samples([self, other])

    @staticmethod
    def concat_samples(batches: Sequence[SampleBatch]) -> SampleBatch:
        """Return the rows of several batches, in order, with the columns that all of them have.

        Adjacent parts of one trajectory chunk are joined.

        Raises:
            ConfigError: There is no batch, or some are padded and others are not.
        """
        padded = [SampleBatch.SEQ_MASK in batch._columns for batch in batches]
        if not batches or any(padded) != all(padded):
            raise ConfigError(
                f"SampleBatch.concat_samples: got {len(batches)} batches, {sum(padded)} of them padded, expected at "
                "least one, and all or none padded; pad after the concatenation"
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
        return SampleBatch(columns, segments if padded[0] else segments.joined(), infos)

    def _derived(self, key: str) -> Column:
        segments = self.segments
        if key == self.NEXT_OBS:
            return self._successors(self[self.OBS], segments.next_obs)
        if key == self.PREV_ACTIONS:
            return self._predecessors(self[self.ACTIONS], segments.prev_action)
        if key == self.PREV_REWARDS:
            return self._predecessors(self[self.REWARDS], segments.prev_reward)
        return self._infos.column() if key == self.INFOS else segments.spread(key)

    def _seq_lens(self) -> Column:
        mask = self._columns.get(self.SEQ_MASK)
        whole = self.segments
        return whole.lengths if mask is None else np.add.reduceat(mask, whole.starts, dtype=np.int64)

    def _changes(self, key: str) -> list[int]:
        """Return the indices, except 0, of rows that begin a new part by a column."""
        column = self[key]
        if column.ndim != 1:
            raise ConfigError(
                f"SampleBatch.split_by_episode: column {key!r} has rows of shape {column.shape[1:]}, expected one "
                "value a row; name a column such as 'eps_id'"
            )
        flags = key in (self.TERMINATEDS, self.TRUNCATEDS)
        found: list[int] = (np.flatnonzero(column[:-1] if flags else column[1:] != column[:-1]) + 1).tolist()
        return found

    def _slices_of(self, rows: Column, labels: Column | None = None) -> TrajectorySlices:
        parts, first, last, cut_before, cut_after = self.segments.select(rows, labels)
        stored, after, before = self._columns, last[cut_after], first[cut_before]
        for part, cut, key, derived, at, step in (
            (parts.next_obs, cut_after, self.OBS, self.NEXT_OBS, after, 1),
            (parts.prev_action, cut_before, self.ACTIONS, self.PREV_ACTIONS, before, -1),
            (parts.prev_reward, cut_before, self.REWARDS, self.PREV_REWARDS, before, -1),
        ):
            # What is stored comes first: padding has a successor, but its `new_obs` is zero.
            part[cut] = stored[derived][at] if derived in stored else self[key][at + step]
        if self.ACTION_MASK in stored:
            parts.next_mask[cut_after] = stored[self.ACTION_MASK][after + 1]
        return parts

    def _become(self, other: SampleBatch) -> None:
        self._columns, self.segments, self._infos = other._columns, other.segments, other._infos

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


def _spread(column: Column, places: Column, count: int) -> Column:
    """Return `count` rows of zeros with row i of `column` at `places[i]`."""
    out = np.zeros((count, *column.shape[1:]), column.dtype)
    out[places] = column
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
        """Return the number of rows of all policies, without padding."""
        return sum(batch.agent_steps() for batch in self.policy_batches.values())

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

    def copy(self, shallow: bool = False) -> MultiAgentBatch:
        """Return the same rows; a shallow copy shares the arrays."""
        copies = {policy: batch.copy(shallow) for policy, batch in self.policy_batches.items()}
        return MultiAgentBatch(copies, self._env_steps)

    def as_multi_agent(self) -> MultiAgentBatch:
        """Return this batch; a `SampleBatch` has the same method."""
        return self

    def timeslices(self, k: int) -> list[MultiAgentBatch]:
        """Return batches of the rows of `k` times each, sorted by episode and time; the last one may have fewer.

        A time is a pair of `eps_id` and `t`, so agents that act in the same step stay together. `t` counts each agent's
        own steps: turn-based agents, and agents that joined at different steps, are aligned by the number of their
        actions. `env_steps()` of a slice is the number of its times.

        Raises:
            ConfigError: `k` is below 1, or a batch is padded.
        """
        batches = list(self.policy_batches.values())
        padded = any(SampleBatch.SEQ_MASK in batch for batch in batches)
        if k < 1 or padded:
            raise ConfigError(
                f"MultiAgentBatch.timeslices: got k={k} of {'a padded' if padded else 'an unpadded'} batch, expected "
                "at least 1 and an unpadded one; pad the slices"
            )
        if not self.agent_steps():
            return []
        times = _times(batches)
        count = 1 + max(int(time.max()) for time in times if len(time))
        bounds = np.arange(0, count + k, k)
        parts: list[dict[str, SampleBatch]] = [{} for _ in bounds[1:]]
        for policy_id, batch, time in zip(self.policy_batches, batches, times, strict=True):
            # Stable, so that the rows of a trajectory stay together and in time.
            order = np.argsort(time // k, kind="stable")
            ends = np.searchsorted((time // k)[order], np.arange(len(parts)), "right").tolist()
            for part, start, end in zip(parts, [0, *ends[:-1]], ends, strict=True):
                if end > start:
                    part[policy_id] = batch.take(order[start:end])
        return [
            MultiAgentBatch(part, min(k, count - int(first)))
            for part, first in zip(parts, bounds[:-1], strict=True)
        ]

    @staticmethod
    def wrap_as_needed(
        policy_batches: Mapping[str, SampleBatch], env_steps: int
    ) -> SampleBatch | MultiAgentBatch:
        """Return the batch itself if it is that of `default_policy` alone, else a `MultiAgentBatch`."""
        if list(policy_batches) == [DEFAULT_POLICY]:
            return policy_batches[DEFAULT_POLICY]
        return MultiAgentBatch(policy_batches, env_steps)

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
    rows = sum(batch.agent_steps() for batch in batches)
    return rows, 1 + max(int(time.max()) for time in _times(batches) if len(time)) if rows else 0


def _times(batches: Sequence[SampleBatch]) -> list[Column]:
    """Return for each row the number of its time among the times of all batches, in order of episode and `t`."""
    episode = np.concatenate([batch["eps_id"] for batch in batches])
    step = np.concatenate([batch["t"] for batch in batches])
    order = np.lexsort((step, episode))
    is_new = np.zeros(len(order), np.bool_)
    is_new[1:] = (np.diff(episode[order]) != 0) | (np.diff(step[order]) != 0)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_new)
    return np.split(numbers, np.cumsum([batch.count for batch in batches])[:-1])


@dataclass(slots=True)
class TrajectorySlices:
    """Where the S trajectory chunks of a batch lie and what surrounds each; it knows row numbers, not columns.

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

    def copy(self, shallow: bool = False) -> TrajectorySlices:
        """Return the same slices; a shallow copy shares the arrays."""
        parts = [getattr(self, name) for name in self.__slots__]
        return TrajectorySlices(*(parts if shallow else [part.copy() for part in parts]))

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

    def placed(self, places: npt.NDArray[np.int64], count: int) -> Infos:
        """Return the infos of `count` rows, where row i became row `places[i]` and the others have none."""
        source = np.full(count, NOTHING_CAME)
        source[places] = self._source
        return Infos(self._buffers, source)

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
