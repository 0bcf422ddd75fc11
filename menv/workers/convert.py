"""`to_base_env` with sub-environments in this process or in others.

`env.to_base_env(...)` and `menv.algorithms.rollouts.environments` call it. `menv.adapters.convert` handles local
environments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from menv.adapters import convert
from menv.adapters.adapter import Adapter
from menv.adapters.local_envs import TOLERATED
from menv.adapters.validation import possible_agents, same_spaces
from menv.env_calls import close_unused
from menv.errors import ConfigError, ContractError
from menv.registry import env_kind, wrapped_if_foreign
from menv.workers.engine import Engine, EngineName
from menv.workers.messages import dumps, loads
from menv.workers.registered_envs import RemoteCreator
from menv.workers.remote_envs import RemoteEnvs


def to_base_env(
    env: object,
    make_env: Callable[[int], Any] | None = None,
    num_envs: int = 1,
    *,
    remote_envs: bool = False,
    remote_env_batch_wait_ms: float = 0,
    restart_failed_sub_environments: bool = True,
    num_consecutive_env_failures_tolerance: int = TOLERATED,
    seed: int | None = None,
    first_index: int = 0,
    env_timeout: float | None = None,
    engine: EngineName | Engine | None = None,
    strict: bool = False,
) -> Adapter:
    """Return `env` and its copies as one `BaseEnv`.

    Args:
        env: A BaseEnv, VectorEnv or gymnasium.vector.VectorEnv, which brings its sub-environments along, or a
            MultiAgentEnv or gymnasium.Env, which becomes sub-environment 0. An environment of PettingZoo and a game of
            OpenSpiel are wrapped. With `remote_envs` it only provides spaces and agents, and is closed.
        make_env: Creates sub-environment number `vector_index`. With `remote_envs` it creates all of them in other
            processes, where it can use the names that `register_env` and `gymnasium.register` know here at this time.
        num_envs: Number of sub-environments.
        remote_envs: Whether sub-environments run in separate processes.
        remote_env_batch_wait_ms: Milliseconds that a poll waits for more sub-environments once one has answered. 0
            returns the ready ones, a large number makes all step in lock step.
        restart_failed_sub_environments: Whether `make_env` creates a sub-environment again that raises, hangs or is
            killed, at the cost of its episode; False ends the run. Sub-environments that `env` brings along are never
            re-created.
        num_consecutive_env_failures_tolerance: Number of crashes of one sub-environment in a row, each in a reset or in
            the first 10 env steps of an episode, that do not end the run; the next one does.
        seed: Gives every reset a different seed; None leaves the environments alone.
        first_index: Index of sub-environment 0 among the sub-environments of all workers.
        env_timeout: Seconds after which a remote sub-environment that does not answer is given up; None waits forever.
        engine: "process" or "ray", or an engine that nothing else uses; None chooses Ray where it is installed.
        strict: Whether the tables of a custom BaseEnv are searched for contradictions, as `check_env` does.

    Raises:
        ConfigError: `env` is of another kind or has another number of sub-environments, `make_env` is missing, or a
            setting is wrong.
        ContractError: A copy of a gymnasium.Env declares spaces of another kind or shape than `env`; or, with
            `remote_envs`, an agent id does not equal its copy from another process.
    """
    _check(remote_envs, remote_env_batch_wait_ms, env_timeout)
    env = wrapped_if_foreign(env)
    if not remote_envs:
        make_env = same_spaces(make_env, env) if callable(make_env) else make_env
        return convert.to_local_base_env(
            env, make_env, num_envs, restart_failed_sub_environments=restart_failed_sub_environments,
            num_consecutive_env_failures_tolerance=num_consecutive_env_failures_tolerance, seed=seed,
            first_index=first_index, strict=strict,
        )  # fmt: skip
    make = _creator(env, make_env, num_envs)
    if not isinstance(engine, Engine):
        from menv.workers.engines import make_engine

        # An environment mostly waits for actions and needs no CPU of a cluster.
        engine = make_engine(engine, cpus=0.0)
    tolerated = num_consecutive_env_failures_tolerance if restart_failed_sub_environments else None
    found = RemoteEnvs(
        same_spaces(make, env), num_envs, engine, like=env, batch_wait_ms=remote_env_batch_wait_ms,
        env_timeout=env_timeout, tolerated=tolerated, seed=seed, first_index=first_index,
    )  # fmt: skip
    close_unused(env)
    return found


def _creator(env: object, make_env: Callable[[int], Any] | None, num_envs: int) -> Callable[[int], Any]:
    name, kind = type(env).__name__, env_kind(env)
    if kind in ("base_env", "external", "vector", "gym_vector", "vector_agents"):
        raise ConfigError(
            f"remote_envs: {name} brings its own sub-environments along, expected a gymnasium.Env or a MultiAgentEnv; "
            "leave remote_envs (remote_worker_envs) out"
        )
    if kind is None:
        convert.to_local_base_env(env)
    if make_env is None:
        raise ConfigError(
            f"remote_envs: make_env is None, expected one that creates a {name} in another process; pass "
            "make_env=lambda index: YourEnv(...)"
        )
    convert.check_make_env(make_env)
    _check_agents(env)
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise ConfigError(
            f"num_envs: {num_envs!r}, expected at least 1; set num_envs_per_worker to 1 or more"
        )
    return make_env if isinstance(make_env, RemoteCreator) else RemoteCreator(make_env)


def _check_agents(env: object) -> None:
    """Refuse agent ids that do not equal their pickled copies: their rows could not be assigned."""
    for agent in (possible_agents(env) or ()) if env_kind(env) == "multi_agent" else ():
        if loads(dumps(agent)) not in {agent}:
            kind = type(agent).__name__
            raise ContractError(
                f"remote_envs: agent {agent!r:.100} of {type(env).__name__} does not equal its copy from another "
                f"process, expected an id that does; take strings or numbers, or write __eq__ and __hash__ in {kind}"
            )


def _check(remote: bool, wait_ms: float, timeout: float | None) -> None:
    if not _is_number(wait_ms) or wait_ms < 0:
        raise ConfigError(
            f"remote_env_batch_wait_ms: {wait_ms!r}, expected milliseconds, 0 or more; 0 returns the ready ones"
        )
    if timeout is not None and (not _is_number(timeout) or timeout <= 0):
        raise ConfigError(f"env_timeout: {timeout!r}, expected seconds, more than 0; None waits for ever")
    if remote:
        return
    for name, given in (("remote_env_batch_wait_ms", wait_ms), ("env_timeout", timeout)):
        if given:
            raise ConfigError(
                f"{name}: {given!r} without remote environments, expected remote_envs=True (remote_worker_envs=True); "
                "set that, or leave this out"
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
