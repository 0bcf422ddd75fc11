"""The short way round for sub-environments that step together and share one network.

Nothing is looked up and no object is made for a sub-environment: whole frames go from the adapter to the
ledger, through the network and back. `menv.loop.sampler` takes this way where it leads to the same
batches as the long one.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from menv.adapters.lockstep import LockstepEnvs
from menv.base_env import SINGLE_AGENT, BaseEnv
from menv.loop.cohort import Cohort
from menv.loop.episode_book import EpisodeBook
from menv.loop.framed import Framed
from menv.loop.net_cohort import NetCohort
from menv.loop.quota import Quota
from menv.loop.slot_table import SlotTable
from menv.loop.times import Times
from menv.loop.whole_episodes import WholeQuota
from menv.metrics import Metrics
from menv.segments import Column


class FrameLoop(Framed):
    """Collects fragments from one lockstep environment with one policy."""

    def __init__(
        self,
        env: LockstepEnvs,
        cohort: NetCohort,
        policy: int,
        table: SlotTable,
        book: EpisodeBook,
        times: Times,
    ) -> None:
        """Seat everybody.

        Args:
            env: It has not been polled.
            cohort: Whose network answers.
            policy: Index of the policy in it.
            table: The keys of the draws are written there.
            book: Numbers the episodes.
            times: Told of what environments and the network take.
        """
        keys = [book.agent_key(index, SINGLE_AGENT) for index in range(env.num_envs)]
        lives = np.array(keys, np.uint64) >> np.uint64(1)
        ledger = cohort.take_frames(policy, lives.astype(np.int64), book.new_ids)
        super().__init__(env.env_steps, cohort, policy, table, ledger, times)
        self._env = env
        for index, key in enumerate(keys):
            table.sit(index, 0, policy, index, key)

    def sample(self, quota: Quota, explore: bool) -> int:
        """Take a fragment's env steps of all sub-environments together; return how many."""
        env, num_envs = self._env, self._env.num_envs
        if not self._ledger.rows:
            before = perf_counter()
            first = env.poll_frame()
            self._times.env += perf_counter() - before
            self._write(first)
        self._begin(explore)
        whole = quota if isinstance(quota, WholeQuota) else None
        if whole is not None:
            whole.begin(env.env_steps)
        taken, full = 0, False
        while not full:
            actions, before = self._answer(), perf_counter()
            env.answer_frame(actions)
            frame = env.poll_frame()
            self._times.env += perf_counter() - before
            taken += num_envs if frame.begun is None else num_envs - frame.begun.tobytes().count(1)
            full = (
                taken >= quota.length * num_envs
                if whole is None
                else whole.note_frame(frame.done, env.env_steps)
            )
            self._write(frame, ask=not full)
        return taken

    def record(self, metrics: Metrics) -> None:
        """Record the episodes that the last fragment ended; to be called when it has been closed."""
        finished = self._ledger.finished
        policy_id = self._cohort.policy_ids[self._policy]
        metrics.record_many(policy_id, finished.returns.tolist(), finished.lengths.tolist())
        self._rows = slice(0, self._env.num_envs)

    def stand(self, numbered: Column) -> tuple[Column, int]:
        """Return [E] how many episodes have begun, and how many run.

        Args:
            numbered: [E] how many have a number. Where a last observation is a row of its own, the next episode has one
                when the fragment is closed, and begins with the next step.
        """
        if not self._ledger.closed:
            return numbered, self._env.num_envs
        between = self._env.between
        return numbered - between, self._env.num_envs - int(np.count_nonzero(between))

    def leave(self) -> Column:
        """Give the environment back, to be polled; return [E] env steps so far.

        The rows that wait are dropped: what came before them has its whole reward already.
        """
        self._cohort.take_rows()
        self._env.leave_frames()
        steps: Column = self._env.env_steps.copy()
        return steps


def frame_loop(
    env: BaseEnv,
    cohorts: list[Cohort],
    only: str | None,
    table: SlotTable,
    book: EpisodeBook,
    times: Times,
) -> FrameLoop | None:
    """Return the short way round, None where one network without a memory is not all."""
    if only is None or not isinstance(env, LockstepEnvs) or len(cohorts) != 1:
        return None
    cohort = cohorts[0]
    if not isinstance(cohort, NetCohort) or cohort.state_sizes:
        return None
    if cohort.path is not None and not cohort.path.whole:
        return None
    return FrameLoop(env, cohort, cohort.policy_ids.index(only), table, book, times)
