"""Rollouts of workers: their fragments put together as if one process had sampled them.

`menv.algorithms.algorithm` has one where `num_workers` is not 0. Each worker has its share of the sub-environments;
what comes out is in the order of these, whoever was ready first. How workers are asked, and replaced, is in `workers`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np

from menv.adapters.local_envs import CreatedEnvs
from menv.adapters.validation import Declared, declared
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.fragments import Fragment, WorkerCounters, check_with_input, make_experience, spread
from menv.algorithms.policy_set import PolicySet
from menv.algorithms.rollouts import LocalRollouts, PolicyView, Rollouts, Tree
from menv.algorithms.torch_runtime import set_torch_threads
from menv.algorithms.worker_group import FragmentQueue, PolicySync, WorkerGroup, one_at_a_time
from menv.base_env import AgentId, BaseEnv
from menv.callbacks import DefaultCallbacks
from menv.errors import ConfigError, EnvFaultWarning
from menv.metrics import Metrics, Timers
from menv.multi_agent_env import MultiAgentEnv
from menv.policy_spec import PolicySpec
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.sampling.digest import Digest
from menv.sampling.policy_group import PolicyGroup
from menv.serving.served_envs import Interrupts
from menv.trajectory_slices import Column
from menv.workers.convert import to_base_env
from menv.workers.engine import Engine, RemoteActor


class RemoteRollouts:
    """Workers that sample.

    Args:
        config: The settings.
        crew: The policies.
        seed: Key of every random draw.
        metrics: Where episodes are recorded.
        engine: Starts the workers.
        num_envs: Sub-environments of each.
        early: Seats that the engine has started already.
        declared: The spaces of the driver's environment.

    Attributes:
        staleness: Updates between acting and learning, of the rows of the fragments since the last look.
        timers: See `Rollouts`.
    """

    idle = False

    def __init__(
        self,
        config: AlgorithmConfig,
        crew: PolicyView,
        seed: int,
        metrics: Metrics,
        engine: Engine,
        num_envs: int,
        early: Sequence[RemoteActor] = (),
        declared: Declared | None = None,
    ) -> None:
        self.alone = threading.RLock()
        self._config = config
        self._crew = crew
        self._metrics = metrics
        self._engine = engine
        self._each = num_envs
        self._headlines = PolicySync(crew)
        self._workers = WorkerGroup(
            config,
            self._headlines,
            seed,
            metrics,
            engine,
            num_envs,
            early,
            declared=declared,
            leaves_out=True,
        )
        # What workers have done that were there before a checkpoint.
        self._gone = WorkerCounters()
        self._unrolls = 0
        self._warned: set[str] = set()
        # Whether workers were told to begin and nobody has taken what they sample.
        self._begun = False
        # Whether a fragment of each has come and none has been taken.
        self._prepared = False
        self.taking = Interrupts(lambda: None)
        # Whether some workers do not know yet which policies there are.
        self._behind = False
        self.staleness: list[Column] = []
        self.timers = Timers()

    @property
    def env_steps(self) -> int:
        return self._total.env_steps

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
        """Workers that have been lost so far."""
        return self._workers.lost

    @property
    def pids(self) -> list[int | None]:
        """Of the workers' processes."""
        return self._workers.pids

    def recreated(self) -> list[int]:
        """Return the numbers, from 1, of the workers that were replaced since the last look."""
        numbers, self._workers.recreated = self._workers.recreated, []
        return numbers

    @property
    def _total(self) -> WorkerCounters:
        """What all workers have done, those that are gone too."""
        each = ((inbox.gone, inbox.stand) for inbox in self._workers.inboxes)
        return WorkerCounters.sum((self._gone, *chain.from_iterable(each)))

    def begin(self) -> None:
        """Let workers that may run ahead sample what comes first, while this process gets ready to learn."""
        if self._workers.ahead:
            self._begun = True
            for index in range(len(self._workers)):
                self._workers.ask(index, times=1 + self._workers.ahead)

    @one_at_a_time
    def prepare(self) -> None:
        """Wait until every worker's fragment has come, and ask for those that may be sampled ahead of time.

        Raises:
            WorkerLostError: Workers are lost again and again.
        """
        self._catch_up()
        absent = self._workers.absent
        if self._prepared and all(inbox or i in absent for i, inbox in enumerate(self._workers.inboxes)):
            return
        news = self._headlines.news()
        self._workers.told.clear()
        try:
            parcel = None
            if not news.empty:
                parcel = self._engine.put(news)
                self.take_back()
            self._begun = False
            self._workers.prepare(parcel)
        finally:
            # It could not be sent, somebody was interrupted, or a fragment is still due that was asked for before.
            if len(self._workers.told | self._workers.absent) < len(self._workers):
                self._headlines.untold(news)
        self._prepared = True

    @one_at_a_time
    def sample(self) -> MultiAgentBatch:
        """Return the fragments of all workers as one; see `Rollouts.sample`.

        Raises:
            WorkerLostError: Workers are lost again and again.
        """
        self.prepare()
        self._prepared = False
        return self._together(
            {index: inbox.take() for index, inbox in enumerate(self._workers.inboxes) if inbox}
        )

    @one_at_a_time
    def follow(self, added: Sequence[PolicyGroup] = ()) -> None:
        self._behind = True
        self.take_back()
        parcel = self._engine.put(self._headlines.company())
        self._workers.sure_of_all("follow", parcel=parcel)
        self._headlines.told()
        self._behind = False

    @one_at_a_time
    def retire(self, policy_id: str) -> None:
        for group in self._crew.groups:
            if policy_id in group.policy_ids:
                group.retire(policy_id)
        self._behind = True
        self.take_back()
        for index, inbox in enumerate(self._workers.inboxes):
            # What they were asked for before is of the policy that goes.
            self._workers.fetch(index)
            inbox.drop(policy_id)

    @one_at_a_time
    def running_ids(self) -> set[int] | None:
        self._catch_up()
        self.take_back()
        found = self._workers.sure_of_all("running_ids")
        return None if None in found else set().union(*found)

    @one_at_a_time
    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        self._catch_up()
        return list(chain.from_iterable(self._workers.sure_of_all("call_envs", method, args)))

    @one_at_a_time
    def state(self) -> Tree:
        """Return the state of the episodes, without fragments that were sampled ahead of time."""
        self._catch_up()
        self.take_back()
        states = self._workers.sure_of_all("state")
        gone = WorkerCounters.sum((self._gone, *(inbox.before for inbox in self._workers.inboxes)))
        absent = self._workers.absent
        replaced = [times for index, times in enumerate(self._workers.replaced) if index not in absent]
        return {"workers": states, "gone": gone.state(), "pieces": self._unrolls, "replaced": replaced}

    @one_at_a_time
    def check_begins_again(self) -> None:
        self.take_back()
        for index in range(len(self._workers)):
            self._workers.sure(index, "check_begins_again")

    @one_at_a_time
    def begin_again(self, seed: int) -> None:
        self.take_back()
        self._gone = WorkerCounters()
        self._workers.begin_again(seed)

    @one_at_a_time
    def resume(self, tree: Mapping[str, Any]) -> int:
        tree = spread(tree, len(self._workers), self._each)
        self._gone, self._unrolls = WorkerCounters.of(tree["gone"]), tree["pieces"]
        # States of another layout do not have it.
        self._workers.stand_in(tree.get("replaced", [0] * len(self._workers)))
        lost = 0
        self._workers.present()
        for index, state in enumerate(tree["workers"]):
            lost += int(self._workers.sure(index, "resume", state) or 0)
            # A new one: of those that were lost before this answer nothing is left that counts.
            inbox = self._workers.inboxes[index] = FragmentQueue()
            inbox.stand = WorkerCounters.of(state)
            inbox.running = inbox.stand.running
            if index in self._workers.absent:
                lost += inbox.running
                self._workers.begins_anew(index)
        return lost

    def stop(self) -> None:
        self._workers.stop()

    def take_back(self) -> None:
        """Make workers anew that began with policies that have changed before anybody took what they sampled."""
        if self._begun:
            self._begun = False
            self._workers.renew()

    def _catch_up(self) -> None:
        """Tell workers of the policies that there are, if somebody was interrupted in that."""
        if self._behind:
            self.follow()

    def _together(self, fragments: Mapping[int, Fragment]) -> MultiAgentBatch:
        for index, fragment in fragments.items():
            self._metrics.absorb(fragment.metrics)
            self.timers.add(fragment.timers)
            self._headlines.absorb(fragment.filters)
            self._warn(fragment.warnings)
            for batch in fragment.batch.policy_batches.values():
                batch.segments.env_id = batch.segments.env_id + index * self._each
        batches = [fragment.batch for fragment in fragments.values()]
        found = MultiAgentBatch.concat_samples(batches) if len(batches) > 1 else _own(batches[0])
        order = [name for name in self._crew.policy_map.specs if name in found]
        for name in order:
            pieces = found[name].segments
            pieces.unroll_id = np.arange(self._unrolls, self._unrolls + len(pieces.lengths))
            self._unrolls += len(pieces.lengths)
        self._measure(found)
        together = MultiAgentBatch({name: found[name] for name in order}, found.env_steps())
        if self._config.overlap:
            # Workers left what gets better: these networks have learned since the rows were sampled.
            before = perf_counter()
            self._crew.completion.catch_up(together)
            self.timers.complete += perf_counter() - before
        return together

    def _measure(self, batch: MultiAgentBatch) -> None:
        if self._workers.ahead:
            # None at all where all that was sampled ahead is of a policy that was removed.
            for rows in batch.policy_batches.values():
                self.staleness.append(self._headlines.version - rows[SampleBatch.WEIGHTS_SEQ_NO])

    def _warn(self, lines: Sequence[str]) -> None:
        for line in lines:
            if line not in self._warned:
                self._warned.add(line)
                warnings.warn(line, EnvFaultWarning, stacklevel=2)


