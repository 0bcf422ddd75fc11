"""Fragment limits: when a fragment is full, for each sub-environment.

The loops ask before they act. A limit counts env steps or agent steps, and may wait for the end of episodes
(`batch_mode="complete_episodes"`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from menv.base_env import Column, EpisodeEnd, EpisodeEnds
from menv.errors import ContractError
from menv.sample_batch import SampleBatch

Flags = npt.NDArray[np.bool_]

LONGEST = 100_000
"""Env steps after which an episode counts as endless."""


class FragmentLimit:
    """Each sub-environment's share of a fragment.

    Args:
        length: Steps per sub-environment.
        batch_mode: "truncate_episodes" stops there, "complete_episodes" at the next episode end.
        count_steps_by: "env_steps" or "agent_steps". Agent steps are answered rows; the share is full after the env
            step that uses the last of them.
        lockstep: The sub-environments step at once. The share counts for all of them together, so that a
            sub-environment whose resets take env steps of the others does not delay them. For complete episodes see
            `WholeEpisodeLimit`.

    Attributes:
        room: How many steps the fragment of an external environment lacked at the last check, and whether these are
            agent steps; None for others.
        counts_rows: Whether the limit depends on the rows that are answered: only then `count` has to be called.
    """

    room: tuple[float, bool] | None = None

    def __init__(
        self,
        length: int,
        batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes",
        count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps",
        *,
        lockstep: bool = False,
    ) -> None:
        self.length = length
        self._lockstep = lockstep
        self._complete = batch_mode == "complete_episodes"
        self._by_rows = count_steps_by == "agent_steps"
        self.counts_rows = self._complete or self._by_rows
        self._target: Column = np.zeros(0, np.int64)
        self._rows: Column = np.zeros(0, np.int64)
        # True between episodes.
        self._boundary: Flags = np.zeros(0, np.bool_)
        # Env steps at the last check and at the last answered row.
        self._seen: Column = np.zeros(0, np.int64)
        self._asked: Column = np.zeros(0, np.int64)

    def begin(self, env_steps: Column) -> None:
        """Begin a fragment at these env step counts [E]."""
        self._target = env_steps + self.length
        self._rows = np.zeros(len(env_steps), np.int64)
        self._boundary = np.ones(len(env_steps), np.bool_)
        self._seen = env_steps.copy()
        self._asked = np.full(len(env_steps), -1)

    def count(self, env_indices: Column) -> None:
        """Count answered rows [R] of these sub-environments."""
        self._make_room(int(env_indices.max(initial=-1)) + 1)
        if self._by_rows:
            self._rows += np.bincount(env_indices, minlength=len(self._rows))
            self._asked[env_indices] = self._seen[env_indices]
        if self._complete:
            self._boundary[env_indices] = False

    def end_episodes(self, ends: Sequence[EpisodeEnd]) -> None:
        """Record that episodes ended."""
        if self._complete:
            for end in ends:
                self._make_room(end.env_index + 1)
                self._boundary[end.env_index] = True

    @property
    def whole(self) -> WholeEpisodeLimit | None:
        """This limit, if it holds back the rows of running episodes."""
        return None

    def closed(self, env_steps: Column) -> Flags | None:
        """Return [E] True where a sub-environment's share is full, None if there is none."""
        if len(env_steps) > len(self._boundary):
            self._make_room(len(env_steps))
        if self._lockstep:
            steps = np.add.reduce(self._rows if self._by_rows else env_steps - self._target)
            goal = self.length * len(env_steps) if self._by_rows else 0
            return np.ones(len(env_steps), np.bool_) if steps >= goal else None
        done: Flags = env_steps >= self._target
        if self._by_rows:
            self._seen[:] = env_steps
            done = (self._rows >= self.length) & (env_steps > self._asked)
        if self._complete:
            self._check_endless(env_steps)
            done &= self._boundary
        # Counting takes a quarter of the time of a reduction.
        return done if np.count_nonzero(done) else None

    def _check_endless(self, env_steps: Column) -> None:
        beyond = env_steps - self._target
        if len(beyond) and beyond.max() > LONGEST + 10 * self.length:
            raise ContractError(
                f"sample: env {int(beyond.argmax())} made {int(beyond.max())} env steps beyond the fragment without "
                'the end of an episode, expected one with batch_mode="complete_episodes"; truncate episodes in the '
                'environment, or use "truncate_episodes"'
            )

    def _make_room(self, num_envs: int) -> None:
        """Make room for new sub-environments."""
        if num_envs <= len(self._boundary):
            return
        fills = ("_target", self.length), ("_rows", 0), ("_boundary", True), ("_seen", 0), ("_asked", -1)
        for name, value in fills:
            column = getattr(self, name)
            more = np.full(max(0, num_envs - len(column)), value, column.dtype)
            setattr(self, name, np.concatenate((column, more)))


