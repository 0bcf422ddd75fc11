"""Which adapter turns which kind of environment into a `BaseEnv` of this process.

`menv.workers.convert` calls it here, and in the processes of remote environments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from menv.adapters.adapter import Adapter
from menv.adapters.custom import CustomEnvs
from menv.adapters.external import EnvThreads
from menv.adapters.gym import GymEnvs
from menv.adapters.gym_vector import GymVectorEnvs
from menv.adapters.local_envs import TOLERATED
from menv.adapters.multi_agent import MultiAgentEnvs
from menv.adapters.vector import VectorEnvs
from menv.adapters.vector_agents import VectorAgentEnvs
from menv.base_env import SINGLE_AGENT
from menv.env_calls import OR_MANY_AGENTS, many_agents
from menv.errors import ConfigError, ContractError
from menv.external_env import ExternalEnv, ExternalMultiAgentEnv
from menv.registry import env_kind, refuse_rllib


def to_local_base_env(
    env: Any,
    make_env: Callable[[int], Any] | None = None,
    num_envs: int = 1,
    *,
    restart_failed_sub_environments: bool = True,
    num_consecutive_env_failures_tolerance: int = TOLERATED,
    seed: int | None = None,
    first_index: int = 0,
    strict: bool = False,
) -> Adapter:
    """Return `env` and its copies as one `BaseEnv` in this process.

    Args:
        env: A BaseEnv, VectorEnv, VectorMultiAgentEnv or gymnasium.vector.VectorEnv, which holds its sub-environments,
            or a MultiAgentEnv or gymnasium.Env, which becomes sub-environment 0.
        make_env: Creates the other sub-environments, by `vector_index`.
        num_envs: How many sub-environments there are.
        restart_failed_sub_environments: Whether a sub-environment that raises is closed and created again by
            `make_env`, and loses its episode; False ends the run. `env` must not hold its own sub-environments.
        num_consecutive_env_failures_tolerance: So many crashes of one sub-environment in a row, each in a reset or
            in the first 10 env steps of an episode, do not end the run; the next one does.
        seed: Gives every reset its own seed; None resets without seeds.
        first_index: Index of sub-environment 0 among the sub-environments of all workers.
        strict: Whether tables of a user's own BaseEnv are searched for contradictions.
    """
    check_make_env(make_env)
    kind = env_kind(env)
    if kind == "base_env":
        check_number(env, num_envs)
        # Adapters return valid tables.
        return env if isinstance(env, Adapter) else CustomEnvs(env, strict)
    if kind == "external":
        _check_begun(env, "broker", "action_space, observation_space")
        return _external(env, make_env, num_envs)
    if kind in ("vector", "gym_vector"):
        _check_begun(env, "num_envs", "observation_space, action_space, num_envs")
        check_number(env, num_envs)
        if kind == "vector":
            return VectorEnvs(env, seed=seed, first_index=first_index)
        _check_spaces(env)
        return GymVectorEnvs(env, seed=seed, first_index=first_index)
    if kind == "vector_agents":
        check_number(env, num_envs)
        return VectorAgentEnvs(env, seed=seed, first_index=first_index)
    tolerated = num_consecutive_env_failures_tolerance if restart_failed_sub_environments else None
    local: dict[str, Any] = {"seed": seed, "first_index": first_index, "tolerated": tolerated}
    if kind == "multi_agent":
        return MultiAgentEnvs(make_env, num_envs, [env], **local)
    if kind == "single_agent":
        refuse_rllib(env, "to_base_env")
        why = many_agents(env)
        if why is not None:
            raise ConfigError(
                f"{type(env.unwrapped).__name__}: {why}, expected a gymnasium Space; set that of one agent"
                f"{OR_MANY_AGENTS}"
            )
        return GymEnvs(make_env, num_envs, [env], **local)
    raise ConfigError(
        f"to_base_env: cannot use {type(env).__name__} as an environment, expected a gymnasium.Env, a "
        "gymnasium.vector.VectorEnv, a menv.MultiAgentEnv, VectorEnv, VectorMultiAgentEnv, ExternalEnv or BaseEnv; "
        "subclass one of them, "
        "wrap the object in one, an environment of PettingZoo in menv.wrappers.PettingZooEnv or ParallelPettingZooEnv, "
        "one of the old gym API in menv.wrappers.LegacyGym"
    )


def check_make_env(make_env: object) -> None:
    """Raise if `make_env` is not a function."""
    if make_env is not None and not callable(make_env):
        raise ConfigError(
            f"to_base_env: make_env is {make_env!r:.100}, expected a function of one index; pass "
            "make_env=lambda index: YourEnv(...)"
        )


def check_number(env: Any, num_envs: int) -> None:
    """Raise if an environment that holds its sub-environments has another number of them."""
    kind = env_kind(env)
    if kind not in ("base_env", "vector", "gym_vector", "vector_agents") or num_envs in (1, env.num_envs):
        return
    if kind == "base_env":
        raise ConfigError(
            f"to_base_env: num_envs={num_envs} for a {type(env).__name__}, expected 1: a BaseEnv holds its own "
            "sub-environments; leave num_envs (num_envs_per_worker) out"
        )
    raise ConfigError(
        f"to_base_env: num_envs={num_envs} for a {type(env).__name__} of {env.num_envs} sub-environments, expected "
        "its own number; leave num_envs (num_envs_per_worker) out, or set it to that"
    )


def _check_begun(env: object, attribute: str, arguments: str) -> None:
    """Raise if an environment's constructor did not call that of its base class."""
    if not hasattr(env, attribute):
        name = type(env).__name__
        raise ContractError(
            f"{name}: {attribute} is missing, expected the base class to set it; call super().__init__({arguments})"
        )


def _check_spaces(env: gym.vector.VectorEnv[Any, Any, Any]) -> None:
    missing = [name for name in ("single_observation_space", "single_action_space") if not hasattr(env, name)]
    if missing:
        raise ContractError(
            f"{type(env).__name__}: {' and '.join(missing)} missing, expected as in gymnasium 1.0's VectorEnv; set "
            "them, or pass on what was vectorised: games of PettingZoo in menv.wrappers.ParallelPettingZooEnv",
            "ME001",
        )


def _external(
    env: ExternalEnv | ExternalMultiAgentEnv, make_env: Callable[[int], Any] | None, num_envs: int
) -> Adapter:
    if num_envs > 1 and make_env is None:
        raise ConfigError(f"to_base_env: num_envs={num_envs} without make_env, expected a function; pass one")
    envs = [env, *(make_env(index) for index in range(1, num_envs) if make_env is not None)]
    for other in envs:
        if other._converted:
            raise ConfigError(
                f"to_base_env: this {type(other).__name__} is sampled already, expected one that is not; create another"
            )
        other._converted, other.broker = True, env.broker
    possible_agents = env.possible_agents if isinstance(env, ExternalMultiAgentEnv) else [SINGLE_AGENT]
    return EnvThreads(env.broker, envs, possible_agents=possible_agents)
