"""The short way round for copies of a gymnasium environment that are stepped one after another.

While all copies wait together and one network answers for them, whole frames go round as with sub-environments that
step together (`menv.loop.frame_loop`). Here that is only ever a stretch of the long way: it begins where every copy
waits, and ends, with nothing lost, as soon as something happens or is asked for that a frame does not tell.
`menv.loop.sampler` begins and ends it. Rows, draws, episodes and their order are those of the long way.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from menv.adapters.gym import GymEnvs
from menv.base_env import BaseEnv
from menv.episode_record import When
from menv.frame import Frame
from menv.loop.block import Block
from menv.loop.cohort import Cohort
from menv.loop.episode_book import EpisodeBook
from menv.loop.framed import Framed
from menv.loop.net_cohort import NetCohort
from menv.loop.slot_table import SlotTable
from menv.loop.times import Times
from menv.metrics import Metrics


class CopiesLoop(Framed):
    """A stretch of env steps that all copies take together."""

    def __init__(
        self,
        env: GymEnvs,
        cohort: NetCohort,
        policy: int,
        table: SlotTable,
        book: EpisodeBook,
        block: Block,
        times: Times,
    ) -> None:
        """Begin where every copy waits.

        Args:
            env: The copies.
            cohort: Whose network answers; its ledger is closed and holds the one row of each copy.
            policy: Index of the policy in it.
            table: Keeps what the episodes that run have earned.
            book: Numbers the episodes, and is told which of them run when the stretch ends.
            block: The rows that wait.
            times: Told of what environments and the network take.
        """
        ledger = cohort.take_frames(policy, book.lives(env.num_envs), book.new_ids, going_on=True)
        super().__init__(env.env_steps, cohort, policy, table, ledger, times)
        self._env = env
        self._book = book
        self._block = block
        self._answered = False
        # Where the episodes that run began, and those that ended since the last `record`.
        self._starts = [env.episode_start(index) for index in range(env.num_envs)]
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._when: list[When] = []

    @property
    def fits(self) -> bool:
        """Whether no connector has come."""
        return self._cohort.path is None

    @property
    def running_ids(self) -> list[int]:
        """The ids of the episodes [E] that run."""
        ids: list[int] = self._ledger.running().tolist()
        return ids

    def sample(self, frames: int, explore: bool) -> int:
        """Take so many env steps of each copy; return how many, fewer where a poll has more to tell."""
        env, slots = self._env, self._env.everyone
        self._begin(explore)
        for taken in range(frames):
            actions, before = self._answer(), perf_counter()
            env.send_actions(slots, actions)
            frame = env.poll_frame()
            self._times.env += perf_counter() - before
            if frame is None:
                self._answered = True
                return taken
            self._write(frame, ask=taken < frames - 1)
            self._add_up(frame)
        return frames

    def record(self, metrics: Metrics) -> None:
        """Record the episodes that ended since the last time."""
        if self._returns:
            policy_id = self._cohort.policy_ids[self._policy]
            metrics.record_many(policy_id, self._returns, self._lengths, self._when)
            self._returns, self._lengths, self._when = [], [], []

    def closed(self, metrics: Metrics) -> None:
        """Record, for the fragment has been closed, and the rows that wait have moved."""
        self.record(metrics)
        self._rows = slice(0, self._env.num_envs)

    def leave(self) -> list[Block]:
        """End the stretch; return the rows that wait, none if a poll has more to tell."""
        ids, policy_id = self.running_ids, self._cohort.policy_ids[self._policy]
        self._cohort.leave_frames(self._ledger, answered=self._answered)
        self._book.go_on(ids, policy_id)
        if self._answered:
            return []
        self._block.rows = self._rows
        return [self._block]

    def _add_up(self, frame: Frame) -> None:
        """Add up what the episodes earn, step by step as the long way does."""
        returns = self._table.returns
        returns[: len(frame.rewards)] += frame.rewards
        if frame.done is None:
            return
        for index in frame.done.nonzero()[0].tolist():
            self._returns.append(returns.item(index))
            returns[index] = 0.0
            until = self.env_steps.item(index)
            self._lengths.append(until - self._starts[index])
            self._starts[index] = until
            self._when.append(self._book.when(index, until))


def copies_loop(
    env: BaseEnv,
    cohorts: list[Cohort],
    only: str | None,
    table: SlotTable,
    book: EpisodeBook,
    block: Block | None,
    times: Times,
) -> CopiesLoop | None:
    """Return a stretch of the short way, None where not all copies wait for one plain network without a memory."""
    if only is None or block is None or not isinstance(env, GymEnvs) or len(cohorts) != 1:
        return None
    cohort = cohorts[0]
    if not isinstance(cohort, NetCohort) or cohort.state_sizes or cohort.path is not None:
        return None
    policy, ledger = cohort.policy_ids.index(only), cohort.ledger
    if ledger.rows != env.num_envs or ledger.carried or not book.all_follow(only):
        return None
    # Every copy has one row, in the order of the copies.
    rows = np.arange(ledger.rows)[block.rows]
    ordered = np.array_equal(block.slots, env.everyone) and np.array_equal(rows, env.everyone)
    if not ordered or block.taken is not None or not np.all(block.which == policy):
        return None
    return CopiesLoop(env, cohort, policy, table, book, block, times)