def _own(batch: MultiAgentBatch) -> MultiAgentBatch:
    columns = [column for rows in batch.policy_batches.values() for column in rows.stored().values()]
    return batch if all(column.flags.writeable for column in columns) else batch.copy()


# SEAM menv.algorithms.rollouts.workforce
# Who samples for an algorithm: this process, or workers.
#
# `menv.algorithms.algorithm` has one. It knows how many there are and what they run on, not what they do.


class WorkerGroupFactory:
    """The workers of one algorithm, if it has any.

    Args:
        config: The settings.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        """Start the processes of workers, which import what they need while this one does likewise."""
        self._config = config
        self._engine: Engine | None = None
        self._seats: list[RemoteActor] = []
        self._workers: RemoteRollouts | None = None
        self._declared: Declared = {}
        if config.num_workers and config.input is None:
            from menv.algorithms.rollout_worker import WorkerBootstrap
            from menv.workers.engines import make_engine

            self._engine = make_engine(config.engine, patience=config.worker_start_timeout_s)
            self._seats = [
                self._engine.start(WorkerBootstrap, label=f"worker {number}")
                for number in range(1, config.num_workers + 1)
            ]

    @property
    def pids(self) -> Sequence[int | None]:
        """The ids of the workers' processes; None for one that has not answered yet."""
        return [] if self._workers is None else self._workers.pids

    def make_envs(self) -> tuple[Any, BaseEnv]:
        """Create the environments of this process.

        With workers it is one, which is asked for its spaces only, and none at all if the config has these.
        """
        config = self._config
        if config.input is not None:
            check_with_input(config)
        if not config.num_workers:
            return make_experience(config)
        agents = _agents_of(config)
        if agents is not None:
            stub = _NotCreated(agents)
            given = {name: getattr(config, name) for name in ("observation_space", "action_space")}
            self._declared = {name: space for name, space in given.items() if isinstance(space, gym.Space)}
            return stub, to_base_env(stub)
        near = replace(config, num_envs_per_worker=1, remote_worker_envs=False, remote_env_batch_wait_ms=0)
        first, base_env = make_experience(near)
        if base_env.external:
            base_env.stop()
            raise ConfigError(
                f"num_workers: {config.num_workers} with a {type(first).__name__}, which calls by itself, expected 0; "
                "leave num_workers out"
            )
        self._declared = declared(first)
        return first, base_env

    def rollouts(
        self,
        base_env: BaseEnv,
        population: PolicySet,
        callbacks: DefaultCallbacks,
        seed: int,
        metrics: Metrics,
    ) -> Rollouts:
        """Return what samples, once it is known what runs the networks.

        Args:
            base_env: The environments of this process.
            population: The policies.
            callbacks: Told about episodes, if it is this process that samples.
            seed: Key of every random draw.
            metrics: Where episodes are recorded.
        """
        config = self._config
        if not (config.num_workers and config.overlap):
            self._prepare_torch(population)
        if not config.num_workers:
            return LocalRollouts(config, base_env, population, callbacks, seed, metrics)
        workers = self._workers = self._new_workers(base_env, population, seed, metrics)
        if config.overlap:
            # Importing torch takes a second; workers that may run ahead have begun by then.
            workers.begin()
            if self._prepare_torch(population):
                workers.take_back()
        return workers

    def check_travels(self, mapping_fn: Any, to_train: Any) -> None:
        """Refuse functions that workers cannot be told, before anything has changed.

        Raises:
            UnsendableError: One of them cannot be pickled.
        """
        if self._config.num_workers:
            from menv.workers.pipe_channel import pack

            pack({"policy_mapping_fn": mapping_fn, "policies_to_train": to_train}, "multiagent")

    def replaced(self) -> list[int]:
        """Return the numbers, from 1, of the workers that were replaced since the last look."""
        if self._workers is None:
            return []
        return self._workers.recreated()

    def report(self) -> dict[str, Any]:
        """Return what a result tells of workers."""
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

    def _prepare_torch(self, population: PolicySet) -> bool:
        """Import torch and check what runs the networks; return whether something else runs some of them now."""
        set_torch_threads(self._config.torch_threads)
        return population.settle()

    def _new_workers(
        self, base_env: BaseEnv, population: PolicySet, seed: int, metrics: Metrics
    ) -> RemoteRollouts:
        pass  # moved

        assert self._engine is not None
        # A BaseEnv or a vectorised environment brings as many as it has.
        own = 0 if isinstance(base_env, CreatedEnvs) else base_env.num_envs
        return RemoteRollouts(
            self._config, population, seed, metrics, self._engine,
            own or self._config.num_envs_per_worker, self._seats, self._declared,
        )  # fmt: skip


class _NotCreated(MultiAgentEnv):
    """Stands for the environment in a process that does not create one: its agents, without spaces."""

    def __init__(self, agents: list[AgentId]) -> None:
        super().__init__()
        self.possible_agents = agents


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
