"""Rollouts of workers: requests for fragments, and the fragments joined as if one process had sampled them.

Each worker has its share of the sub-environments, and the fragments are joined in that order, whichever worker was
first. `menv.algorithms.rollouts.worker_group` replaces lost workers.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from time import perf_counter
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np

from menv.adapters.adapter import Adapter
from menv.adapters.validation import Declared, declared
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts.environments import check_input_settings, create_envs
from menv.algorithms.rollouts.local_rollouts import LocalRollouts, Rollouts
from menv.algorithms.rollouts.rollout_worker import RolloutWorker, import_runtime
from menv.algorithms.rollouts.worker_group import WorkerGroup
from menv.algorithms.rollouts.worker_messages import (
    Fragment,
    PolicyView,
    WorkerCounters,
    joined_state,
    split_state,
)
from menv.algorithms.training.policy_set import PolicySet
from menv.algorithms.training.torch_threads import set_torch_threads
from menv.base_env import AgentId, Column
from menv.callbacks import DefaultCallbacks
from menv.errors import ConfigError
from menv.interrupts import Interrupts
from menv.metrics import Metrics, Timers
from menv.multi_agent_env import MultiAgentEnv
from menv.policy_spec import PolicySpec
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.sampler import SamplerState
from menv.workers.convert import to_base_env
from menv.workers.engine import Engine, RemoteActor, T, Ts
from menv.workers.engines import make_engine
from menv.workers.messages import pack

F = TypeVar("F", bound=Callable[..., Any])


def locked(method: F) -> F:
    """Hold `self.lock` during a method: concurrent requests would receive each other's answers."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **given: Any) -> Any:
        with self.lock:
            return method(self, *args, **given)

    return call  # type: ignore[return-value]


