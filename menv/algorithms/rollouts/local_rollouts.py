"""Rollouts: the source of an algorithm's fragments.

`LocalRollouts` samples in this process, for algorithms without workers and inside each worker;
`menv.algorithms.rollouts.remote_rollouts` collects the fragments of workers. Nothing here learns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from menv import rng
from menv.adapters.adapter import Adapter
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts.centralized_critic import JointHistory
from menv.algorithms.rollouts.environments import (
    WorkerPlacement,
    env_context,
    input_context,
    make_fragment_limit,
)
from menv.algorithms.rollouts.worker_messages import PolicyView, WorkerCounters, network_policies
from menv.algorithms.training.matches import seats_in
from menv.callbacks import DefaultCallbacks, overrides
from menv.errors import ConfigError, MenvError
from menv.metrics import Metrics, Timers
from menv.offline.recorded_envs import RecordedEnvs
from menv.policy_map import PolicyMap
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.sampling.fragment_limit import FragmentLimit
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.sampler import Sampler, SamplerState

if TYPE_CHECKING:
    from menv.algorithms.rollouts.remote_rollouts import RemoteRollouts


def freeze(policy_view: PolicyView) -> None:
    """Let connectors of trained policies learn from what they see, and no others."""
    for name, policy in network_policies(policy_view.policies).items():
        pipeline = policy.agent_connectors
        (pipeline.in_eval if policy_view.policy_map.is_frozen(name) else pipeline.in_training)()


class LocalRollouts:
    """A sampler in this process; `RemoteRollouts` has the same methods.

    `guard` is entered while environments are stepped. `later`
    leaves the values of networks to be added by the learning process. `lock` is held while sampling, learning or
    changing policies. `uninterrupted` is entered around `sample` and the storing of its fragment.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        base_env: Adapter,
        policy_view: PolicyView,
        callbacks: DefaultCallbacks,
        seed: int,
        metrics: Metrics,
        placement: WorkerPlacement | None = None,
    ) -> None:
        self._config = config
        self._policy_view = policy_view
        self._callbacks = callbacks
        self._seed = seed
        self._metrics = metrics
        self._placement = placement or WorkerPlacement()
        self.base_env = base_env
        self.guard: AbstractContextManager[Any] = nullcontext()
        self.lock = threading.RLock()
        self.uninterrupted: AbstractContextManager[Any] = nullcontext()
        self.later = False
        # Whether callbacks see batches, which must be complete for them.
        self.hooked = any(
            overrides(callbacks, hook) for hook in ("on_postprocess_trajectory", "on_sample_end")
        )
        # Whether an exception has left the sampler in the midst of a fragment.
        self._interrupted = False
        self.sampler = self._new_sampler()
        tell_envs_created(lambda: self.sampler, config, base_env, callbacks, self._placement)

    @property
    def counters(self) -> WorkerCounters:
        """What was sampled so far."""
        sampler, left_out = self.sampler, self._policy_view.postprocessor.left_out
        return WorkerCounters(sampler.env_steps, sampler.agent_steps, left_out, sampler.digest)

    @property
    def steps_under_way(self) -> int:
        """Env steps that `counters` lack, as far as they are known; any thread may ask."""
        return self.sampler.steps_under_way

    @property
    def idle(self) -> bool:
        return self.sampler.idle

    @property
    def num_envs(self) -> int:
        return self.base_env.num_envs or self._config.num_envs_per_worker

    @property
    def timers(self) -> Timers:
        return self.sampler.timers

    def prepare(self) -> None:
        """Do nothing: this process samples when it is asked."""

    def sample(self) -> MultiAgentBatch:
        """Return a fragment of every sub-environment.

        After an exception, such as Ctrl-C, the next call begins new episodes; the interrupted fragment is dropped.
        """
        # The client of an external environment may be the thread that changes policies: locking would deadlock.
        with nullcontext() if self.base_env.external else self.lock:
            self._recover()
            batch, sampler, before = self._fragment(), self.sampler, perf_counter()
            self._policy_view.postprocessor.complete(
                batch, sampler.episodes, sampler.untrained, self._history, later=self.later
            )
            sampler.timers.complete += perf_counter() - before
            sampler.finish(batch, self._policy_view.postprocessor.hooks if self.hooked else nullcontext)
        return batch

    def _fragment(self) -> MultiAgentBatch:
        agent_steps = self.sampler.agent_steps
        with self.guard, self.base_env.unbroken():
            try:
                return self.sampler.sample()
            except BaseException as error:
                if isinstance(error, MenvError):
                    self.sampler.crashes.attach(error)
                # A custom BaseEnv stays where it is.
                if self.base_env.can_restart:
                    self._interrupted, self.sampler.agent_steps = True, agent_steps
                # Saving drops the half-full fragment, as that of clients that do not call.
                self.sampler.idle |= self.base_env.external
                raise

    def follow(self, added: Sequence[PolicyGroup] = ()) -> None:
        """Apply changes of the policies; running episodes keep theirs. `added` are new groups."""
        self.sampler.change_policies(self._policy_view.policy_map, added)
        if self._policy_view.postprocessor.wanted:
            self.sampler.keep_episodes()

    def retire(self, policy_id: str) -> None:
        self.sampler.retire(policy_id)

    def running_ids(self) -> set[int] | None:
        """Return the ids of running episodes; None where other episodes may hold rows or arrive later."""
        # Clients may name policies that were removed.
        if self.base_env.external or not all(group.buffer.closed for group in self._policy_view.groups):
            return None
        return {episode.episode_id for episode in self.sampler.running.values()}

    def seats_playing(self) -> set[str]:
        """Return the seats of self-play in running episodes; see `menv.algorithms.training.matches`."""
        return seats_in(self.sampler.running.values())

    def break_off(self) -> None:
        """Do nothing: the exception has ended the fragment."""

    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        with self.guard:
            return call_each(self.base_env, method, args)

    def state(self) -> SamplerState:
        self._recover()
        return self.sampler.state()

    def check_restartable(self) -> None:
        """Refuse environments that cannot restart."""
        if self.sampler.polled and not self.base_env.can_restart:
            raise ConfigError(
                f"restore: {type(self.base_env).__name__} cannot begin again, expected environments that menv made; "
                "load the checkpoint with from_checkpoint"
            )

    def restart(self, seed: int) -> None:
        """Discard everything that was sampled."""
        self.check_restartable()
        self._seed = seed
        self._interrupted = False
        for group in self._policy_view.groups:
            group.reset_buffer()
        self.sampler = self._new_sampler()

    def resume(self, state: SamplerState) -> None:
        """Begin new episodes where `state` left off."""
        if self._config.seed is not None:
            # Environments must not repeat random numbers.
            rng.seed_process(self._seed, self._placement.worker_index, sum(state.steps))
        with self.guard:
            self.sampler.resume(state)

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the workers; None for one that has not answered yet."""
        return []

    def report(self) -> dict[str, Any]:
        """Return the entries of a result about workers."""
        return {}

    def stop(self) -> None:
        self.base_env.stop()

    def _recover(self) -> None:
        if not self._interrupted:
            return
        before = self.sampler
        left = before.state_midway()
        try:
            self.restart(self._seed)
            self.sampler.explore = before.explore
            self.resume(left)
        except BaseException:
            # Only the previous sampler has the counters.
            self.sampler, self._interrupted = before, True
            raise
        self._metrics.episodes_not_resumed += left.running

    def _new_sampler(self) -> Sampler:
        config, policy_view = self._config, self._policy_view
        self._history = JointHistory(lambda: policy_view.groups)
        sampler = new_sampler(
            config, self.base_env, policy_view, policy_view.groups, make_fragment_limit(config, self.base_env),
            self._metrics, self._seed, self._callbacks, self._placement,
        )  # fmt: skip
        if policy_view.postprocessor.wanted:
            sampler.keep_episodes()
        return sampler


def call_each(base_env: Adapter, method: str, args: tuple[Any, ...]) -> list[Any]:
    """Call a method of every sub-environment; return the values in their order."""
    env_ids = base_env.get_sub_environments(as_dict=True) or [0]
    return [base_env.call(env_id, method, *args) for env_id in env_ids]


def new_sampler(
    config: AlgorithmConfig,
    base_env: Adapter,
    policy_view: PolicyView,
    groups: Sequence[PolicyGroup],
    limit: FragmentLimit,
    metrics: Metrics,
    seed: int,
    callbacks: DefaultCallbacks,
    placement: WorkerPlacement,
) -> Sampler:
    """Return a sampler of the environments in the process of `placement`; `groups` are the groups of policies."""
    sampler = Sampler(
        base_env, policy_view.policy_map, groups, limit, metrics=metrics, seed=seed,
        worker_index=placement.worker_index, num_workers=config.num_workers if placement.worker_index else 0,
        first_index=placement.first_index(base_env.num_envs), observation_fn=config.multiagent.observation_fn,
        callbacks=callbacks,
    )  # fmt: skip
    sampler.explore = config.explore
    sampler.policies = policy_view.policies
    return sampler


def tell_envs_created(
    sampler: Callable[[], Sampler],
    config: AlgorithmConfig,
    base_env: Adapter,
    callbacks: DefaultCallbacks,
    placement: WorkerPlacement,
) -> None:
    """Call `on_sub_environment_created` for all sub-environments, now and when one is created again."""

    def tell(index: int, env: Any) -> None:
        callbacks.on_sub_environment_created(
            worker=sampler(),
            sub_environment=env,
            env_context=env_context(config, index, placement),
            env_index=index,
        )

    for index, env in enumerate(base_env.get_sub_environments()):
        tell(index, env)
    if base_env.replayable is not None:
        base_env.replayable.on_created = tell


Rollouts: TypeAlias = "LocalRollouts | RemoteRollouts"
"""A source of fragments that are ready to be learned from."""


class RecordedRows:
    """Recorded episodes that are learned from in addition to sampled ones, as the shares in `config.input` say.

    Their policies are the policies of the run. Their rows are in no count and no mean; filters do not learn from them.
    """

    def __init__(self, config: AlgorithmConfig, policy_set: PolicyView, env: Any, seed: int) -> None:
        shares = dict(config.input)
        sampled = shares.pop("sampler")
        ((pattern, share),) = shares.items()
        self._ratio, self._due = share / sampled, 0.0
        self._config, self._policy_set, self._seed = config, policy_set, seed ^ 1
        self._envs = RecordedEnvs(pattern, input_context(config, env), config.seed)
        self._playing: PolicyMap | None = None

    def added_to(self, batch: MultiAgentBatch) -> MultiAgentBatch:
        """Return a fragment and its share of recorded rows."""
        self._due += batch.env_steps() * self._ratio
        parts = [batch]
        while self._due > 0:
            parts.append(self._sample())
            self._due -= parts[-1].env_steps()
        for rows in batch.policy_batches.values():
            if SampleBatch.OFF_POLICY not in rows.stored():
                rows[SampleBatch.OFF_POLICY] = np.zeros(rows.count, np.bool_)
        whole = MultiAgentBatch.concat_samples(parts)
        return MultiAgentBatch(whole.policy_batches, batch.env_steps())

    def _sample(self) -> MultiAgentBatch:
        run = self._policy_set
        if self._playing is not run.policy_map:
            self._playing = run.policy_map
            # The buffers of the run hold other rows.
            groups = [group.clone() for group in run.groups]
            policies = PolicyView(self._playing, run.policies, groups, run.postprocessor)
            length = max(1, round(self._due))
            config = replace(self._config, rollout_fragment_length=length, input=None)
            self._rollouts = LocalRollouts(
                config, self._envs, policies, DefaultCallbacks(), self._seed, Metrics()
            )
        return self._rollouts.sample()


class BatchAccumulator:
    """Joins fragments into train batches; checkpoints do not hold an incomplete batch.

    `by_rows` counts agent steps instead of env steps.
    """

    def __init__(self, rollouts: Rollouts, *, by_rows: bool) -> None:
        self._rollouts = rollouts
        self.by_rows = by_rows
        # Each with the steps that it counts.
        self._fragments: list[tuple[MultiAgentBatch, int]] = []

    def batch(self, size: int, sample: Callable[[], MultiAgentBatch]) -> tuple[MultiAgentBatch | None, int]:
        """Sample until a batch has `size` steps; return it and its steps.

        Return None where external clients timed out; the incomplete batch is kept for the next call.
        """
        fragments, rollouts = self._fragments, self._rollouts
        taken = sum(steps for _, steps in fragments)
        while not fragments or taken < size:
            rollouts.prepare()
            with rollouts.uninterrupted:
                before = rollouts.counters.agent_steps
                batch = sample()
                if rollouts.idle:
                    return None, 0
                # Agent steps count, although a few rows are held back until their reward is complete.
                steps = rollouts.counters.agent_steps - before if self.by_rows else batch.env_steps()
                fragments.append((batch, steps))
            taken += fragments[-1][1]
        batches, self._fragments = [batch for batch, _ in fragments], []
        return (batches[0] if len(batches) == 1 else MultiAgentBatch.concat_samples(batches)), taken

    def drop(self, policy_id: str) -> None:
        """Drop the rows of a removed policy; a new policy may get its id."""
        for batch, _ in self._fragments:
            batch.policy_batches.pop(policy_id, None)

    def clear(self) -> None:
        """Drop an incomplete batch."""
        self._fragments = []
