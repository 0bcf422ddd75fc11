"""The environments of a run: created in the process that steps them, for training and for evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym

from menv.adapters.adapter import Adapter
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.read_config import evaluation_settings
from menv.base_env import SINGLE_AGENT
from menv.env_context import EnvContext, InputContext
from menv.errors import ConfigError
from menv.offline.recorded_envs import RecordedEnvs
from menv.policy_spec import PolicySpec
from menv.registry import checked_creator, env_kind, make_env
from menv.sampling.fragment_limit import ExternalFragmentLimit, FragmentLimit, WholeEpisodeLimit
from menv.workers.convert import to_base_env
from menv.workers.registered_envs import RemoteCreator
from menv.wrappers.group_agents import as_team

_MOST_ENVS = 1_000_000


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """Which process samples, and so which share of the sub-environments it has.

    `worker_index` is 0 for the driver and from 1 for workers; `recreated` marks the replacement of a lost worker.
    """

    worker_index: int = 0
    recreated: bool = False
    in_evaluation: bool = False

    @property
    def label(self) -> str:
        """The name of its process in messages."""
        return f"{'evaluation ' if self.in_evaluation else ''}worker {self.worker_index}"

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
        make = _maker(config, placement)
        first = make(0)
        return first, _in_table_form(config, first, make, config.seed, placement)
    if isinstance(config.input, str):
        stub = None if config.env is None else _maker(config, placement)(0)
        recorded = RecordedEnvs(config.input, input_context(config, stub), config.seed)
        return (recorded if stub is None else stub), recorded
    if not callable(config.input):
        raise ConfigError(
            f"input: {type(config.input).__name__}, expected a path of recorded episodes or a function of an "
            'InputContext; write "games/*.parquet" or lambda ioctx: PolicyServerInput(ioctx, address, port), or leave '
            "it out to step the env"
        )
    source_of: Callable[..., Any] = checked_creator("input", config.input, "InputContext")
    stub = None if config.env is None else _maker(config, placement)(0)
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
    if config.common_reward is not None:
        raise ConfigError(
            f"common_reward: {config.common_reward!r} with an input, whose rewards are given, expected None; leave it "
            "out"
        )
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
    make = _maker(config, placement)
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
        first,
        RemoteCreator(_maker(config, placement, remote=True), config.env, config.log_level),
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


def _maker(
    config: AlgorithmConfig, placement: WorkerPlacement, *, remote: bool = False
) -> Callable[[int], Any]:
    """Return what creates sub-environment number `vector_index`."""
    context = env_context(config, 0, placement).copy_with_overrides(remote=remote)
    return partial(_make_env, env=config.env, context=context, team=_team_of(config))


def _make_env(vector_index: int, *, env: Any, context: EnvContext, team: Mapping[str, Any]) -> Any:
    return as_team(make_env(env, context.copy_with_overrides(vector_index=vector_index)), **team)


def _team_of(config: AlgorithmConfig) -> dict[str, Any]:
    """Return the arguments of `as_team`."""
    policies = config.multiagent.policies
    specs = (
        [PolicySpec.of(name, one).config for name, one in policies.items()]
        if isinstance(policies, Mapping)
        else []
    )
    critics = [getattr(config, "critic_obs", None), *((own or {}).get("critic_obs") for own in specs)]
    return {"how": config.common_reward, "grouped": config.groups_agents, "with_state": "state" in critics}


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
