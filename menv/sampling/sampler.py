"""The sampler: fragments of experience, from every kind of environment.

All experience flows through it: row by row, or the short way in whole frames where that leads to the same. An
algorithm calls `sample`; everything else is called from here and never calls back. It knows no losses and no learners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from menv.adapters.custom import InnerEnvs
from menv.adapters.local_envs import CreatedEnvs
from menv.adapters.lockstep import LockstepEnvs
from menv.base_env import BaseEnv, Column, EnvId
from menv.callbacks import DefaultCallbacks
from menv.episode import Episode
from menv.errors import CallOrderError
from menv.inference.action_sampler import TrajectoryTable
from menv.metrics import Metrics, Timers
from menv.policy import Policy
from menv.policy_map import PolicyMap
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.sampling.callback_runner import CallbackRunner
from menv.sampling.digest import Digest
from menv.sampling.episode_checkpoint import EpisodeCheckpoint, EpisodeRecorder
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.external_trajectories import ExternalTrajectoryWriter
from menv.sampling.fragment_limit import FragmentLimit
from menv.sampling.network_policy_group import NetworkPolicyGroup
from menv.sampling.observation_fn import Fn, ObservationFn
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.rollout_loop import RolloutLoop
from menv.sampling.vector_loop import (
    EpisodeHoldback,
    SyncVectorLoop,
    VectorRolloutLoop,
    copies_loop,
    frame_loop,
)

Tree = dict[str, Any]


class Sampler:
    """Collects fragments of experience from one `BaseEnv`.

    Attributes:
        base_env: The sub-environments.
        policy_map: Who answers for whom.
        worker_index: 0 in the driver's own process, from 1 in workers.
        num_workers: How many workers there are.
        metrics: The episodes that ended.
        explore: False acts greedily.
        use_vector_loop: False goes the long way round always, which records episodes one by one.
        policies: The policy objects by id, for an `observation_fn`.
        digest: Of all rows that have been released.
        action_log: What the running episodes have done, to be played again.
        external_writer: What external clients played by themselves.
        timers: Where the time goes.
        idle: Whether the last fragment was given up for the time being, because nobody called.
        polled: Whether the environment has been polled, and cannot be taken for new any more.
        env_steps: Of all sub-environments, in fragments that have been closed.
        untrained: Rows of the last fragment that nobody learns from, by policy, until `finish`; only if they are dated.
    """

    def __init__(
        self,
        base_env: BaseEnv,
        policy_map: PolicyMap,
        groups: Sequence[PolicyGroup],
        limit: FragmentLimit,
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
            policy_map: Maps to the policies of `groups`.
            groups: Who answers; each policy is in exactly one.
            limit: When a fragment is full.
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
        self.explore = self.use_vector_loop = True
        self.policies: Mapping[str, Policy] = {}
        self.digest, self.timers = Digest(), Timers()
        self.action_log = EpisodeRecorder()
        self.env_steps = 0
        self.untrained: list[tuple[str, SampleBatch]] = []
        self.idle = self.polled = False
        self._groups = list(groups)
        self._limit = limit
        self._whole = EpisodeHoldback(limit)
        self._table = TrajectoryTable()
        self._callbacks = CallbackRunner(callbacks or DefaultCallbacks(), self, self.metrics)
        self._tracker = EpisodeTracker(
            self._groups, self._table, self._callbacks, seed=seed, first_index=first_index, worker=self
        )
        self.external_writer = ExternalTrajectoryWriter(self._tracker, self._table, self._groups)
        fn, running = observation_fn, self._tracker.running
        self._observation_fn = None if fn is None else ObservationFn(fn, self, running)
        self._rows = RolloutLoop(
            base_env, self._groups, limit, self._table, self._tracker, self._callbacks, self.external_writer,
            self._observation_fn, self.timers,
        )  # fmt: skip
        self._frames: VectorRolloutLoop | None = None
        self._copies: SyncVectorLoop | None = None
        self._unrolls = 0
        # Env steps when the fragment began that is being filled.
        self._begun: Column | None = None

    def change_policies(self, policy_map: PolicyMap, added: Sequence[PolicyGroup] = ()) -> None:
        """Go on with other policies; episodes that run keep theirs.

        In a vectorised environment that had one policy the running episodes are broken off, and are in no mean.

        Args:
            policy_map: Maps to policies of the groups there are and of those `added`.
            added: More groups. Policies may have been added to those there are, too.
        """
        self.leave_vector_loop()
        if self._frames is not None and policy_map.only != self.policy_map.only:
            self._leave_frames()
        self._groups.extend(added)
        self._tracker.find_policies()
        self._rows.follow()
        self.policy_map = policy_map

    def retire(self, policy_id: str) -> None:
        """Take a policy's id away, for it is removed; agents that are bound to it keep it."""
        for group in self._groups:
            if policy_id in group.policy_ids:
                group.retire(policy_id)
        self._whole.drop(policy_id)

    def keep_episodes(self) -> None:
        """Keep the episodes of each fragment, and tell env steps in its rows, from now on.

        Batches have the columns `env_t` and `next_env_t` then: the env steps of the row's sub-environment when the
        row was observed, and when what came after it was.
        """
        self.leave_vector_loop()
        self._callbacks.keep(self._tracker.running.values())
        self.external_writer.dated = True

    @property
    def agent_steps(self) -> int:
        """Rows that have been answered."""
        return self._rows.agent_steps

    @agent_steps.setter
    def agent_steps(self, count: int) -> None:
        self._rows.agent_steps = count

    @property
    def running(self) -> Mapping[EnvId, Episode]:
        """The running episodes by env id; none while whole frames of vectorised environments go round."""
        return self._tracker.running

    @property
    def slots_used(self) -> int:
        """Slots up to the highest that was ever in use."""
        return self._table.used

    @property
    def episodes(self) -> Mapping[int, Episode]:
        """The episodes of the last fragment by id, until `finish`; only if they are kept."""
        return self._callbacks.episodes

    @property
    def awaited(self) -> list[EnvId]:
        """The episodes that an idle fragment waits for alone: nobody is answered before they end."""
        return self._rows.awaited

    def sample(self) -> MultiAgentBatch:
        """Return one fragment: full for every sub-environment, rows with complete rewards only.

        An external environment that nobody calls for its `idle_timeout` yields nothing, and the fragment goes on next
        time; see `idle`.

        Raises:
            ContractError: The environment or a policy broke its interface.
            EnvCrashError: The environment raised, and cannot be replaced or did so again and again.
        """
        self._connect()
        if not self.polled and not self._watched:
            only = self.policy_map.only
            self._frames = frame_loop(
                self.base_env, self._groups, only, self._table, self._tracker, self.timers
            )
        if self._frames is not None:
            return self._sample_frames(self._frames)
        if self._begun is None:
            self._begun = self._rows.begin(self.polled)
            self.polled = True
        try:
            self.idle = not (self._fill_with_frames() or self._rows.fill(self.explore))
        finally:
            self.base_env.rest()
        if self.idle:
            return MultiAgentBatch({}, 0)
        env_steps, self._begun = int(self._rows.env_steps.sum() - self._begun.sum()), None
        return self._close(env_steps)

    def _fill_with_frames(self) -> bool:
        """Go round with whole frames as far as that goes; False where the fragment is not full then."""
        if self._copies is None and self._limit.plain and not self._watched:
            only, block = self.policy_map.only, self._rows.alone
            self._copies = copies_loop(
                self.base_env, self._groups, only, self._table, self._tracker, block, self.timers
            )
        if self._copies is None:
            return False
        steps = self._copies.env_steps
        self._rows.lend(steps)
        frames = self._limit.left(steps)
        taken = self._copies.sample(frames, self.explore)
        self.agent_steps += min(taken + 1, frames) * len(steps)
        if taken < frames:
            self.leave_vector_loop()
            self._rows.poll()
        return taken == frames

    def leave_vector_loop(self) -> None:
        """Go on with rows in the place of whole frames; the next fragment may begin with frames again."""
        copies, self._copies = self._copies, None
        if copies is not None:
            copies.record(self.metrics)
            self._rows.take_back(copies.leave())

    @property
    def _watched(self) -> bool:
        callbacks, seen = self._callbacks, self._observation_fn is not None
        return seen or callbacks.active or callbacks.keeps or not self.use_vector_loop

    def _sample_frames(self, frames: VectorRolloutLoop) -> MultiAgentBatch:
        self.polled = True
        env_steps = frames.sample(self._limit, self.explore)
        self.agent_steps += env_steps
        batch = self._close(env_steps)
        frames.record(self.metrics)
        return batch

    def _connect(self) -> None:
        for group in self._groups:
            if isinstance(group, NetworkPolicyGroup):
                group.connect()
        if self._frames is not None and not self._frames.fits:
            self._leave_frames()
        if self._copies is not None and (self._watched or not self._copies.fits):
            self.leave_vector_loop()

    def _leave_frames(self) -> None:
        """Go the long way round from now on; episodes that run are broken off."""
        assert self._frames is not None
        self._rows.env_steps = self._frames.leave()
        self._frames, self.polled = None, False
        self._whole.break_off()

    def env_index_of(self, slot: int) -> int:
        """Return the index of the sub-environment that has a slot."""
        return int(self._table.env_indices[slot])

    def finish(self, batch: MultiAgentBatch) -> None:
        """Tell the callbacks about a fragment that has been completed."""
        self.untrained = []
        self._callbacks.closed(batch, self.policies)
        self._callbacks.sampled(batch)
        self._callbacks.warn()

    def held_rewards(self) -> float:
        """Return what was paid and still waits for its row, or for its row's action."""
        in_env = sum(sum(by_agent.values()) for by_agent in self.base_env.held_rewards().values())
        return float(in_env + sum(one.buffer.held_rewards() for one in self._groups) + self._whole.rewards)

    def state(self) -> Tree:
        """Return where it stands between two fragments, as a plain tree.

        Running episodes are written down as their seeds and actions, to be played again. Whatever of an episode no file
        can hold costs that episode alone: it is broken off and counted.

        Raises:
            CallOrderError: It is in the middle of a fragment.
        """
        self.leave_vector_loop()
        # What an idle external environment has left half full is given up, like its running episodes.
        waits = self._frames is not None or self.idle
        if not waits and not all(group.buffer.closed for group in self._groups):
            raise CallOrderError(
                "save: a fragment is being sampled, expected to stand between two; call it after train() or sample(), "
                "or in on_train_result"
            )
        tree, running = self.state_without_episodes(), self._running_episodes()
        return tree | running.state() if running is not None and self.polled else tree

    def state_without_episodes(self) -> Tree:
        """Return where it stands, also in the midst of a fragment, as if no episode could be taken up."""
        env = self.base_env
        steps = env.env_steps if isinstance(env, CreatedEnvs | LockstepEnvs) else self._rows.env_steps
        begun, running = self._tracker.begun.copy(), len(self._tracker.running)
        if self._frames is not None:
            begun, running = self._frames.stand(begun)
        return {
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "pieces": self._unrolls,
            "digest": self.digest.state(),
            "steps": steps.copy(),
            "begun": begun,
            "running": running,
            "episodes": [],
            "rows": [],
            "seats": ([], []),
        }

    def resume(self, tree: Mapping[str, Any]) -> int:
        """Go on from where another sampler stood; this one has not sampled, and its groups hold nothing.

        Args:
            tree: What `state` of the other one returned.

        Returns:
            The number of episodes that ran and could not be taken up.
        """
        env, steps = self.base_env, tree["steps"]
        self.env_steps, self.agent_steps = tree["env_steps"], tree["agent_steps"]
        self._unrolls = tree["pieces"]
        self.digest = Digest(*map(int, tree.get("digest", ())))
        same = not env.num_envs or env.num_envs == len(steps)
        if not same:
            # Other sub-environments: none is where it was, and none may draw the same numbers again.
            steps = np.full(env.num_envs, steps.max(initial=0))
        self._tracker.resume(tree["begun"], len(steps))
        if isinstance(env, LockstepEnvs | InnerEnvs):
            env.start_from(steps)
            self._rows.env_steps = steps
        lost, running = int(tree["running"]), self._running_episodes()
        if running is not None:
            lost -= running.take_up(steps, tree if same else None)
            self.polled = True
        return lost

    def _running_episodes(self) -> EpisodeCheckpoint | None:
        """Return what writes episodes down and plays them again, None where menv did not make the environments."""
        if not isinstance(self.base_env, CreatedEnvs):
            return None
        return EpisodeCheckpoint(
            self.base_env, self.policy_map, self._groups, self._table, self._tracker, self._rows, self.action_log
        )  # fmt: skip

    def _close(self, env_steps: int) -> MultiAgentBatch:
        """Close every group's fragment and point the rows that still wait to their new places."""
        self.env_steps += env_steps
        self.untrained = []
        batches: dict[str, SampleBatch] = {}
        excluded: list[SampleBatch] = []
        for number, group in enumerate(self._groups):
            closed = group.close()
            for reward in group.buffer.disowned:
                self.metrics.add_unclaimed(reward)
            if self._frames is None and not self.base_env.external:
                for batch in (*closed.values(), *(batch for _, batch in group.untrained)):
                    self.action_log.note(number, batch)
            if self._callbacks.keeps:
                self.untrained += group.untrained
            excluded += [batch for _, batch in group.untrained]
            group.untrained = ()
            if not self._whole.waits:
                self._callbacks.note_excluded_late(group.buffer.excluded_late)
            batches.update(self._whole.completed(group, closed))
        batches, env_steps = self._whole.release(batches, env_steps, excluded)
        if self._copies is not None:
            self._copies.closed(self.metrics)
        if self.action_log.full:
            self.action_log.keep((self._copies or self._tracker).running_ids)
        for batch in batches.values():
            self.digest.take(batch)
            pieces = len(batch.segments.lengths)
            batch.segments.unroll_id = np.arange(self._unrolls, self._unrolls + pieces)
            self._unrolls += pieces
        self._rows.closed()
        self.external_writer.closed()
        ordered = {policy: batches[policy] for policy in self.policy_map.specs if policy in batches}
        return MultiAgentBatch(ordered, env_steps)
