"""What the driver and its workers exchange: settings, policy updates, fragments and counters; and environments of each.

`menv.algorithms.remote_rollouts` is one end, `menv.algorithms.rollout_worker` the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Self

import gymnasium as gym
import numpy as np

from menv.adapters.adapter import Adapter
from menv.adapters.validation import Declared
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.read_config import evaluation_settings
from menv.algorithms.postprocessing import BatchPostprocessor
from menv.base_env import SINGLE_AGENT
from menv.connectors.mean_std_filter import MeanStdObservationFilterAgentConnector
from menv.connectors.pipeline import PolicyConnectors, export_lives, import_lives
from menv.env_context import EnvContext, InputContext
from menv.errors import ConfigError
from menv.inference.network_policy import NetworkPolicy
from menv.metrics import MetricsSnapshot, Timers
from menv.offline.recorded_envs import RecordedEnvs
from menv.policy import Policy
from menv.policy_map import PolicyMap
from menv.policy_spec import PolicySpec
from menv.registry import RegisteredEnv, checked_creator, env_kind, make_env
from menv.sample_batch import MultiAgentBatch
from menv.sampling.digest import Digest
from menv.sampling.fragment_limit import ExternalFragmentLimit, FragmentLimit, WholeEpisodeLimit
from menv.sampling.policy_group import PolicyGroup
from menv.workers.convert import to_base_env
from menv.workers.registered_envs import RemoteEnvSpec

_MOST_ENVS = 1_000_000


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """Which process samples, and so which share of the sub-environments it has.

    `worker_index` is 0 for the driver and from 1 for workers; `recreated` marks the replacement of a lost worker.
    """

    worker_index: int = 0
    recreated: bool = False
    in_evaluation: bool = False

    def first_index(self, num_envs: int) -> int:
        """Return the index of its first sub-environment among all, for workers with `num_envs` each; 0 is unknown."""
        return max(0, self.worker_index - 1) * (num_envs or _MOST_ENVS)


_DRIVER = WorkerPlacement()


def create_envs(config: AlgorithmConfig, placement: WorkerPlacement = _DRIVER) -> tuple[Any, Adapter]:
    """Create the environments of a config, or one worker's share of them.

    Returns the first of them, which declares agents and spaces, and all of them as a `BaseEnv`. With an `input` the
    first one is a stub, or the input itself.
    """
    if not config.replaces_env:
        make = partial(_make_env, config, placement)
        first = make(0)
        return first, _in_table_form(config, first, make, config.seed, placement)
    if isinstance(config.input, str):
        stub = None if config.env is None else _make_env(config, placement, 0)
        recorded = RecordedEnvs(config.input, input_context(config, stub), config.seed)
        return (recorded if stub is None else stub), recorded
    if not callable(config.input):
        raise ConfigError(
            f"input: {type(config.input).__name__}, expected a path of recorded episodes or a function of an "
            'InputContext; write "games/*.parquet" or lambda ioctx: PolicyServerInput(ioctx, address, port), or leave '
            "it out to step the env"
        )
    source_of: Callable[..., Any] = checked_creator("input", config.input, "InputContext")
    stub = None if config.env is None else _make_env(config, placement, 0)
    source = source_of(input_context(config, stub))
    if env_kind(source) != "base_env":
        raise ConfigError(
            f"input: the function returned {type(source).__name__}, expected a BaseEnv such as PolicyServerInput; "
            "return one"
        )
    base_env = to_base_env(source)
    return (base_env if stub is None else stub), base_env


def check_input_settings(config: AlgorithmConfig) -> None:
    """Refuse settings that cannot work with an `input`: recorded episodes, or clients that step environments."""
    if isinstance(config.input, str | Mapping) and config.multiagent.observation_fn is not None:
        raise ConfigError(
            "observation_fn: given with recorded episodes as input, expected None, because policies must see what was "
            "recorded; record an environment that returns those observations"
        )
    if not config.replaces_env:
        return
    if isinstance(config.input, str) and config.self_play.enabled:
        raise ConfigError(
            "self_play: enabled with recorded episodes as the only input, expected games that the policies play; add "
            'the sampler, as in input={"sampler": 0.5, "games/*.parquet": 0.5}'
        )
    for name, instead in (("num_workers", ""), ("remote_worker_envs", ", or put it into evaluation_config")):
        if value := getattr(config, name):
            raise ConfigError(
                f"{name}: {value} with an input, expected {type(value)()}, because this process reads "
                f"recordings, and the clients of its server step their own environments; leave {name} out{instead}"
            )
    for name in ("evaluation_interval", "evaluation_num_workers"):
        if (value := getattr(config, name)) and evaluation_settings(config).env is None:
            raise ConfigError(
                f"{name}: {value} with an input and no env, expected an environment that menv steps, because clients "
                'and recordings cannot be evaluated; give one with evaluation_config={"env": ...}'
            )


def check_evaluable(config: AlgorithmConfig, training_env: Any) -> None:
    """Refuse evaluations without an environment that menv steps."""
    if config.env is None or (config.replaces_env and training_env is None):
        raise ConfigError(
            "evaluate: clients of an input cannot be evaluated, expected an environment that menv steps; give one with "
            'evaluation_config={"env": ...}'
        )


def create_evaluation_envs(
    config: AlgorithmConfig, training_env: Any, placement: WorkerPlacement = _DRIVER
) -> tuple[Any, Adapter]:
    """Create the environments of evaluations, or one worker's share of them, as `create_envs` does."""
    check_evaluable(config, training_env)
    placement = replace(placement, in_evaluation=True)
    make = partial(_make_env, config, placement)
    env = make(0)
    if env is training_env:
        raise ConfigError(
            "evaluate: env returned the environment that is trained in, expected a new one at each call; create it "
            "in the function"
        )
    seed = None if config.seed is None else config.seed + 10_000
    return env, _in_table_form(config, env, make, seed, placement)