class RemoteRollouts:
    """Workers that sample; see `LocalRollouts`.

    With `overlap`, fragments are requested before the current one is learned from. `staleness` holds, for each fragment
    since the last report, the updates between acting and learning of its rows. `workers` are the workers themselves.
    """

    idle = False
    sampler = None

    def __init__(
        self, config: AlgorithmConfig, policy_view: PolicyView, metrics: Metrics, workers: WorkerGroup
    ) -> None:
        self.lock = threading.RLock()
        self._config, self._policy_view, self._metrics, self.workers = config, policy_view, metrics, workers
        # Fragments of each worker that nothing has consumed yet; its worker may be lost by now.
        self._queues = [deque[Fragment]() for _ in range(config.num_workers)]
        # What was raised instead of a fragment, by worker.
        self._errors: dict[int, Exception] = {}
        self._ahead = config.max_staleness if config.overlap else 0
        # Sums of the consumed fragments, and of the run before a checkpoint.
        self.counters = WorkerCounters()
        self._unrolls = 0
        # Whether a fragment of each has arrived and none was consumed.
        self._prepared = False
        self.uninterrupted = Interrupts(lambda: None)
        # Whether some workers lack a change of the policies.
        self._behind = False
        self.staleness: list[Column] = []
        self.timers = Timers()

    @property
    def steps_under_way(self) -> int:
        # Any thread may ask.
        return sum(fragment.batch.env_steps() for queue in self._queues for fragment in list(queue))

    @property
    def num_envs(self) -> int:
        return self.workers.each * len(self.workers)

    @locked
    def prepare(self) -> None:
        """Wait for every worker's fragment, and request fragments ahead of time."""
        self._follow_again()
        absent = self.workers.absent
        if self._prepared and all(queue or i in absent for i, queue in enumerate(self._queues)):
            return
        present = self.workers.present()
        with self.workers.update() as update:
            if update is not None:
                for index in present:
                    self.workers.ask(index, RolloutWorker.take, update)
        for index in present:
            if (error := self._errors.pop(index, None)) is not None:
                raise error
            if not self._queues[index]:
                self._ask(index, 1)
        # No fragment is consumed before all have arrived: if a worker raises, the others' wait for the next call.
        for index in present:
            while not self._queues[index] and index not in absent:
                self._ask(index, 1)
                self._receive(index)
        for index in set(present) - absent:
            # Ahead of time: with the weights of now, which the learner will have left behind by then. One of the
            # fragments that wait is about to be returned.
            self._ask(index, 1 + self._ahead - len(self._queues[index]))
        self._prepared = True

    def _ask(self, index: int, due: int) -> None:
        """Let so many fragments of a worker be under way."""
        number = self.workers.policy_sync.version if self._ahead else None
        while self.workers.due(index, RolloutWorker.fragment) < due:
            self.workers.ask(index, RolloutWorker.fragment, number, self._config.explore)

    def _receive(self, index: int) -> None:
        """Wait for the next answer of a worker."""
        answer = self.workers.answer(index)
        if isinstance(answer, Fragment):
            self.workers.states[index] = answer.state
            self._queues[index].append(answer)

    def _receive_all(self, index: int) -> None:
        """Wait for the fragments of a worker that are under way."""
        while self.workers.pending(index):
            try:
                self._receive(index)
            except Exception as error:
                # Raised with the next fragment.
                self._errors[index] = error

    def _call_all(self, method: Callable[[RolloutWorker, *Ts], T], *args: *Ts) -> list[T]:
        """Call a method of each present worker, one after the other."""
        found: dict[int, Any] = {}
        for index in self.workers.present():
            self._receive_all(index)
            found[index] = self.workers.call(index, method, *args)
        return [value for index, value in found.items() if index not in self.workers.absent]

    @locked
    def sample(self) -> MultiAgentBatch:
        self.prepare()
        self._prepared = False
        return self._together({index: queue.popleft() for index, queue in enumerate(self._queues) if queue})

    @locked
    def follow(self, added: Sequence[PolicyGroup] = ()) -> None:
        self._behind = True
        self._call_all(RolloutWorker.switch, self.workers.policies())
        self.workers.policy_sync.mark_sent()
        self._behind = False

    @locked
    def retire(self, policy_id: str) -> None:
        for group in self._policy_view.groups:
            if policy_id in group.policy_ids:
                group.retire(policy_id)
        self._behind = True
        for index, queue in enumerate(self._queues):
            # Requested fragments still hold the removed policy.
            self._receive_all(index)
            # A new policy may get its id.
            for place, fragment in enumerate(queue):
                fragment.batch.policy_batches.pop(policy_id, None)
                filters = {name: seen for name, seen in fragment.filters.items() if name != policy_id}
                queue[place] = fragment._replace(filters=filters)

    @locked
    def running_ids(self) -> set[int] | None:
        self._follow_again()
        found = self._call_all(RolloutWorker.running_ids)
        known = [ids for ids in found if ids is not None]
        return None if len(known) < len(found) else set().union(*known)

    @locked
    def seats_playing(self) -> set[str]:
        return set().union(*self._call_all(RolloutWorker.seats_playing))

    @locked
    def break_off(self) -> None:
        samples = [bool(self.workers.due(i, RolloutWorker.fragment)) for i in range(len(self.workers))]
        for index in self.workers.kill_busy():
            self._metrics.episodes_not_resumed += samples[index] * self.workers.running(index)

    @locked
    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        self._follow_again()
        return list(chain.from_iterable(self._call_all(RolloutWorker.call_envs, method, args)))

    @locked
    def state(self) -> SamplerState:
        """Return the state of the episodes; it counts fragments that were sampled ahead, and does not hold them."""
        total = WorkerCounters()
        for counters in (self.counters, *(one.counters for queue in self._queues for one in queue)):
            total.add(counters)
        states = [state for state in self.workers.states if state is not None]
        return joined_state(states, total, self._unrolls)

    def check_restartable(self) -> None:
        """Do nothing: workers create their environments again."""

    @locked
    def restart(self, seed: int) -> None:
        self._begin_again(SamplerState(), [None] * len(self.workers), seed)

    @locked
    def resume(self, state: SamplerState) -> None:
        self._begin_again(state, split_state(state, len(self.workers), self.workers.each), self.workers.seed)

    def _begin_again(self, state: SamplerState, shares: Sequence[SamplerState | None], seed: int) -> None:
        self.counters, self._unrolls, self._prepared = WorkerCounters.of(state), state.pieces, False
        self._queues, self._errors = [deque() for _ in self._queues], {}
        self.workers.start_from(seed, shares)

    @property
    def pids(self) -> list[int | None]:
        return self.workers.pids

    def report(self) -> dict[str, Any]:
        told: dict[str, Any] = {"num_worker_restarts": self.workers.lost}
        if self._config.overlap:
            ages = np.concatenate([*self.staleness, np.zeros(0, np.int64)])
            self.staleness.clear()
            told["staleness"] = {
                "mean": float(ages.mean()) if len(ages) else None,
                "max": int(ages.max()) if len(ages) else None,
            }
        return told

    def stop(self) -> None:
        self.workers.stop()

    def _follow_again(self) -> None:
        """Send the policies again if an interrupt has prevented it."""
        if self._behind:
            self.follow()

    def _together(self, fragments: Mapping[int, Fragment]) -> MultiAgentBatch:
        for index, fragment in fragments.items():
            self.counters.add(fragment.counters)
            self._metrics.absorb(fragment.metrics)
            self.timers.add(fragment.timers)
            self.workers.policy_sync.merge_filters(fragment.filters)
            self.workers.warn(fragment.warnings)
            for batch in fragment.batch.policy_batches.values():
                batch.segments.env_id = batch.segments.env_id + index * self.workers.each
        batches = [fragment.batch for fragment in fragments.values()]
        found = MultiAgentBatch.concat_samples(batches) if len(batches) > 1 else _own(batches[0])
        order = [name for name in self._policy_view.policy_map.specs if name in found]
        for name in order:
            pieces = found[name].segments
            pieces.unroll_id = np.arange(self._unrolls, self._unrolls + len(pieces.lengths))
            self._unrolls += len(pieces.lengths)
        if self._ahead:
            # Empty where all rows sampled ahead are of a removed policy.
            acted = [rows[SampleBatch.WEIGHTS_SEQ_NO] for rows in found.policy_batches.values()]
            self.staleness += [self.workers.policy_sync.version - numbers for numbers in acted]
        together = MultiAgentBatch({name: found[name] for name in order}, found.env_steps())
        if self._config.overlap:
            # Workers left the values to these networks, which have learned since.
            before = perf_counter()
            self._policy_view.postprocessor.complete_deferred(together)
            self.timers.complete += perf_counter() - before
        return together


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
        self._declared: Declared = {}
        if config.num_workers and config.input is None:
            self._engine = make_engine(config.engine, patience=config.worker_start_timeout_s)
            self._seats = [
                self._engine.start(import_runtime, label=f"worker {number}")
                for number in range(1, config.num_workers + 1)
            ]

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
                "leave num_workers out, and overlap, because it plays on while this process learns"
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
        if not policy_set.policy_map.all_frozen:
            # Both import torch, for learning.
            set_torch_threads(config.torch_threads)
            policy_set.check_backends()
        if not config.num_workers:
            return LocalRollouts(config, base_env, policy_set, callbacks, seed, metrics)
        assert self._engine is not None
        # A BaseEnv or a vectorised environment brings as many as it has.
        own = 0 if base_env.replayable is not None else base_env.num_envs
        workers = WorkerGroup(
            config, policy_set, seed, self._engine, own or config.num_envs_per_worker, metrics, self._seats,
            declared=self._declared,
        )  # fmt: skip
        return RemoteRollouts(config, policy_set, metrics, workers)

    def check_travels(self, mapping_fn: Any, to_train: Any) -> None:
        """Refuse functions that cannot be pickled for workers, before anything has changed."""
        if self._config.num_workers:
            pack({"policy_mapping_fn": mapping_fn, "policies_to_train": to_train}, "multiagent")


def _agents_of(config: AlgorithmConfig) -> list[AgentId] | None:
    """Return the agents that the config names if it has all spaces, None if an environment must declare them."""
    multi, spaces = config.multiagent, (config.observation_space, config.action_space)
    if (
        config.groups_agents
        or getattr(config, "critic_obs", None) is not None
        or any(isinstance(space, gym.spaces.Dict) for space in spaces)
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
