"""SampleBatch: the rows of one policy, as columns.

`menv.ledger` makes it, learners and users read it. Rows of one trajectory lie together, in time;
`menv.segments` says where each piece begins and what lies around it. What can be derived is derived when
somebody asks for it. A batch never holds a Python object per row, but for the info dicts of the environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError
from menv.infos import Infos
from menv.policy_map import DEFAULT_POLICY
from menv.segments import Column, Segments, given

if TYPE_CHECKING:
    from menv.multi_agent_batch import MultiAgentBatch

# Inside the class, `slice` is a method.
RowRange: TypeAlias = slice
Rows = RowRange | Sequence[int] | npt.NDArray[np.int64]

_NO_NAME = (
    "SampleBatch: {!r:.60} as the name of a column, expected a name or a slice such as batch[:3]; take(rows) returns "
    'rows by index, and other_agent_batches holds batches and not tuples: write other_agent_batches[agent_id]["obs"]'
)
_DONES = "SampleBatch: 'dones' is split into 'terminateds' and 'truncateds'; use those"


class SampleBatch(Mapping[str, Column]):
    """The rows of one policy, as columns.

    Stored: `obs` as flat rows, `actions` in the network's form (choices counted from 0; numbers of a Box before
    scaling and clipping; nested ones flattened in the order of the space, choices and numbers together as float32),
    `rewards, terminateds, truncateds, t`, `action_mask` where there is one, `state_in_0` and so on of recurrent
    policies (the state before each row; that after it is the next row's), `env_t` and `next_env_t` where somebody
    looks at trajectories, `weights_seq_no` (of the weights that chose the action) with `overlap`, and what a
    learner adds. Derived when asked for: `new_obs, prev_actions, prev_rewards, infos, eps_id, agent_index, env_id,
    unroll_id`, and `action_prob` where there is an `action_logp`.

    `infos` holds for each row the info dict that came back with the step that the row's action caused:
    with the agent's next row, or with its end. `seq_lens` [S] is not a column but the number of rows of
    each piece, padding left out. `seq_mask` is True for rows and False for padding; only a padded batch
    has it.

    Attributes:
        segments: Where the pieces of trajectories lie.
    """

    OBS = CUR_OBS = "obs"
    NEXT_OBS = "new_obs"
    ACTIONS = "actions"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    DONES = "dones"  # No column: who reads it is told what took its place.
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
        segments: Segments | None = None,
        infos: Infos | None = None,
        **by_name: Column,
    ) -> None:
        """Hold `columns`, arrays of equal length, cut into `segments`; without `infos` they are empty.

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
        self.segments = given(segments)
        self._infos = Infos.nothing(self.count) if infos is None else infos

    @overload
    def __getitem__(self, key: str) -> Column: ...

    @overload
    def __getitem__(self, key: RowRange) -> SampleBatch: ...

    def __getitem__(self, key: str | RowRange) -> Column | SampleBatch:
        """Return a column, deriving it if need be; of a slice, such as `batch[:3]`, a batch of these rows."""
        if not isinstance(key, str):
            if isinstance(key, RowRange):
                return self.take(key)
            raise KeyError(_NO_NAME.format(key))
        column = self._columns.get(key)
        if column is not None:
            return column
        # These two may change with what they are derived from, and cost little.
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
        """Return the number of rows, as `count` does; `len(batch.keys())` is that of columns."""
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
        """Return the number of rows without padding: each is one step of one agent."""
        mask = self._columns.get(self.SEQ_MASK)
        return self.count if mask is None else int(mask.sum())

    def env_steps(self) -> int:
        """Return `agent_steps()`, as the classic system counts a single policy's batch."""
        return self.agent_steps()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a dict."""
        names = list(self)
        for index in range(self.count):
            yield {name: self[name][index] for name in names}

    def stored(self) -> dict[str, Column]:
        """Return the columns that are stored, without those that are derived; they are not copied."""
        return {name: column for name, column in self._columns.items() if name not in self._DERIVED}

    def columns(self, keys: Iterable[str]) -> list[Column]:
        """Return several columns, in the order of `keys`.

        Raises:
            KeyError: There is no such column.
        """
        return [self[key] for key in keys]

    def copy(self, shallow: bool = False) -> SampleBatch:
        """Return the same rows; a shallow copy has columns of its own, but shares their arrays.

        The info dicts are shared in any case.
        """
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
            self._pieces(np.arange(self.count)[at]),
            self._infos.take(at),
        )

    def shuffle(self, seed: int | np.random.Generator | None = None) -> Self:
        """Put the rows into a random order, in place, and return this batch.

        Each row keeps its own `new_obs`, `prev_actions` and so on. Trajectories come apart: add what is
        computed along them (such as advantages) before.

        Args:
            seed: Of the order, or a generator to draw it from; None differs from call to call.
        """
        self._become(self.take(np.random.default_rng(seed).permutation(self.count)))
        return self

    def timeslices(self, size: int | None = None, num_slices: int | None = None) -> list[SampleBatch]:
        """Return the rows in order, as batches of `size` rows or as `num_slices` nearly equal batches.

        With `size` the last one may be shorter; with more slices than rows some are empty.

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
        """Return one batch for each piece of a trajectory.

        Args:
            key: Split by a column instead: after each row with a flag for "terminateds" and "truncateds",
                wherever the value changes for any other, such as "eps_id".

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
        """Return the same rows, their columns shared, in pieces of at most `most` rows."""
        since = np.arange(self.count) - np.repeat(self.segments.starts, self.segments.lengths)
        pieces = self._pieces(np.arange(self.count), since // most)
        return SampleBatch(self._columns, pieces, self._infos)

    def right_zero_pad(self, max_seq_len: int) -> Self:
        """Make every piece `max_seq_len` rows long, in place, and return this batch.

        Longer pieces are cut; rows of zeros (of `{}` in `infos`) follow shorter ones. `seq_mask` is False
        for these, and `seq_lens` does not count them.

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
        from menv.multi_agent_batch import MultiAgentBatch

        return MultiAgentBatch({policy_id: self}, self.env_steps())

    def concat(self, other: SampleBatch) -> SampleBatch:
        """Return these rows and those of `other`; see `concat_samples`."""
        return self.concat_samples([self, other])

    @staticmethod
    def concat_samples(batches: Sequence[SampleBatch]) -> SampleBatch:
        """Return the rows of several batches, in order, with the columns that all of them have.

        Parts of one piece that lie side by side again become one piece again.

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
        segments = Segments.concat([batch.segments for batch in batches])
        infos = Infos.concat([batch._infos for batch in batches])
        return SampleBatch(columns, segments if padded[0] else segments.joined(), infos)

    def _derived(self, key: str) -> Column:
        segments = self.segments
        if key == self.NEXT_OBS:
            return self._shifted_back(self[self.OBS], segments.next_obs)
        if key == self.PREV_ACTIONS:
            return self._shifted_on(self[self.ACTIONS], segments.prev_action)
        if key == self.PREV_REWARDS:
            return self._shifted_on(self[self.REWARDS], segments.prev_reward)
        return self._infos.column() if key == self.INFOS else segments.spread(key)

    def _seq_lens(self) -> Column:
        """Return [S] rows of each piece, padding left out."""
        mask = self._columns.get(self.SEQ_MASK)
        whole = self.segments
        return whole.lengths if mask is None else np.add.reduceat(mask, whole.starts, dtype=np.int64)

    def _changes(self, key: str) -> list[int]:
        """Return the indices, but 0, of rows that begin a new part by a column."""
        column = self[key]
        if column.ndim != 1:
            raise ConfigError(
                f"SampleBatch.split_by_episode: column {key!r} has rows of shape {column.shape[1:]}, expected one "
                "value a row; name a column such as 'eps_id'"
            )
        flags = key in (self.TERMINATEDS, self.TRUNCATEDS)
        found: list[int] = (np.flatnonzero(column[:-1] if flags else column[1:] != column[:-1]) + 1).tolist()
        return found

    def _pieces(self, rows: Column, labels: Column | None = None) -> Segments:
        choice = self.segments.chosen(rows, labels)
        parts, stored = choice.segments, self._columns
        after, before = choice.last[choice.cut_after], choice.first[choice.cut_before]
        for part, cut, key, derived, at, step in (
            (parts.next_obs, choice.cut_after, self.OBS, self.NEXT_OBS, after, 1),
            (parts.prev_action, choice.cut_before, self.ACTIONS, self.PREV_ACTIONS, before, -1),
            (parts.prev_reward, choice.cut_before, self.REWARDS, self.PREV_REWARDS, before, -1),
        ):
            # What is stored comes first: padding has a successor, but its `new_obs` is zero.
            part[cut] = stored[derived][at] if derived in stored else self[key][at + step]
        if self.ACTION_MASK in stored:
            parts.next_mask[choice.cut_after] = stored[self.ACTION_MASK][after + 1]
        return parts

    def _become(self, other: SampleBatch) -> None:
        self._columns, self.segments, self._infos = other._columns, other.segments, other._infos

    def _shifted_back(self, column: Column, after: Column) -> Column:
        """Return each row's successor; `after` follows the last row of each piece."""
        out = np.empty_like(column)
        out[:-1] = column[1:]
        out[self.segments.ends - 1] = after
        return out

    def _shifted_on(self, column: Column, before: Column) -> Column:
        """Return each row's predecessor; `before` precedes the first row of each piece."""
        out = np.empty_like(column)
        out[1:] = column[:-1]
        out[self.segments.starts] = before
        return out


def _spread(column: Column, places: Column, count: int) -> Column:
    """Return `count` rows of zeros with row i of `column` at `places[i]`."""
    out = np.zeros((count, *column.shape[1:]), column.dtype)
    out[places] = column
    return out