def _in_table_form(
    config: AlgorithmConfig,
    first: Any,
    make: Callable[[int], Any],
    seed: int | None,
    placement: WorkerPlacement = _DRIVER,
) -> Adapter:
    brought = getattr(first, "num_envs", None)
    first_index = placement.first_index(brought if isinstance(brought, int) else config.num_envs_per_worker)
    settings: dict[str, Any] = {
        "seed": seed, "first_index": first_index,
        "restart_failed_sub_environments": config.restart_failed_sub_environments,
        "num_consecutive_env_failures_tolerance": config.num_consecutive_env_failures_tolerance,
    }  # fmt: skip
    if not config.remote_worker_envs:
        return to_base_env(first, make, config.num_envs_per_worker, **settings)
    return to_base_env(
        first, RemoteEnvSpec(config.env, env_context(config, 0, placement), config.log_level),
        config.num_envs_per_worker,
        remote_envs=True, remote_env_batch_wait_ms=config.remote_env_batch_wait_ms, env_timeout=config.env_timeout,
        engine=config.engine, **settings,
    )  # fmt: skip


def make_fragment_limit(config: AlgorithmConfig, base_env: Adapter) -> FragmentLimit:
    """Return the rule for when a fragment of one process is full."""
    num_envs = (base_env.num_envs or config.num_envs_per_worker) * max(1, config.num_workers)
    length, by = config.fragment_length(num_envs), config.multiagent.count_steps_by
    uncounted = not base_env.num_envs and config.rollout_fragment_length == "auto"
    if base_env.external or uncounted:
        return ExternalFragmentLimit(length, config.batch_mode, by)
    if base_env.lockstep and config.batch_mode == "complete_episodes":
        return WholeEpisodeLimit(length)
    return FragmentLimit(length, config.batch_mode, by, lockstep=base_env.lockstep)


def env_context(
    config: AlgorithmConfig, vector_index: int, placement: WorkerPlacement = _DRIVER
) -> EnvContext:
    """Return the context of sub-environment number `vector_index`."""
    return EnvContext(
        dict(config.env_config), worker_index=placement.worker_index, vector_index=vector_index,
        num_workers=config.num_workers, recreated_worker=placement.recreated, remote=config.remote_worker_envs,
        in_evaluation=placement.in_evaluation,
    )  # fmt: skip


def _make_env(config: AlgorithmConfig, placement: WorkerPlacement, vector_index: int) -> Any:
    return make_env(
        config.env, env_context(config, vector_index, placement).copy_with_overrides(remote=False)
    )


