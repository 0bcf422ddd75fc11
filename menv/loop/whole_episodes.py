"""Whole episodes of sub-environments that step together: rows of one that runs wait here until it is over.

`menv.loop.sampler` hands in what its ledgers release and hands out what comes back, where a fragment is to hold
complete episodes and nobody can wait at the end of one. `WholeQuota` says when such a fragment is full. There is one
agent in each of these sub-environments, so that a trajectory is an episode; nothing here knows how rows came about.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from menv.base_env import EpisodeEnd
from menv.errors import ContractError
from menv.loop.cohort import Cohort
from menv.loop.quota import LONGEST, Flags, Quota
from menv.sample_batch import SampleBatch
from menv.segments import Column


class WholeQuota(Quota):
    """A fragment is full when the episodes that ended in it have so many env steps, all sub-environments together.

    Args:
        length: Env steps a sub-environment.
    """

    def __init__(self, length: int) -> None:
        super().__init__(length, lockstep=True)
        # [E] env steps of each sub-environment when its running episode began.
        self._since: Column = np.zeros(0, np.int64)
        self._over = 0

    def begin(self, env_steps: Column) -> None:
        """Begin a fragment at these env step counts [E]; episodes that run go on."""
        self._over = 0
        if len(env_steps) != len(self._since):
            self._since = env_steps.copy()

    def break_off(self) -> None:
        """Forget the episodes that run: with the next fragment others begin."""
        self._since = self._since[:0]

    def note_ends(self, ends: Sequence[EpisodeEnd]) -> None:
        """Count the env steps of episodes that ended."""
        for end in ends:
            self._since[end.env_index] += end.env_steps
            self._over += end.env_steps

    def note_frame(self, done: Flags | None, env_steps: Column) -> bool:
        """Count the env steps of episodes that ended at these counts [E]; return whether the fragment is full."""
        if done is not None:
            self._over += int((env_steps - self._since)[done].sum())
            self._since[done] = env_steps[done]
        return self.closed(env_steps) is not None

    def closed(self, env_steps: Column) -> Flags | None:
        """Return [E] True when the fragment is full, None before.

        Raises:
            ContractError: An episode seems never to end.
        """
        if self._over >= self.length * len(env_steps):
            return np.ones(len(env_steps), np.bool_)
        running = env_steps - self._since
        if np.maximum.reduce(running) > LONGEST + 10 * self.length:
            raise ContractError(
                f"sample: env {int(running.argmax())} took {int(running.max())} env steps without the end of an "
                'episode, expected one with batch_mode="complete_episodes"; truncate episodes in the environment, or '
                'use "truncate_episodes"'
            )
        return None


class WholeEpisodes:
    """The rows of episodes that run, by policy; none, and nothing is done, unless the quota is a `WholeQuota`."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota if isinstance(quota, WholeQuota) else None
        self._kept: dict[str, SampleBatch] = {}

    @property
    def waits(self) -> bool:
        """Whether rows wait here for the end of their episode."""
        return self._quota is not None

    @property
    def rewards(self) -> float:
        """What the rows earned that wait here."""
        return float(sum(batch[SampleBatch.REWARDS].sum() for batch in self._kept.values()))

    def completed(self, cohort: Cohort, closed: dict[str, SampleBatch]) -> dict[str, SampleBatch]:
        """Return what a cohort released, with all that must be known by the weights of now."""
        return closed if self._quota is None else cohort.with_inputs(closed)

    def release(
        self, closed: dict[str, SampleBatch], env_steps: int, excluded: Sequence[SampleBatch] = ()
    ) -> tuple[dict[str, SampleBatch], int]:
        """Return the rows of all episodes that are over, each in one piece, and their env steps; keep the others.

        Args:
            closed: The rows of a fragment by policy. A row with a flag is the last one of its episode.
            env_steps: Taken in the fragment.
            excluded: Rows of the fragment that are excluded from training; earlier rows of their episodes are dropped.
        """
        if self._quota is None:
            return closed, env_steps
        released, dropped = {}, sum(batch.count for batch in excluded)
        for policy_id, batch in self._kept.items() if excluded else ():
            gone = np.concatenate([one.segments.eps_id for one in excluded])
            kept = _in_order(batch, np.flatnonzero(~np.isin(batch.segments.eps_id, gone)))
            dropped += batch.count - kept.count
            self._kept[policy_id] = kept
        for policy_id in dict.fromkeys((*self._kept, *closed)):
            parts = [rows[policy_id] for rows in (self._kept, closed) if policy_id in rows]
            batch = SampleBatch.concat_samples(parts)
            pieces = batch.segments
            ended = _flagged(batch)
            over = np.isin(pieces.eps_id, pieces.eps_id[ended])
            released[policy_id] = _in_order(batch, np.flatnonzero(over))
            self._kept[policy_id] = _in_order(batch, np.flatnonzero(~over))
        released = {policy_id: batch for policy_id, batch in released.items() if batch.count}
        return released, dropped + sum(batch.count for batch in released.values())

    def break_off(self) -> None:
        """Count the episodes that run as truncated by what their last rows led to: nobody goes on with them."""
        if self._quota is not None:
            self._quota.break_off()
        for batch in self._kept.values():
            batch[SampleBatch.TRUNCATEDS][batch.segments.ends - 1] = True

    def drop(self, policy_id: str) -> None:
        """Forget the rows of a policy that is removed."""
        self._kept.pop(policy_id, None)


def _flagged(batch: SampleBatch) -> Flags:
    """Return [S] True where a piece is the last one of its episode."""
    last = batch.segments.ends - 1
    flags: Flags = batch[SampleBatch.TERMINATEDS][last] | batch[SampleBatch.TRUNCATEDS][last]
    return flags


def _in_order(batch: SampleBatch, which: npt.NDArray[np.int64]) -> SampleBatch:
    pieces = batch.segments
    # Of each sub-environment the piece that was kept comes first, and the one that goes on from it next.
    which = which[np.argsort(pieces.env_id[which], kind="stable")]
    lengths = pieces.lengths[which]
    before = np.cumsum(lengths) - lengths
    taken = batch.take(np.repeat(pieces.starts[which] - before, lengths) + np.arange(int(lengths.sum())))
    # Who hands them out numbers the pieces.
    taken.segments.unroll_id = taken.segments.eps_id
    taken.segments = taken.segments.joined()
    return taken
