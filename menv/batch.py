"""Batches: columns of one policy's rows, and those of all policies of a fragment.

`menv.ledger` makes them, learners and users read them. Rows of one trajectory lie together, in
time; `Segments` says where each begins and what came after its last row. A batch never holds a
Python object per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]


@dataclass(slots=True)
class Segments:
    """The pieces of trajectories in a batch; S pieces, one row each in every array.

    Attributes:
        lengths: [S] rows.
        next_obs: [S, F] the observation after the last row: final, or that of the next row.
        final_missing: [S] True where the environment gave no final observation and `next_obs`
            repeats the last one.
        first_t: [S] index of the first row within its trajectory.
        eps_id: [S] episode id.
        agent_index: [S] number of the agent, in order of appearance in its episode.
        env_id: [S] index of the sub-environment.
        unroll_id: [S] a number that no other piece of the run has.
        prev_action: [S, ...] the action before the first row, zeros at a trajectory's start.
        prev_reward: [S] its reward.
    """

    lengths: Column
    next_obs: Column
    final_missing: Column
    first_t: Column
    eps_id: Column
    agent_index: Column
    env_id: Column
    unroll_id: Column
    prev_action: Column
    prev_reward: Column

    def take(self, which: Column) -> Segments:
        """Return the pieces selected by a mask or by indices."""
        return Segments(*(getattr(self, part.name)[which] for part in fields(self)))

    @property
    def ends(self) -> Column:
        """[S] index of the row after each piece's last one."""
        return np.cumsum(self.lengths)

    @staticmethod
    def concat(parts: Sequence[Segments]) -> Segments:
        """Return the pieces of several batches, in order."""
        names = [part.name for part in fields(Segments)]
        return Segments(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class SampleBatch(Mapping[str, Column]):
    """The rows of one policy, as columns.

    Stored: `obs, actions, rewards, terminateds, truncateds, t`, `action_mask` where there is one, and
    what a learner adds. Derived when asked for: `new_obs, prev_actions, prev_rewards, eps_id,
    agent_index, env_id, unroll_id`.

    Attributes:
        segments: Where the pieces of trajectories lie.
    """

    OBS = "obs"
    NEXT_OBS = "new_obs"
    ACTIONS = "actions"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    EPS_ID = "eps_id"
    AGENT_INDEX = "agent_index"
    ENV_ID = "env_id"
    UNROLL_ID = "unroll_id"
    T = "t"
    PREV_ACTIONS = "prev_actions"
    PREV_REWARDS = "prev_rewards"
    ACTION_MASK = "action_mask"
    ACTION_LOGP = "action_logp"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    VF_PREDS = "vf_preds"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"

    _OF_SEGMENT = (EPS_ID, AGENT_INDEX, ENV_ID, UNROLL_ID)
    _DERIVED = (NEXT_OBS, PREV_ACTIONS, PREV_REWARDS, *_OF_SEGMENT)

    def __init__(self, columns: Mapping[str, Column], segments: Segments) -> None:
        """Hold `columns`, arrays of equal length, cut into `segments`."""
        self._columns = dict(columns)
        self.segments = segments

    def __getitem__(self, key: str) -> Column:
        """Return a column, deriving it if need be."""
        column = self._columns.get(key)
        if column is not None:
            return column
        if key in self._OF_SEGMENT:
            column = np.repeat(getattr(self.segments, key), self.segments.lengths)
        elif key == self.NEXT_OBS:
            column = self._shifted_back(self[self.OBS], self.segments.next_obs)
        elif key == self.PREV_ACTIONS:
            column = self._shifted_on(self[self.ACTIONS], self.segments.prev_action)
        elif key == self.PREV_REWARDS:
            column = self._shifted_on(self[self.REWARDS], self.segments.prev_reward)
        elif key == "dones":
            raise KeyError("SampleBatch: 'dones' is split into 'terminateds' and 'truncateds'; use those")
        else:
            raise KeyError(f"SampleBatch: no column {key!r}, expected one of {sorted(self)}")
        self._columns[key] = column
        return column

    def __setitem__(self, key: str, column: Column) -> None:
        """Add or replace a column of `count` rows."""
        if len(column) != self.count:
            raise ValueError(f"SampleBatch: column {key!r} has {len(column)} rows, expected {self.count}")
        self._columns[key] = column

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of stored and derived columns."""
        return iter(dict.fromkeys([*self._columns, *self._DERIVED]))

    def __len__(self) -> int:
        """Return the number of columns, as for any mapping; the number of rows is `count`."""
        return len(list(iter(self)))

    def __repr__(self) -> str:
        """Show the size and the names of the columns."""
        return f"SampleBatch({self.count} rows: {', '.join(self)})"

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self._columns[self.OBS])

    def agent_steps(self) -> int:
        """Return the number of rows: each is one step of one agent."""
        return self.count

    def env_steps(self) -> int:
        """Return the number of rows, as the classic system counts a single policy's batch."""
        return self.count

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a dict."""
        names = list(self)
        for index in range(self.count):
            yield {name: self[name][index] for name in names}

    def split_by_episode(self) -> list[SampleBatch]:
        """Return one batch for each piece of a trajectory."""
        ends = self.segments.ends
        return [
            SampleBatch(
                {name: column[end - length : end] for name, column in self._columns.items()},
                self.segments.take(np.array([index])),
            )
            for index, (end, length) in enumerate(zip(ends, self.segments.lengths, strict=True))
        ]

    @staticmethod
    def concat_samples(batches: Sequence[SampleBatch]) -> SampleBatch:
        """Return the rows of several batches with the same stored columns, in order."""
        if len(batches) == 1:
            return batches[0]
        names = [name for name in batches[0]._columns if all(name in batch._columns for batch in batches)]
        columns = {name: np.concatenate([batch._columns[name] for batch in batches]) for name in names}
        return SampleBatch(columns, Segments.concat([batch.segments for batch in batches]))

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
        out[self.segments.ends - self.segments.lengths] = before
        return out


class MultiAgentBatch:
    """What all policies experienced in the same env steps.

    Attributes:
        policy_batches: The batch of each policy that has rows.
    """

    def __init__(self, policy_batches: Mapping[str, SampleBatch], env_steps: int) -> None:
        """Hold the batches of a fragment of `env_steps` env steps."""
        self.policy_batches = dict(policy_batches)
        self._env_steps = env_steps

    def __repr__(self) -> str:
        """Show the counts."""
        rows = {policy: batch.count for policy, batch in self.policy_batches.items()}
        return f"MultiAgentBatch({self._env_steps} env steps, rows {rows})"

    def __getitem__(self, policy_id: str) -> SampleBatch:
        """Return the batch of one policy."""
        if policy_id not in self.policy_batches:
            raise KeyError(
                f"MultiAgentBatch: no rows of {policy_id!r}, expected one of {list(self.policy_batches)}"
            )
        return self.policy_batches[policy_id]

    def __contains__(self, policy_id: object) -> bool:
        """Return whether a policy has rows."""
        return policy_id in self.policy_batches

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids of the policies that have rows."""
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