def input_context(config: AlgorithmConfig, stub: Any) -> InputContext:
    """Return what a source of experience must know; `stub` is an environment, None if there is none."""
    agents = tuple(getattr(stub, "possible_agents", None) or ())
    multi = env_kind(stub) == "multi_agent" or bool(agents)
    one, by_agent = {}, {}
    for kind in ("observation", "action"):
        given = getattr(config, f"{kind}_space")
        if given is None:
            given = getattr(stub, f"{kind}_spaces", None) or getattr(stub, f"{kind}_space", None)
        if given is None and not multi:
            given = _shared_space(config, f"{kind}_space")
        if isinstance(given, gym.spaces.Dict) and agents and set(agents) <= set(given.spaces):
            given = given.spaces
        spaces = dict(given) if isinstance(given, Mapping) and not isinstance(given, gym.Space) else {}
        one[kind], by_agent[kind] = (None if spaces else given), spaces
    multi = multi or bool(by_agent["observation"])
    return InputContext(
        num_workers=config.num_workers, observation_space=one["observation"], action_space=one["action"],
        observation_spaces=by_agent["observation"], action_spaces=by_agent["action"],
        possible_agents=(agents or tuple(by_agent["observation"])) if multi else (SINGLE_AGENT,),
        multi_agent=multi, env_config=dict(config.env_config), env_steps_per_sample=config.fragment_length(1),
    )  # fmt: skip


def _shared_space(config: AlgorithmConfig, kind: str) -> Any:
    """Return the space that all policies declare, None unless they agree."""
    policies = config.multiagent.policies
    if kind == "observation_space" and config.multiagent.observation_fn is not None:
        # Clients send other observations than policies receive.
        return None
    named = policies if isinstance(policies, Mapping) else {}
    spaces = [getattr(PolicySpec.of(policy_id, value), kind) for policy_id, value in named.items()]
    return spaces[0] if spaces and all(space == spaces[0] for space in spaces) else None


class PolicyUpdate(NamedTuple):
    """Changes of the policies since the last update, by policy id.

    `filters` holds for each policy positions among its agent connectors, each with a filter whose statistics to copy;
    `table` is that of the mapping, None if it has not changed.
    """

    weights: Mapping[str, Mapping[str, Any]]
    connectors: Mapping[str, PolicyConnectors]
    filters: Mapping[str, Sequence[tuple[int, Any]]]
    table: Any = None

    @property
    def empty(self) -> bool:
        return not (self.weights or self.connectors or self.filters or self.table)

    def of(self, policy_ids: Collection[str]) -> PolicyUpdate:
        """Return the part about some policies."""
        weights, connectors, filters, table = self
        return PolicyUpdate(
            {name: own for name, own in weights.items() if name in policy_ids},
            {name: own for name, own in connectors.items() if name in policy_ids},
            {name: own for name, own in filters.items() if name in policy_ids},
            table,
        )


@dataclass(eq=False, repr=False)
class PolicyView:
    """The policies as sampling needs them; `PolicySet` has more. It is pickled as a whole: its parts share objects.

    `policy_map` maps agents to policies, `groups` act together, `postprocessor` prepares fragments for learning.
    """

    policy_map: PolicyMap
    policies: dict[str, Policy]
    groups: list[PolicyGroup]
    postprocessor: BatchPostprocessor

    def take(self, update: PolicyUpdate, slots: Sequence[int]) -> None:
        """Apply an update; `slots` are the slots whose agent episodes connectors here may remember."""
        # The replacement of a lost worker lacks policies that were removed since.
        update = update.of(self.policies)
        if update.table is not None:
            self.policy_map.table = update.table
        networks = network_policies(self.policies)
        for policy_id, own in update.connectors.items():
            policy = networks[policy_id]
            before = policy.networks.connectors[policy.index]
            import_lives(own.agent, slots, export_lives(before.agent, slots))
            policy.networks.connectors[policy.index] = own
        for policy_id, weights in update.weights.items():
            self.policies[policy_id].set_weights(weights)
        mine = synced_filters(self.policies)
        for policy_id, filters in update.filters.items():
            for position, theirs in filters:
                mine[policy_id][position].sync(theirs)