class ExternalFragmentLimit(FragmentLimit):
    """The limit for external environments, and for environments with an unknown number of sub-environments.

    All episodes fill the fragment together. With "complete_episodes" the episodes that run when it is full are played
    to their end, and new ones wait.
    """

    def __init__(
        self,
        length: int,
        batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes",
        count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps",
    ) -> None:
        super().__init__(length, batch_mode, count_steps_by)
        self._begun = 0
        self.room = length, self._by_rows

    def begin(self, env_steps: Column) -> None:
        self._begun = int(env_steps.sum())
        self._make_room(len(env_steps))
        self._rows[:] = 0

    def closed(self, env_steps: Column) -> Flags | None:
        self._make_room(len(env_steps))
        steps = self._rows.sum() if self._by_rows else int(env_steps.sum()) - self._begun
        self.room = self.length - steps, self._by_rows
        if steps < self.length:
            return None
        if not self._complete:
            return np.ones(len(env_steps), np.bool_)
        return self._boundary.copy()


class WholeEpisodeLimit(FragmentLimit):
    """The limit for complete episodes of lockstep environments, `length` env steps per sub-environment.

    A fragment is full when the episodes that ended in it have that many env steps, all sub-environments together. Such
    environments cannot wait at the end of an episode, so the rows of running episodes are held back by policy. Each
    sub-environment has one agent, so a trajectory is an episode.
    """

    def __init__(self, length: int) -> None:
        super().__init__(length, lockstep=True)
        # [E] env steps at the start of the running episodes.
        self._since: Column = np.zeros(0, np.int64)
        self._over = 0
        self._kept: dict[str, SampleBatch] = {}

    @property
    def whole(self) -> WholeEpisodeLimit:
        return self

    def begin(self, env_steps: Column) -> None:
        self._over = 0
        if len(env_steps) != len(self._since):
            self._since = env_steps.copy()

    def end_episodes(self, ends: Sequence[EpisodeEnd]) -> None:
        if isinstance(ends, EpisodeEnds):
            self._since[ends.env_indices] += ends.env_steps
            self._over += int(ends.env_steps.sum())
            return
        for end in ends:
            self._since[end.env_index] += end.env_steps
            self._over += end.env_steps

    def closed(self, env_steps: Column) -> Flags | None:
        if self._over >= self.length * len(env_steps):
            return np.ones(len(env_steps), np.bool_)
        running = env_steps - self._since
        if np.maximum.reduce(running) > LONGEST + 10 * self.length:
            raise ContractError(
                f"sample: env {int(running.argmax())} made {int(running.max())} env steps without the end of an "
                'episode, expected one with batch_mode="complete_episodes"; truncate episodes in the environment, or '
                'use "truncate_episodes"'
            )
        return None

    @property
    def held_rewards(self) -> float:
        """The rewards of the rows that are held back."""
        return float(sum(batch[SampleBatch.REWARDS].sum() for batch in self._kept.values()))

    def release(
        self, closed: dict[str, SampleBatch], excluded: Sequence[SampleBatch]
    ) -> tuple[dict[str, SampleBatch], int]:
        """Return the rows of all episodes that ended, each in one chunk, and their env steps; keep the others.

        `closed` are the rows of a fragment by policy, `excluded` its rows that are excluded from training; earlier rows
        of their episodes are dropped.
        """
        released, dropped = {}, sum(batch.count for batch in excluded)
        for policy_id, batch in self._kept.items() if excluded else ():
            gone = np.concatenate([one.segments.eps_id for one in excluded])
            kept = _in_order(batch, np.flatnonzero(~np.isin(batch.segments.eps_id, gone)))
            dropped += batch.count - kept.count
            self._kept[policy_id] = kept
        for policy_id in dict.fromkeys((*self._kept, *closed)):
            parts = [rows[policy_id] for rows in (self._kept, closed) if policy_id in rows]
            batch = SampleBatch.concat_samples(parts)
            chunks = batch.segments
            over = np.isin(chunks.eps_id, chunks.eps_id[_ended(batch)])
            released[policy_id] = _in_order(batch, np.flatnonzero(over))
            self._kept[policy_id] = _in_order(batch, np.flatnonzero(~over))
        released = {policy_id: batch for policy_id, batch in released.items() if batch.count}
        return released, dropped + sum(batch.count for batch in released.values())

    def truncate(self) -> None:
        """Mark the running episodes as truncated after their last rows; other ones begin with the next fragment."""
        self._since = self._since[:0]
        for batch in self._kept.values():
            batch[SampleBatch.TRUNCATEDS][batch.segments.ends - 1] = True

    def drop(self, policy_id: str) -> None:
        """Drop the rows of a policy that is removed."""
        self._kept.pop(policy_id, None)


def _ended(batch: SampleBatch) -> Flags:
    """Return [S] True where a chunk is the last one of its episode."""
    last = batch.segments.ends - 1
    flags: Flags = batch[SampleBatch.TERMINATEDS][last] | batch[SampleBatch.TRUNCATEDS][last]
    return flags


def _in_order(batch: SampleBatch, which: npt.NDArray[np.int64]) -> SampleBatch:
    """Return some chunks; chunks of one sub-environment are joined."""
    chunks = batch.segments
    # The kept chunk of a sub-environment comes first, then its continuation.
    which = which[np.argsort(chunks.env_id[which], kind="stable")]
    lengths = chunks.lengths[which]
    before = np.cumsum(lengths) - lengths
    found = batch.take(np.repeat(chunks.starts[which] - before, lengths) + np.arange(int(lengths.sum())))
    # The sampler assigns the final ids.
    found.segments.unroll_id = found.segments.eps_id
    found.segments = found.segments.joined()
    return found
