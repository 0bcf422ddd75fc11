"""Rollouts of workers: their fragments joined as if one process had sampled them.

Each worker has its share of the sub-environments, and the fragments are joined in that order, whichever worker was
first. `menv.algorithms.worker_group` requests fragments and replaces workers.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np

from menv.adapters.adapter import Adapter
from menv.adapters.validation import Declared, declared
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.policy_set import PolicySet
from menv.algorithms.rollout_worker import RolloutWorker, WorkerSlot
from menv.algorithms.rollouts import LocalRollouts, PolicyView, Rollouts, Tree
from menv.algorithms.torch_threads import set_torch_threads
from menv.algorithms.worker_group import FragmentQueue, PolicySync, WorkerGroup, locked
from menv.algorithms.worker_messages import (
    Fragment,
    WorkerCounters,
    check_input_settings,
    create_envs,
    split_state,
)
from menv.base_env import AgentId, Column
from menv.callbacks import DefaultCallbacks
from menv.errors import ConfigError, EnvFaultWarning
from menv.metrics import Metrics, Timers
from menv.multi_agent_env import MultiAgentEnv
from menv.policy_spec import PolicySpec
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.sampling.digest import Digest
from menv.sampling.policy_group import PolicyGroup
from menv.serving.interrupts import Interrupts
from menv.workers.convert import to_base_env
from menv.workers.engine import Engine, RemoteActor
from menv.workers.engines import make_engine
from menv.workers.pipe_channel import pack


class RemoteRollouts:
    """Workers that sample; see `Rollouts`.

    `staleness` holds, for each fragment since the last report, the updates between acting and learning of its rows.
    """

    idle = False

    def __init__(
        self,
        config: AlgorithmConfig,
        policy_view: PolicyView,
        seed: int,
        metrics: Metrics,
        engine: Engine,
        num_envs: int,
        early: Sequence[RemoteActor] = (),
        declared: Declared | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self._config = config
        self._policy_view = policy_view
        self._metrics = metrics
        self._engine = engine
        self._each = num_envs
        self._policy_sync = PolicySync(policy_view)
        self._workers = WorkerGroup(
            config,
            self._policy_sync,
            seed,
            metrics,
            engine,
            num_envs,
            early,
            declared=declared,
            leaves_out=True,
        )
        # Counters of the workers before a checkpoint.
        self._past_counters = WorkerCounters()
        self._unrolls = 0
        self._warned: set[str] = set()
        # Whether workers sample ahead and none of their fragments was consumed.
        self._begun = False
        # Whether a fragment of each has arrived and none was consumed.
        self._prepared = False
        self.uninterrupted = Interrupts(lambda: None)
        # Whether some workers lack a change of the policies.
        self._behind = False
        self.staleness: list[Column] = []
        self.timers = Timers()

    @property
    def env_steps(self) -> int:
        return self._total.env_steps

    @property
    def steps_under_way(self) -> int:
        return sum(queue.waiting_steps for queue in self._workers.queues)

    @property
    def agent_steps(self) -> int:
        return self._total.agent_steps

    @property
    def left_out(self) -> int:
        return self._total.left_out

    @property
    def digest(self) -> Digest:
        return self._total.digest

    @property
    def num_envs(self) -> int:
        return self._each * len(self._workers)

    @property
    def lost(self) -> int:
        """Number of workers lost so far."""
        return self._workers.lost

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the workers."""
        return self._workers.pids

    def recreated(self) -> list[int]:
        """Return the numbers, from 1, of the workers that were replaced since the last call."""
        numbers, self._workers.recreated = self._workers.recreated, []
        return numbers

    @property
    def _total(self) -> WorkerCounters:
        """Counters of all workers, lost ones included."""
        each = ((queue.past_counters, queue.counters) for queue in self._workers.queues)
        return WorkerCounters.sum((self._past_counters, *chain.from_iterable(each)))

    def begin(self) -> None:
        """Let workers sample ahead while this process prepares to learn."""
        if self._workers.ahead:
            self._begun = True
            for index in range(len(self._workers)):
                self._workers.ask(index, times=1 + self._workers.ahead)

    @locked
    def prepare(self) -> None:
        """Wait for every worker's fragment, and request fragments ahead of time."""
        self._follow_again()
        absent = self._workers.absent
        if self._prepared and all(queue or i in absent for i, queue in enumerate(self._workers.queues)):
            return
        update = self._policy_sync.next_update()
        self._workers.updated.clear()
        try:
            sent = None
            if not update.empty:
                sent = self._engine.put(update)
                self.discard_prefetched()
            self._begun = False
            self._workers.prepare(sent)
        finally:
            # Pickling failed, an interrupt came, or a fragment that was requested before is still due.
            if len(self._workers.updated | self._workers.absent) < len(self._workers):
                self._policy_sync.mark_unsent(update)
        self._prepared = True

    @locked
    def sample(self) -> MultiAgentBatch:
        """Return the fragments of all workers as one."""
        self.prepare()
        self._prepared = False
        return self._together(
            {index: queue.take() for index, queue in enumerate(self._workers.queues) if queue}
        )

    @locked
    def follow(self, added: Sequence[PolicyGroup] = ()) -> None:
        self._behind = True
        self.discard_prefetched()
        policies = self._engine.put(self._policy_sync.worker_policies())
        self._workers.sure_of_all(RolloutWorker.follow, policies)
        self._policy_sync.mark_sent()
        self._behind = False

    @locked
    def retire(self, policy_id: str) -> None:
        for group in self._policy_view.groups:
            if policy_id in group.policy_ids:
                group.retire(policy_id)
        self._behind = True
        self.discard_prefetched()
        for index, queue in enumerate(self._workers.queues):
            # Requested fragments still hold the removed policy.
            self._workers.fetch(index)
            queue.drop(policy_id)

    @locked
    def running_ids(self) -> set[int] | None:
        self._follow_again()
        self.discard_prefetched()
        found = self._workers.sure_of_all(RolloutWorker.running_ids)
        known = [ids for ids in found if ids is not None]
        return None if len(known) < len(found) else set().union(*known)

    @locked
    def break_off(self) -> None:
        self._workers.break_off()

    @locked
    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        self._follow_again()
        return list(chain.from_iterable(self._workers.sure_of_all(RolloutWorker.call_envs, method, args)))

    @locked
    def state(self) -> Tree:
        """Return the state of the episodes, without fragments that were sampled ahead."""
        self._follow_again()
        self.discard_prefetched()
        states = self._workers.sure_of_all(RolloutWorker.state)
        past_counters = WorkerCounters.sum(
            (self._past_counters, *(queue.before for queue in self._workers.queues))
        )
        absent = self._workers.absent
        replaced = [times for index, times in enumerate(self._workers.replaced) if index not in absent]
        return {
            "workers": states,
            "gone": past_counters.state(),
            "pieces": self._unrolls,
            "replaced": replaced,
        }

    @locked
    def check_restartable(self) -> None:
        self.discard_prefetched()
        for index in range(len(self._workers)):
            self._workers.sure(index, RolloutWorker.check_restartable)

    @locked
    def restart(self, seed: int) -> None:
        self.discard_prefetched()
        self._past_counters = WorkerCounters()
        self._workers.restart(seed)

    @locked
    def resume(self, tree: Mapping[str, Any]) -> int:
        tree = split_state(tree, len(self._workers), self._each)
        self._past_counters, self._unrolls = WorkerCounters.of(tree["gone"]), tree["pieces"]
        # States of another layout do not have it.
        self._workers.stand_in(tree.get("replaced", [0] * len(self._workers)))
        lost = 0
        self._workers.present()
        for index, state in enumerate(tree["workers"]):
            lost += int(self._workers.sure(index, RolloutWorker.resume, state) or 0)
            # A new queue: workers that were lost before this answer do not count.
            queue = self._workers.queues[index] = FragmentQueue()
            queue.counters = WorkerCounters.of(state)
            queue.running = queue.counters.running
            if index in self._workers.absent:
                lost += queue.running
                self._workers.begins_anew(index)
        return lost

    def stop(self) -> None:
        self._workers.stop()

    def discard_prefetched(self) -> None:
        """Re-create workers that have begun to sample with outdated policies."""
        if self._begun:
            self._begun = False
            self._workers.renew()

    def _follow_again(self) -> None:
        """Send the policies again if an interrupt has prevented it."""
        if self._behind:
            self.follow()

    def _together(self, fragments: Mapping[int, Fragment]) -> MultiAgentBatch:
        for index, fragment in fragments.items():
            self._metrics.absorb(fragment.metrics)
            self.timers.add(fragment.timers)
            self._policy_sync.merge_filters(fragment.filters)
            self._warn(fragment.warnings)
            for batch in fragment.batch.policy_batches.values():
                batch.segments.env_id = batch.segments.env_id + index * self._each
        batches = [fragment.batch for fragment in fragments.values()]
        found = MultiAgentBatch.concat_samples(batches) if len(batches) > 1 else _own(batches[0])
        order = [name for name in self._policy_view.policy_map.specs if name in found]
        for name in order:
            pieces = found[name].segments
            pieces.unroll_id = np.arange(self._unrolls, self._unrolls + len(pieces.lengths))
            self._unrolls += len(pieces.lengths)
        self._measure(found)
        together = MultiAgentBatch({name: found[name] for name in order}, found.env_steps())
        if self._config.overlap:
            # Workers left the values to these networks, which have learned since.
            before = perf_counter()
            self._policy_view.postprocessor.complete_deferred(together)
            self.timers.complete += perf_counter() - before
        return together

    def _measure(self, batch: MultiAgentBatch) -> None:
        if self._workers.ahead:
            # Empty where all rows sampled ahead are of a removed policy.
            for rows in batch.policy_batches.values():
                self.staleness.append(self._policy_sync.version - rows[SampleBatch.WEIGHTS_SEQ_NO])

    def _warn(self, lines: Sequence[str]) -> None:
        for line in lines:
            if line not in self._warned:
                self._warned.add(line)
                warnings.warn(line, EnvFaultWarning, stacklevel=2)


