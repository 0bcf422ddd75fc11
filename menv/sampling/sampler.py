"""The sampler: collects fragments of experience from any `BaseEnv`.

`Algorithm` calls `Sampler.sample`, which runs `menv.sampling.rollout_loop` until a fragment is full, closes the buffers
and returns their batches. It knows no losses and no learners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from menv.adapters.adapter import Adapter
from menv.base_env import Column, EnvId
from menv.callbacks import DefaultCallbacks
from menv.episode import Episode
from menv.errors import CallOrderError
from menv.metrics import Metrics, Timers
from menv.policy import Policy
from menv.policy_map import PolicyMap
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.sampling.callback_runner import CallbackRunner
from menv.sampling.crash_record import CrashRecorder
from menv.sampling.digest import Digest
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.external_trajectories import ExternalTrajectoryWriter
from menv.sampling.fragment_limit import FragmentLimit
from menv.sampling.observation_fn import Fn, ObservationFn
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.rollout_loop import RolloutLoop
from menv.sampling.trajectories import TrajectoryTable

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""A counter in a checkpoint; a float64 holds it exactly."""


@dataclass
class SamplerState:
    """What a sampler continues from. Running episodes are not part of it: a run that resumes begins new ones.

    `steps` and `begun` count the env steps and the episodes of each sub-environment.
    """

    env_steps: Count = 0
    agent_steps: Count = 0
    pieces: Count = 0
    digest: tuple[int, int, int] = (0, 0, 0)
    steps: list[Count] = field(default_factory=list)
    begun: list[Count] = field(default_factory=list)
    running: Count = 0