def network_policies(policies: Mapping[str, Policy]) -> dict[str, NetworkPolicy]:
    """Return the policies that act by networks."""
    return {name: policy for name, policy in policies.items() if isinstance(policy, NetworkPolicy)}


def synced_filters(
    policies: Mapping[str, Policy],
) -> dict[str, dict[int, MeanStdObservationFilterAgentConnector]]:
    """Return the filters with merged statistics of each policy, by their position among its agent connectors."""
    return {
        name: {
            position: one
            for position, one in enumerate(policy.agent_connectors.connectors)
            if isinstance(one, MeanStdObservationFilterAgentConnector)
        }
        for name, policy in network_policies(policies).items()
    }


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings for workers, and the environments that are registered by name.

    Errors about settings that cannot be pickled name these fields.
    """

    config: AlgorithmConfig
    registered: RegisteredEnv


@dataclass(frozen=True, slots=True)
class WorkerInit:
    """Everything a worker is created from.

    `declared` are the spaces of the driver's environment; `num_envs` is the number of sub-environments of each worker.
    """

    settings: WorkerSettings
    placement: WorkerPlacement
    worker_policies: PolicyView
    seed: int
    declared: Declared
    num_envs: int


Tree = dict[str, Any]


@dataclass(slots=True)
class WorkerCounters:
    """Counters of one worker, or sums of several.

    `left_out` counts rows that could not be learned from, `running` the running episodes.
    """

    env_steps: int = 0
    agent_steps: int = 0
    left_out: int = 0
    digest: Digest = field(default_factory=Digest)
    running: int = 0

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Self:
        """Return the counters in the state of a worker or a sampler."""
        return cls(
            tree["env_steps"],
            tree["agent_steps"],
            digest=Digest(*tree.get("digest", ())),
            running=tree["running"],
        )

    @classmethod
    def sum(cls, counters: Iterable[WorkerCounters]) -> Self:
        total = cls()
        for one in counters:
            total.add(one)
        return total

    def add(self, other: WorkerCounters) -> None:
        self.env_steps += other.env_steps
        self.agent_steps += other.agent_steps
        self.left_out += other.left_out
        self.digest.add(other.digest)

    def state(self) -> Tree:
        return {
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "digest": self.digest.state(),
            "running": self.running,
        }


class Fragment(NamedTuple):
    """A worker's fragment, ready to be learned from, and the worker's counters since its start.

    `metrics`, `filters`, `warnings` and `times` cover the time since the previous fragment; `filters` are as in
    `PolicyUpdate`.
    """

    batch: MultiAgentBatch
    counters: WorkerCounters
    metrics: MetricsSnapshot
    filters: Mapping[str, Sequence[tuple[int, Any]]]
    warnings: Sequence[str]
    timers: Timers


def joined_state(
    workers: Sequence[Tree], total: WorkerCounters, pieces: int, replaced: Sequence[int]
) -> Tree:
    """Return the states of workers as the state of one sampler.

    `total` holds the counters of the run, `replaced` how often each worker was replaced.
    """
    none = np.zeros(0, np.int64)
    return {
        **total.state(),
        "running": sum(one["running"] for one in workers),
        "pieces": pieces,
        "steps": np.concatenate([none, *(one["steps"] for one in workers)]),
        "begun": np.concatenate([none, *(one["begun"] for one in workers)]),
        "replaced": list(replaced),
    }


def split_state(tree: Mapping[str, Any], count: int, each: int) -> list[Tree]:
    """Return the state of one sampler as that of `count` workers with `each` sub-environments and no counters."""
    steps, begun = tree["steps"], tree["begun"]
    if len(steps) != count * each:
        # Other sub-environments: none may repeat a random number of the old ones.
        steps = np.full(count * each, steps.max(initial=0))
    if len(begun) != len(steps):
        begun = np.full(len(steps), begun.max(initial=0))
    empty = {**WorkerCounters().state(), "pieces": 0}
    shares = zip(np.split(steps, count), np.split(begun, count), strict=True)
    return [{**empty, "steps": own_steps, "begun": own_begun} for own_steps, own_begun in shares]
