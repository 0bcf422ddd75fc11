"""The sampler: poll, connect, act, write down, send; for every kind of environment.

The one loop through which all experience flows. An algorithm calls `sample`; everything else is
called from here and never calls back. It knows no losses and no learners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.base_env import BaseEnv, Ready
from menv.callbacks import DefaultCallbacks
from menv.classic_names import OF_WORKERS, Told
from menv.episode import Episode
from menv.loop.action_log import ActionLog
from menv.loop.block import Block, joined, set_aside, split
from menv.loop.cohort import Answers, Cohort, outside
from menv.loop.copies_loop import CopiesLoop, copies_loop
from menv.loop.digest import Digest
from menv.loop.episode_book import EpisodeBook
from menv.loop.frame_loop import FrameLoop, frame_loop
from menv.loop.hooks import Hooks
from menv.loop.layouts import Layout, look_up
from menv.loop.net_cohort import NetCohort
from menv.loop.observation_fn import Fn, ObservationFn
from menv.loop.own_cohort import OwnCohort
from menv.loop.patience import Patience
from menv.loop.played_rows import PlayedRows
from menv.loop.quota import Quota
from menv.loop.slot_table import SlotTable
from menv.loop.whole_episodes import WholeEpisodes
from menv.metrics import Metrics
from menv.multi_agent_batch import MultiAgentBatch
from menv.policy import Policy
from menv.policy_map import PolicyMap
from menv.sample_batch import SampleBatch
from menv.segments import Column
from menv.spaces import OutsideSpaceError


class Sampler(Told, told=OF_WORKERS):
    """Collects fragments of experience from one `BaseEnv`.

    Attributes:
        base_env: The sub-environments.
        policy_map: Who answers for whom.
        worker_index: 0 in the driver's own process, from 1 in workers.
        num_workers: How many workers there are.
        metrics: The episodes that ended.
        explore: False acts greedily.
        whole_frames: False goes the long way round always, which records episodes one by one.
        policies: The policy objects by id, for an `observation_fn`.
        digest: Of all rows that have been released.
        action_log: What the running episodes have done, to be played again.
        played: What external clients played by themselves.
        idle: Whether the last fragment was given up for the time being, because nobody called.
    """

    def __init__(
        self,
        base_env: BaseEnv,
        policy_map: PolicyMap,
        cohorts: Sequence[Cohort],
        quota: Quota,
        *,
        metrics: Metrics | None = None,
        seed: int = 0,
        worker_index: int = 0,
        num_workers: int = 0,
        first_index: int = 0,
        observation_fn: Fn | None = None,
        callbacks: DefaultCallbacks | None = None,
    ) -> None:
        """Take over an environment that has not been polled.

        Args:
            base_env: In table form.
            policy_map: Maps to the policies of `cohorts`.
            cohorts: Who answers; each policy is in exactly one.
            quota: When a fragment is full.
            metrics: Where episodes are recorded.
            seed: Key of every random draw.
            worker_index: This process.
            num_workers: How many workers there are.
            first_index: Index of this process's first sub-environment among all.
            observation_fn: See `ObservationFn`.
            callbacks: Told about episodes.
        """
        self.base_env = base_env
        self.policy_map = policy_map
        self.worker_index = worker_index
        self.num_workers = num_workers
        self.metrics = metrics or Metrics()
        self.explore = self.whole_frames = True
        self.policies: Mapping[str, Policy] = {}
        self.digest = Digest()
        self.action_log = ActionLog()
        self.env_steps = self.agent_steps = 0
        self._cohorts = list(cohorts)
        self._own = any(isinstance(cohort, OwnCohort) for cohort in cohorts)
        self._quota = quota
        self._whole = WholeEpisodes(quota)
        self._table = SlotTable()
        self._hooks = Hooks(callbacks or DefaultCallbacks(), self, self.metrics)
        self._book = EpisodeBook(
            self._cohorts, self._table, self._hooks, seed=seed, first_index=first_index, worker=self
        )
        fn, running = observation_fn, self._book.running
        self._observation_fn = None if fn is None else ObservationFn(fn, self, running)
        self._steps: Column = np.zeros(0, np.int64)
        self._layout: Layout | None = None
        # Rows that wait, by cohort number, and the slots array if they are all rows of one poll.
        self._pending: list[tuple[int, Block]] = []
        self._pending_slots: Column | None = None
        self.idle = self._polled = False
        self._frames: FrameLoop | None = None
        self._copies: CopiesLoop | None = None
        self._unrolls = 0
        self.played = PlayedRows(self._book, self._table, self._cohorts)
        # Env steps when the fragment began that is being filled.
        self._begun: Column | None = None

    def change_policies(self, policy_map: PolicyMap, added: Sequence[Cohort] = ()) -> None:
        """Go on with other policies; episodes that run keep theirs.

        In a vectorised environment that had one policy the running episodes are broken off, and are in no mean.

        Args:
            policy_map: Maps to policies of the cohorts there are and of those `added`.
            added: More cohorts. Policies may have been added to those there are, too.
        """
        self.row_by_row()
        if self._frames is not None and policy_map.only != self.policy_map.only:
            self._leave_frames()
        self._cohorts.extend(added)
        self._own = any(isinstance(cohort, OwnCohort) for cohort in self._cohorts)
        self._book.find_policies()
        self._layout = None
        self.policy_map = policy_map

    def retire(self, policy_id: str) -> None:
        """Take a policy's id away, for it is removed; agents that are bound to it keep it."""
        for cohort in self._cohorts:
            if policy_id in cohort.policy_ids:
                cohort.retire(policy_id)
        self._whole.drop(policy_id)

    def keep_episodes(self) -> None:
        """Keep the episodes of each fragment, and tell env steps in its rows, from now on.

        Batches have the columns `env_t` and `next_env_t` then: the env steps of the row's sub-environment when the
        row was observed, and when what came after it was.
        """
        self.row_by_row()
        self._hooks.keep(self._book.running.values())
        self.played.dated = True

    @property
    def episodes(self) -> Mapping[int, Episode]:
        """The episodes of the last fragment by id, until `finish`; only if they are kept."""
        return self._hooks.episodes

    def sample(self) -> MultiAgentBatch:
        """Return one fragment: full for every sub-environment, rows with complete rewards only.

        An external environment that nobody calls for its `idle_timeout` yields nothing, and the fragment goes on next
        time; see `idle`.

        Raises:
            ContractError: The environment or a policy broke its interface.
            EnvCrashError: The environment raised, and cannot be replaced or did so again and again.
        """
        self._connect()
        if not self._polled and not self._watched:
            only = self.policy_map.only
            self._frames = frame_loop(self.base_env, self._cohorts, only, self._table, self._book)
        if self._frames is not None:
            return self._sample_frames(self._frames)
        if self._begun is None:
            self._begun = self._begin()
        try:
            self.idle = not (self._fill_with_frames() or self._fill())
        finally:
            self.base_env.rest()
        if self.idle:
            return MultiAgentBatch({}, 0)
        env_steps, self._begun = int(self._steps.sum() - self._begun.sum()), None
        return self._close(env_steps)

    def _fill(self) -> bool:
        """Poll and answer until the fragment is full; False if nobody called an external environment for too long."""
        patience = Patience(self.base_env)
        while True:
            closed = self._quota.closed(self._steps)
            if closed is not None and closed.all():
                return True
            answered = self._answer(closed)
            ready = self.base_env.poll(patience.left)
            self._take(ready)
            if patience.ends(ready, answered):
                return False

    def _fill_with_frames(self) -> bool:
        """Go round with whole frames as far as that goes; False where the fragment is not full then."""
        if self._copies is None and self._quota.plain and not self._watched and len(self._pending) == 1:
            only, ((_, block),) = self.policy_map.only, self._pending
            self._copies = copies_loop(self.base_env, self._cohorts, only, self._table, self._book, block)
        if self._copies is None:
            return False
        self._pending, self._pending_slots = [], None
        steps = self._steps = self._copies.env_steps
        frames = self._quota.left(steps)
        taken = self._copies.sample(frames, self.explore)
        self.agent_steps += min(taken + 1, frames) * len(steps)
        if taken < frames:
            self.row_by_row()
            self._take(self.base_env.poll())
        return taken == frames

    def row_by_row(self) -> None:
        """Go on with rows in the place of whole frames; the next fragment may begin with frames again."""
        copies, self._copies = self._copies, None
        if copies is not None:
            copies.record(self.metrics)
            self._pending = [(0, block) for block in copies.leave()]

    def _begin(self) -> Column:
        """Begin a fragment and return the env steps of then."""
        if self._polled or self.base_env.external:
            begun = self._steps.copy()
        else:
            begun = self._steps
            self._take(self.base_env.poll())
            begun = begun if len(begun) else np.zeros_like(self._steps)
        self._polled = True
        self._quota.begin(begun)
        return begun

    @property
    def _watched(self) -> bool:
        """Whether somebody looks at rows and episodes one by one."""
        hooks, seen = self._hooks, self._observation_fn is not None
        return seen or hooks.active or hooks.keeps or not self.whole_frames

    def _sample_frames(self, frames: FrameLoop) -> MultiAgentBatch:
        """Return one fragment, the short way round."""
        self._polled = True
        env_steps = frames.sample(self._quota, self.explore)
        self.agent_steps += env_steps
        batch = self._close(env_steps)
        frames.record(self.metrics)
        return batch

    def _connect(self) -> None:
        """Take note of connectors that were changed since the last fragment."""
        for cohort in self._cohorts:
            if isinstance(cohort, NetCohort):
                cohort.connect()
        if self._frames is not None and not self._frames.fits:
            self._leave_frames()
        if self._copies is not None and (self._watched or not self._copies.fits):
            self.row_by_row()

    def _leave_frames(self) -> None:
        """Go the long way round from now on; episodes that run are broken off."""
        assert self._frames is not None
        self._steps = self._frames.leave()
        self._frames, self._polled = None, False
        self._whole.break_off()

    def env_index_of(self, slot: int) -> int:
        """Return the index of the sub-environment that has a slot."""
        return int(self._table.env_indices[slot])

    def finish(self, batch: MultiAgentBatch) -> None:
        """Tell the callbacks about a fragment that has been completed."""
        self._hooks.closed(batch, self.policies)
        self._hooks.callbacks.on_sample_end(worker=self, samples=batch)
        self._hooks.warn()

    def held_rewards(self) -> float:
        """Return what was paid and still waits for its row, or for its row's action."""
        in_env = sum(sum(by_agent.values()) for by_agent in self.base_env.held_rewards().values())
        return float(in_env + sum(one.ledger.held_rewards() for one in self._cohorts) + self._whole.rewards)

    def _answer(self, closed: npt.NDArray[np.bool_] | None) -> bool:
        """Answer the rows that wait, but for sub-environments whose share is full."""
        blocks, slots = self._pending, self._pending_slots
        self._pending, self._pending_slots = [], None
        if closed is not None:
            # Rows of full sub-environments go on waiting.
            blocks, self._pending = set_aside(blocks, closed)
            slots = None
        if not blocks:
            return False
        answers = [self._decide(number, block) for number, block in blocks]
        self.agent_steps += sum(len(block.slots) for _, block in blocks)
        if slots is not None and len(blocks) == 1:
            self.base_env.send_actions(slots, answers[0])
        else:
            self.base_env.send_actions(*joined(blocks, answers, slots))
        return True

    def _decide(self, number: int, block: Block) -> Answers:
        """Ask a cohort for the actions of a block."""
        cohort = self._cohorts[number]
        episodes: Sequence[Any] = ()
        if self._own and isinstance(cohort, OwnCohort):
            seats = self._seats
            episodes = [self._book.running[seats[slot][0]] for slot in block.slots.tolist()]
        self._quota.count(block.env_indices)
        if block.taken is not None:
            return self.played.took(cohort, block, block.taken, self._seats)
        return cohort.answer(block, self._table, self._steps, self.explore, episodes)

    def _take(self, ready: Ready) -> None:
        """Take in a poll: ends, episodes, joins, rows."""
        self._steps = ready.env_steps
        self._seats = ready.seats
        before = ready
        if self._observation_fn is not None:
            ready = self._observation_fn.finals(ready)
        if ready.ended or ready.joined or ready.unclaimed or ready.episodes:
            self._book.take(ready)
            self._quota.note_ends(ready.episodes)
        if ready.played:
            self._take_played(ready)
        if self._hooks.active:
            self._hooks.polled(ready, self._book.running)
        if len(ready.slots):
            self._take_rows(ready, before)

    def _take_played(self, ready: Ready) -> None:
        """Take in what was played elsewhere."""
        acted = self.played.take(ready)
        self._quota.count(acted)
        self._quota.note_ends([piece.episode for piece in ready.played if piece.episode])
        self.agent_steps += len(acted)

    def _take_rows(self, ready: Ready, before: Ready) -> None:
        """Take in the rows of a poll; `before` as it was without an `observation_fn`."""
        if self._observation_fn is not None:
            ready = self._observation_fn.rows(ready, before)
        table = self._table
        table.returns[ready.slots] += ready.rewards
        layout = self._layout
        if layout is None or layout.slots is not ready.slots or layout.version != table.version:
            layout = self._layout = look_up(ready.slots, table, self._cohorts)
        whole = not self._pending
        for number, looked_up in layout.blocks:
            block = looked_up if len(layout.blocks) == 1 else looked_up.copy()
            self._write(number, block, ready)
            parts = split(block, ready.taken) if ready.taken else [block]
            self._pending += [(number, part) for part in parts]
        self._pending_slots = ready.slots if whole and not ready.taken else None

    def _write(self, number: int, block: Block, ready: Ready) -> None:
        """Write the rows of a block into its cohort's ledger."""
        obs, rewards = block.of(ready.obs), block.of(ready.rewards)
        try:
            block.rows = self._cohorts[number].write(block, obs, rewards, ready)
            self._cohorts[number].ledger.inform(ready.infos, block.places)
            if self._hooks.keeps:
                self._cohorts[number].ledger.date(block.rows, self._steps[block.env_indices])
        except OutsideSpaceError as error:
            env_id, agent_id = ready.seats[int(block.slots[error.row])]
            step = int(self._steps[block.env_indices[error.row]])
            origin = "" if self._observation_fn is None else "observation_fn, "
            raise outside(env_id, agent_id, f"{origin}env step {step}", error.why) from error
        block.raw = obs if self._own else None

    def _close(self, env_steps: int) -> MultiAgentBatch:
        """Close every cohort's fragment and point the rows that still wait to their new places."""
        self.env_steps += env_steps
        batches: dict[str, SampleBatch] = {}
        for number, cohort in enumerate(self._cohorts):
            closed = cohort.close()
            if self._frames is None and not self.base_env.external:
                for batch in closed.values():
                    self.action_log.note(number, batch)
            batches.update(self._whole.completed(cohort, closed))
        batches, env_steps = self._whole.release(batches, env_steps)
        if self._copies is not None:
            self._copies.closed(self.metrics)
        if self.action_log.full:
            self.action_log.keep((self._copies or self._book).running_ids)
        for batch in batches.values():
            self.digest.take(batch)
            pieces = len(batch.segments.lengths)
            batch.segments.unroll_id = np.arange(self._unrolls, self._unrolls + pieces)
            self._unrolls += pieces
        for number, block in self._pending:
            block.rows = self._cohorts[number].ledger.moved(block.rows)
        self.played.closed()
        ordered = {policy: batches[policy] for policy in self.policy_map.specs if policy in batches}
        return MultiAgentBatch(ordered, env_steps)
