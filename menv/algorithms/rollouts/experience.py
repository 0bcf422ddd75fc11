"""Where an algorithm's experience comes from: environments that are stepped, or an input whose clients play.

`menv.algorithms.algorithm` calls it when it is built, and for evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.evaluation.evaluation_settings import evaluation_settings
from menv.base_env import SINGLE_AGENT, BaseEnv
from menv.env_context import EnvContext
from menv.errors import ConfigError
from menv.input_context import InputContext
from menv.loop.quota import ExternalQuota, Quota
from menv.loop.whole_episodes import WholeQuota
from menv.multi_agent_env import MultiAgentEnv
from menv.policy_spec import PolicySpec
from menv.registry import checked_creator, make_env
from menv.scale.convert import to_base_env
from menv.scale.far_env import FarEnv

Spaces = Mapping[Hashable, gym.Space[Any]]
_MOST_ENVS = 1_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """Which process it is that samples, and so which share of all sub-environments it has.

    Attributes:
        worker_index: 0 for the driver, from 1 for workers.
        recreated: Whether it takes the place of a worker that was lost.
        in_evaluation: Whether it plays evaluations.
    """

    worker_index: int = 0
    recreated: bool = False
    in_evaluation: bool = False

    def first_index(self, num_envs: int) -> int:
        """Return the index of its first sub-environment among all, where each worker has `num_envs`; 0 if unknown."""
        return max(0, self.worker_index - 1) * (num_envs or _MOST_ENVS)


_DRIVER = Place()


def make_experience(config: AlgorithmConfig, place: Place = _DRIVER) -> tuple[Any, BaseEnv]:
    """Create the environments of a config, or one worker's share of them.

    Returns:
        The first of them, which knows the agents and their spaces, and all of them in table form. With an `input`
        the first one is only a stub, or the input itself.

    Raises:
        ConfigError: A setting is wrong.
        EnvCrashError: An environment could not be created.
    """
    if config.input is None:
        make = partial(_make_env, config, place)
        first = make(0)
        return first, _in_table_form(config, first, make, config.seed, place)
    if not callable(config.input):
        raise ConfigError(
            f"input: {type(config.input).__name__}, expected a function of an InputContext; write lambda ioctx: "
            "PolicyServerInput(ioctx, address, port), or leave it out to step the env; examples/offline_logs.py "
            "learns from episodes that were logged"
        )
    source_of: Callable[..., Any] = checked_creator("input", config.input, "InputContext")
    stub = None if config.env is None else _make_env(config, place, 0)
    source = source_of(_input_context(config, stub))
    if not isinstance(source, BaseEnv):
        raise ConfigError(
            f"input: the function returned {type(source).__name__}, expected a BaseEnv such as PolicyServerInput; "
            "return one"
        )
    base_env = to_base_env(source)
    return (base_env if stub is None else stub), base_env


def check_with_input(config: AlgorithmConfig) -> None:
    """Refuse settings that cannot work with an `input`, whose clients step their own environments.

    Raises:
        ConfigError: There is one.
    """
    for name, instead in (("num_workers", ""), ("remote_worker_envs", ", or put it into evaluation_config")):
        if value := getattr(config, name):
            raise ConfigError(
                f"{name}: {value} with an input, expected {type(value)()}, because one server takes many clients, "
                f"which step their own environments; leave {name} out{instead}"
            )
    for name in ("evaluation_interval", "evaluation_num_workers"):
        if (value := getattr(config, name)) and evaluation_settings(config).env is None:
            raise ConfigError(
                f"{name}: {value} with an input and no env, expected an environment that menv steps, because clients "
                'cannot be evaluated; give one with evaluation_config={"env": ...}'
            )


def check_evaluable(config: AlgorithmConfig, training_env: Any) -> None:
    """Refuse evaluations without an environment that menv steps.

    Raises:
        ConfigError: There is none.
    """
    if config.env is None or (
        config.input is not None and config.input is not False and training_env is None
    ):
        raise ConfigError(
            "evaluate: clients of an input cannot be evaluated, expected an environment that menv steps; give one with "
            'evaluation_config={"env": ...}'
        )


def make_evaluation_experience(
    config: AlgorithmConfig, training_env: Any, place: Place = _DRIVER
) -> tuple[Any, BaseEnv]:
    """Create the environments of evaluations, or one worker's share of them.

    Returns:
        The first of them, which knows the agents and their spaces, and all of them in table form.

    Raises:
        ConfigError: The config's `env` is that which is trained in, or there is none.
        EnvCrashError: An environment could not be created.
    """
    check_evaluable(config, training_env)
    place = replace(place, in_evaluation=True)
    make = partial(_make_env, config, place)
    env = make(0)
    if env is training_env:
        raise ConfigError(
            "evaluate: env returned the environment that is trained in, expected a new one at each call; create it "
            "in the function"
        )
    seed = None if config.seed is None else config.seed + 10_000
    return env, _in_table_form(config, env, make, seed, place)


def _in_table_form(
    config: AlgorithmConfig, first: Any, make: Callable[[int], Any], seed: int | None, place: Place = _DRIVER
) -> BaseEnv:
    brought = getattr(first, "num_envs", None)
    first_index = place.first_index(brought if isinstance(brought, int) else config.num_envs_per_worker)
    settings: dict[str, Any] = {
        "seed": seed, "first_index": first_index,
        "restart_failed_sub_environments": config.restart_failed_sub_environments,
        "num_consecutive_env_failures_tolerance": config.num_consecutive_env_failures_tolerance,
    }  # fmt: skip
    if not config.remote_worker_envs:
        return to_base_env(first, make, config.num_envs_per_worker, **settings)
    return to_base_env(
        first, FarEnv(config.env, env_context(config, 0, place), config.log_level), config.num_envs_per_worker,
        remote_envs=True, remote_env_batch_wait_ms=config.remote_env_batch_wait_ms, env_timeout=config.env_timeout,
        engine=config.engine, **settings,
    )  # fmt: skip


def make_quota(config: AlgorithmConfig, base_env: BaseEnv) -> Quota:
    """Return what says when a fragment of one process is full."""
    num_envs = (base_env.num_envs or config.num_envs_per_worker) * max(1, config.num_workers)
    length, by = config.fragment_length(num_envs), config.multiagent.count_steps_by
    uncounted = not base_env.num_envs and config.rollout_fragment_length == "auto"
    if base_env.external or uncounted:
        return ExternalQuota(length, config.batch_mode, by)
    if base_env.lockstep and config.batch_mode == "complete_episodes":
        return WholeQuota(length)
    return Quota(length, config.batch_mode, by, lockstep=base_env.lockstep)


def env_context(config: AlgorithmConfig, vector_index: int, place: Place = _DRIVER) -> EnvContext:
    """Return the context of sub-environment number `vector_index`."""
    return EnvContext(
        dict(config.env_config), worker_index=place.worker_index, vector_index=vector_index,
        num_workers=config.num_workers, recreated_worker=place.recreated, remote=config.remote_worker_envs,
        in_evaluation=place.in_evaluation,
    )  # fmt: skip


def _make_env(config: AlgorithmConfig, place: Place, vector_index: int) -> Any:
    return make_env(config.env, env_context(config, vector_index, place).copy_with_overrides(remote=False))


def _input_context(config: AlgorithmConfig, stub: Any) -> InputContext:
    agents = tuple(getattr(stub, "possible_agents", None) or ())
    multi = isinstance(stub, MultiAgentEnv) or bool(agents)
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
    """Return the space that all policies declare, None if one of them declares none or another."""
    policies = config.multiagent.policies
    if kind == "observation_space" and config.multiagent.observation_fn is not None:
        # What clients observe is not what policies do.
        return None
    named = policies if isinstance(policies, Mapping) else {}
    spaces = [getattr(PolicySpec.of(policy_id, value), kind) for policy_id, value in named.items()]
    return spaces[0] if spaces and all(space == spaces[0] for space in spaces) else None