class Sampler:
    """Collects fragments of experience from one `BaseEnv`.

    Args:
        base_env: The environment; it has not been polled.
        policy_map: Maps agents to the policies of `groups`.
        groups: The policy groups; each policy is in exactly one.
        limit: Decides when a fragment is full.
        metrics: Records episodes that ended.
        seed: Key of every random draw.
        worker_index: 0 in the driver, from 1 in workers.
        num_workers: How many workers there are.
        first_index: Index of this process's first sub-environment among all.
        observation_fn: See `ObservationFn`.
        callbacks: Called for episodes and fragments.

    Attributes:
        explore: False acts greedily.
        policies: The policy objects by id, for callbacks and `observation_fn`.
        digest: A hash of all rows released so far.
        external_writer: Writes trajectories that external clients collected.
        crashes: Describes faults for crash capsules.
        timers: Seconds spent in environments and policies.
        idle: Whether the last fragment is not full because no client called for `idle_timeout` seconds.
        polled: Whether the environment has been polled.
        env_steps: Env steps of all sub-environments in closed fragments.
        untrained: Rows of the last fragment that are excluded from training, by policy, until `finish`. Only with
            `keep_episodes`.
    """

    def __init__(
        self,
        base_env: Adapter,
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
        self.base_env = base_env
        self.policy_map = policy_map
        self.worker_index = worker_index
        self.num_workers = num_workers
        self.metrics = metrics or Metrics()
        self.explore = True
        self.policies: Mapping[str, Policy] = {}
        self.digest, self.timers = Digest(), Timers()
        self.env_steps = 0
        self.untrained: list[tuple[str, SampleBatch]] = []
        self.idle = self.polled = False
        self._groups = list(groups)
        self._limit = limit
        # Where the rows of running episodes are held back.
        self._whole = limit.whole
        self._table = TrajectoryTable()
        self._callbacks = CallbackRunner(callbacks or DefaultCallbacks(), self, self.metrics)
        self._tracker = EpisodeTracker(
            self._groups, self._table, self._callbacks, seed=seed, first_index=first_index, worker=self
        )
        self.external_writer = ExternalTrajectoryWriter(self._tracker, self._table, self._groups)
        fn, running = observation_fn, self._tracker.running
        self._observation_fn = None if fn is None else ObservationFn(fn, self, running)
        self._loop = RolloutLoop(
            base_env, self._groups, limit, self._table, self._tracker, self._callbacks, self.external_writer,
            self._observation_fn, self.timers,
        )  # fmt: skip
        self.crashes = CrashRecorder(self, base_env.replayable, self._groups, self._tracker)
        self._callbacks.describe = self.crashes.record
        self._next_unroll_id = 0
        # [E] env steps at the start of an unfinished fragment.
        self._fragment_start: Column | None = None

    def sample(self) -> MultiAgentBatch:
        """Return one fragment; it contains only rows whose reward is complete.

        If no client calls an external environment for its `idle_timeout`, the batch is empty, `idle` is True and the
        next call continues the fragment.

        Raises:
            ContractError: The environment or a policy broke its interface.
            EnvCrashError: The environment raised and could not be restarted, or raised again and again.
        """
        self._connect()
        if self._fragment_start is None:
            self._fragment_start = self._loop.begin(self.polled)
            self.polled = True
        try:
            self.idle = not self._loop.fill(self.explore)
        finally:
            self.base_env.rest()
        if self.idle:
            return MultiAgentBatch({}, 0)
        env_steps = int(self._loop.env_steps.sum() - self._fragment_start.sum())
        self._fragment_start = None
        return self._close(env_steps)

    def _connect(self) -> None:
        """Follow changed connectors."""
        for group in self._groups:
            group.strategy.connect()
        callbacks, metrics = self._callbacks, self.metrics
        watched = (
            self._observation_fn is not None or callbacks.active or callbacks.keeps or metrics.by_episode
        )
        needs_episode = watched or self.policy_map.needs_episode
        self._tracker.by_columns = not needs_episode and all(
            group.strategy.by_columns for group in self._groups
        )

    def _close(self, env_steps: int) -> MultiAgentBatch:
        """Close every group's buffer and return the released batches."""
        self.env_steps += env_steps
        self.untrained = []
        batches: dict[str, SampleBatch] = {}
        excluded: list[SampleBatch] = []
        recorded: list[SampleBatch] = []
        for group in self._groups:
            closed = group.close()
            for reward in group.buffer.unclaimed_rewards:
                self.metrics.add_unclaimed(reward)
            recorded += closed.values()
            if self._callbacks.keeps:
                self.untrained += group.untrained
            excluded += [batch for _, batch in group.untrained]
            group.untrained = ()
            if self._whole is None:
                self._callbacks.count_excluded_late(group.buffer.excluded_late)
            batches.update(closed if self._whole is None else group.strategy.add_dist_inputs(closed))
        self._tracker.fragment_closed()
        if self._whole is not None:
            batches, env_steps = self._whole.release(batches, excluded)
        self.crashes.fragment_closed([*recorded, *excluded], self._tracker.running_ids)
        self._loop.fragment_closed()
        self.external_writer.fragment_closed()
        return MultiAgentBatch(self._numbered(batches), env_steps)

    def _numbered(self, batches: Mapping[str, SampleBatch]) -> dict[str, SampleBatch]:
        """Return released batches in the order of the policies, after adding them to the digest."""
        for batch in batches.values():
            self.digest.take(batch)
            chunks = len(batch.segments.lengths)
            batch.segments.unroll_id = np.arange(self._next_unroll_id, self._next_unroll_id + chunks)
            self._next_unroll_id += chunks
        return {policy: batches[policy] for policy in self.policy_map.specs if policy in batches}

    def finish(self, batch: MultiAgentBatch, hooks: Callable[[MultiAgentBatch], Any] = nullcontext) -> None:
        """Run the callbacks of a fragment, after values and advantages were added; `hooks` is entered around each."""
        self.untrained = []
        with hooks(batch):
            self._callbacks.fragment_closed(batch, self.policies)
        with hooks(batch):
            self._callbacks.fragment_sampled(batch)
        self._callbacks.warn()

    def change_policies(self, policy_map: PolicyMap, added: Sequence[PolicyGroup] = ()) -> None:
        """Use another policy map and `added` groups; running episodes keep their policies."""
        self._tracker.use_objects()
        self._groups.extend(added)
        self._tracker.index_policies()
        self._loop.groups_changed()
        self.policy_map = policy_map

    def retire(self, policy_id: str) -> None:
        """Free the id of a policy that is removed; agents of running episodes keep the policy."""
        for group in self._groups:
            if policy_id in group.policy_ids:
                group.retire(policy_id)
        if self._whole is not None:
            self._whole.drop(policy_id)

    def keep_episodes(self) -> None:
        """Keep the episodes of each fragment from now on, and add the columns `env_t` and `next_env_t` to batches.

        They are the env steps of the row's sub-environment at the observation and at the next one.
        """
        self._tracker.use_objects()
        self._callbacks.keep(self._tracker.running.values())
        self.external_writer.adds_env_t = True

    @property
    def steps_under_way(self) -> int:
        """Env steps of the unfinished fragment; another thread may ask, and gets a recent number."""
        start = self._fragment_start
        return 0 if start is None else max(0, int(self._loop.env_steps.sum() - start.sum()))

    @property
    def agent_steps(self) -> int:
        """Rows that have been answered."""
        return self._loop.agent_steps

    @agent_steps.setter
    def agent_steps(self, count: int) -> None:
        self._loop.agent_steps = count

    def expect(self, env_id: EnvId) -> Episode:
        """Return a client's episode, whose steps may come later; any thread may ask."""
        return self._tracker.expect(env_id)

    @property
    def running(self) -> Mapping[EnvId, Episode]:
        """The running episodes that are objects, by env id; others are `EpisodeArrays`."""
        return self._tracker.running

    @property
    def episodes(self) -> Mapping[int, Episode]:
        """The episodes of the last fragment by id, until `finish`; only with `keep_episodes`."""
        return self._callbacks.episodes

    @property
    def awaited(self) -> list[EnvId]:
        """The episodes whose ends are all that an idle fragment lacks."""
        return self._loop.awaited

    def env_index_of(self, slot: int) -> int:
        """Return the index of the sub-environment that has a slot."""
        return int(self._table.env_indices[slot])

    def held_rewards(self) -> float:
        """Return the rewards that wait for their row, or for that row's action."""
        in_env = sum(sum(by_agent.values()) for by_agent in self.base_env.held_rewards().values())
        in_buffers = sum(group.buffer.held_rewards() for group in self._groups)
        held_back = 0.0 if self._whole is None else self._whole.held_rewards
        return float(in_env + in_buffers + held_back)

    def state(self) -> SamplerState:
        """Return the state between two fragments.

        Raises:
            CallOrderError: A fragment is being sampled.
        """
        # The half-full fragment of an idle external environment is dropped, like its running episodes.
        if not self.idle and not all(group.buffer.closed for group in self._groups):
            raise CallOrderError(
                "save: a fragment is being sampled, expected a call between two fragments; call it after train() or "
                "sample(), or in on_train_result"
            )
        return self.state_midway()

    def state_midway(self) -> SamplerState:
        """Return the state also in the middle of a fragment."""
        counted = self.base_env.replayable
        steps = self._loop.env_steps if counted is None else counted.env_steps
        return SamplerState(
            self.env_steps, self.agent_steps, self._next_unroll_id, self.digest.state(), steps.tolist(),
            self._tracker.begun.tolist(), len(self._tracker.running_ids),
        )  # fmt: skip

    def resume(self, state: SamplerState) -> None:
        """Begin new episodes where another sampler's `state` left off; this one has not sampled."""
        env, steps = self.base_env, np.array(state.steps, np.int64)
        self.env_steps, self.agent_steps = state.env_steps, state.agent_steps
        self._next_unroll_id = state.pieces
        self.digest = Digest(*state.digest)
        if env.num_envs and env.num_envs != len(steps):
            # With another number of sub-environments, none may repeat the random draws of any old one.
            steps = np.full(env.num_envs, steps.max(initial=0))
        self._tracker.resume(np.array(state.begun, np.int64), len(steps))
        if env.counts_steps:
            env.start_from(steps)
            self._loop.env_steps = steps