def _own(batch: MultiAgentBatch) -> MultiAgentBatch:
    columns = [column for rows in batch.policy_batches.values() for column in rows.stored().values()]
    return batch if all(column.flags.writeable for column in columns) else batch.copy()


class WorkerGroupFactory:
    """The workers of one algorithm, if it has any."""

    def __init__(self, config: AlgorithmConfig) -> None:
        """Start the processes of workers, which import while this process does."""
        self._config = config
        self._engine: Engine | None = None
        self._seats: list[RemoteActor] = []
        self._workers: RemoteRollouts | None = None
        self._declared: Declared = {}
        if config.num_workers and config.input is None:
            self._engine = make_engine(config.engine, patience=config.worker_start_timeout_s)
            self._seats = [
                self._engine.start(partial(WorkerSlot, RolloutWorker), label=f"worker {number}")
                for number in range(1, config.num_workers + 1)
            ]

    @property
    def pids(self) -> Sequence[int | None]:
        """Process ids of the workers; None for one that has not answered yet."""
        return [] if self._workers is None else self._workers.pids

    def make_envs(self) -> tuple[Any, Adapter]:
        """Create the environments of this process.

        With workers, it is one that only declares spaces, and none at all if the config has these.
        """
        config = self._config
        if config.input is not None:
            check_input_settings(config)
        if not config.num_workers:
            return create_envs(config)
        agents = _agents_of(config)
        if agents is not None:
            stub = MultiAgentEnv()
            stub.possible_agents = agents
            given = {name: getattr(config, name) for name in ("observation_space", "action_space")}
            self._declared = {name: space for name, space in given.items() if isinstance(space, gym.Space)}
            return stub, to_base_env(stub)
        near = replace(config, num_envs_per_worker=1, remote_worker_envs=False, remote_env_batch_wait_ms=0)
        first, base_env = create_envs(near)
        if base_env.external:
            base_env.stop()
            raise ConfigError(
                f"num_workers: {config.num_workers} with a {type(first).__name__}, which is external, expected 0; "
                "leave num_workers out"
            )
        self._declared = declared(first)
        return first, base_env

    def rollouts(
        self,
        base_env: Adapter,
        policy_set: PolicySet,
        callbacks: DefaultCallbacks,
        seed: int,
        metrics: Metrics,
    ) -> Rollouts:
        """Return the source of fragments, once the backends have been checked."""
        config = self._config
        if not (config.num_workers and config.overlap):
            self._prepare_torch(policy_set)
        if not config.num_workers:
            return LocalRollouts(config, base_env, policy_set, callbacks, seed, metrics)
        workers = self._workers = self._new_workers(base_env, policy_set, seed, metrics)
        if config.overlap:
            # Importing torch takes a second, in which workers sample ahead.
            workers.begin()
            if self._prepare_torch(policy_set):
                workers.discard_prefetched()
        return workers

    def check_travels(self, mapping_fn: Any, to_train: Any) -> None:
        """Refuse functions that cannot be pickled for workers, before anything has changed."""
        if self._config.num_workers:
            pack({"policy_mapping_fn": mapping_fn, "policies_to_train": to_train}, "multiagent")

    def replaced(self) -> list[int]:
        """Return the numbers, from 1, of the workers that were replaced since the last call."""
        if self._workers is None:
            return []
        return self._workers.recreated()

    def report(self) -> dict[str, Any]:
        """Return the entries of a result about workers."""
        if self._workers is None:
            return {}
        told: dict[str, Any] = {"num_worker_restarts": self._workers.lost}
        if self._config.overlap:
            ages = np.concatenate([*self._workers.staleness, np.zeros(0, np.int64)])
            self._workers.staleness.clear()
            told["staleness"] = {
                "mean": float(ages.mean()) if len(ages) else None,
                "max": int(ages.max()) if len(ages) else None,
            }
        return told

    def _prepare_torch(self, policy_set: PolicySet) -> bool:
        """Import torch and check the backends; return whether one was replaced."""
        set_torch_threads(self._config.torch_threads)
        return policy_set.check_backends()

    def _new_workers(
        self, base_env: Adapter, policy_set: PolicySet, seed: int, metrics: Metrics
    ) -> RemoteRollouts:
        assert self._engine is not None
        # A BaseEnv or a vectorised environment brings as many as it has.
        own = 0 if base_env.replayable is not None else base_env.num_envs
        return RemoteRollouts(
            self._config, policy_set, seed, metrics, self._engine,
            own or self._config.num_envs_per_worker, self._seats, self._declared,
        )  # fmt: skip


def _agents_of(config: AlgorithmConfig) -> list[AgentId] | None:
    """Return the agents that the config names if it has all spaces, None if an environment must declare them."""
    multi, spaces = config.multiagent, (config.observation_space, config.action_space)
    if getattr(config, "critic_obs", None) is not None or any(
        isinstance(space, gym.spaces.Dict) for space in spaces
    ):
        # A joint observation needs every agent, and a Dict space may be that of one agent or of several.
        return None
    by_agent = [space for space in spaces if isinstance(space, Mapping)]
    if None not in spaces:
        agents = [set(one) for one in by_agent]
        return list(by_agent[0]) if by_agent and agents[0] == agents[-1] else None if by_agent else []
    named = multi.policies if isinstance(multi.policies, Mapping) else {}
    specs = [PolicySpec.of(policy_id, spec) for policy_id, spec in named.items()]
    whole = [spec.observation_space is not None and spec.action_space is not None for spec in specs]
    own_critic = any("critic_obs" in (spec.config or {}) for spec in specs)
    by_name = any(isinstance(spec.observation_space, gym.spaces.Dict) for spec in specs)
    return [] if whole and all(whole) and not own_critic and not by_name else None
