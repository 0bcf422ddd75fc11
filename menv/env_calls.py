"""Calls to an environment of the gymnasium kind, and how messages name what came back.

Adapters, wrappers and checks share it. It knows neither rows nor episodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import gymnasium as gym
import numpy as np

from menv.errors import ConfigError, ContractError
from menv.fault import no_exit
from menv.nested import own_copy

OR_MANY_AGENTS = (
    ", or derive a class of several agents, whose steps return dicts by agent, from menv.MultiAgentEnv instead of "
    "gymnasium.Env (menv.wrappers.MultiAgentGym wraps one with a Tuple, a list or a Dict of spaces)"
)
"""Ends messages about a `gymnasium.Env` that may not know that it is one for a single agent."""

_WEIGHTED = (
    " (of several objectives their weighted sum, as LinearizeReward of momaland or LinearReward of MO-Gymnasium makes "
    "it)"
)


def reset_env(
    env: Any, index: int | str, seed: int | None = None, options: dict[str, Any] | None = None
) -> tuple[Any, Any]:
    """Reset an environment and return `(obs, info)`; it may raise anything.

    Args:
        env: Is given nothing where nothing is asked for, unless its `reset` wants both.
        index: What messages call it.
        seed: Of the episode.
        options: Likewise.

    Raises:
        ContractError: Its `reset` takes or returns something else, as one of the old gym API does.
    """
    both = {"seed": seed, "options": options}
    # Where nothing is asked for, one that has neither will do, and so will one that has both without defaults.
    for asked in (both,) if seed is not None or options is not None else ({}, both):
        try:
            result = env.reset(**asked)
            break
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            if asked is both:
                raise ContractError(
                    f"env {index} reset: {error}, expected reset(self, *, seed=None, options=None); "
                    "declare both parameters, or wrap an environment of the old gym API in menv.wrappers.LegacyGym"
                ) from error
    if not isinstance(result, tuple) or len(result) != 2:
        old = ", or wrap an environment of the old gym API in menv.wrappers.LegacyGym"
        raise ContractError(
            f"env {index} reset: returned {how_many(result)}, expected (obs, info); "
            f"return both from reset{'' if result is None else old}"
        )
    return result


def many_agents(env: Any, obs: Any = None) -> str | None:
    """Return why a `gymnasium.Env` seems to be one of several agents, None of one agent.

    Args:
        env: The environment.
        obs: What its reset returned, if there was one.
    """
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        each = space.values() if isinstance(space, dict) else space if isinstance(space, list | tuple) else ()
        several = bool(each) and all(isinstance(one, gym.Space) for one in each)
        if several or (callable(space) and not isinstance(space, type)):
            return f"the environment's {name.replace('_', ' ')} is {type(space).__name__}"
        by_agent = getattr(env.unwrapped, f"{name}s", None)
        if space is None and (callable(by_agent) or isinstance(by_agent, Mapping)):
            return f"the environment has {name}s and no {name}"
    space = getattr(env, "observation_space", None)
    if isinstance(obs, dict) and space is not None and not isinstance(space, gym.spaces.Dict):
        return f"reset returned a dict of {sorted(map(repr, obs))[:8]} for its observation space {space}"
    return None


def close_env(env: Any) -> None:
    """Close an environment, if it can be closed.

    Raises:
        EnvCrashError: It called `sys.exit()`.
    """
    close = getattr(env, "close", None)
    if close is not None:
        with no_exit(f"{type(env).__name__}.close"):
            close()


def close_unused(env: Any) -> None:
    """Close an environment that was never reset; many cannot be closed then, and there is nothing to free.

    Raises:
        EnvCrashError: It called `sys.exit()`.
    """
    with no_exit(f"{type(env).__name__}.close"), suppress(Exception):
        env.close()


def close_all(envs: Iterable[Any]) -> None:
    """Close environments one after another, also past those that raise, and raise what the last of these did."""
    with ExitStack() as closing:
        for env in reversed([*envs]):
            closing.callback(close_env, env)


def as_flag(flag: Any, whose: str, fix: str = "return one flag") -> bool:
    """Return a flag that an environment has set as a truth value.

    Args:
        flag: What the environment returned; arrays of one element will do.
        whose: Begins the message, such as "env 3 step: terminated".
        fix: Ends it.

    Raises:
        ContractError: It is None, a text, a container, or an array of several: `[False, False]` is true.
    """
    if isinstance(flag, bool):
        return flag
    if flag is not None and not isinstance(flag, str | bytes | list | tuple | dict | set):
        try:
            return bool(flag)
        except (ValueError, RuntimeError, TypeError):
            pass
    raise ContractError(f"{whose} is {type(flag).__name__}, expected True or False; {fix}")


def last_obs(obs: Any, where: str) -> Any:
    """Return a copy of the last observation of an environment of one agent, which always has one.

    Raises:
        ContractError: It is None; `where` begins the message.
    """
    if obs is None:
        raise ContractError(
            f"{where}: the last observation is None, expected an element of the observation space; return it together "
            "with terminated or truncated"
        )
    return own_copy(obs)


def as_reward(reward: Any, whose: str, otherwise: str = "") -> float:
    """Return a reward as a float.

    Args:
        reward: What the environment paid.
        whose: Begins the message, such as "env 3 step: the reward of 'car_1'".
        otherwise: Ends it where the reward is no number, with what may be done beside returning one.

    Raises:
        ContractError: It is no number, or not a finite one.
    """
    if isinstance(reward, float) and math.isfinite(reward):
        return float(reward)
    number, shape, size = None, (), 1
    try:
        one = np.asarray(reward)
        shape, size = one.shape, one.size
        # Texts would be read as numbers, and None as NaN.
        if one.dtype.kind in "fiubO" and reward is not None:
            number = float(one.astype(np.float64).reshape(()))
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError, RuntimeError):
        pass
    if number is None:
        got = f"{type(reward).__name__} of shape {shape}" if shape else type(reward).__name__
        weighted = _WEIGHTED if size > 1 else ""
        raise ContractError(f"{whose} is {got}, expected a number; return a float{weighted}{otherwise}")
    if not math.isfinite(number):
        raise ContractError(f"{whose} is {number}, expected a finite number; look for a division by zero")
    return number


def how_many(result: Any) -> str:
    """Describe a return value by how many values it has."""
    if result is None:
        return "None (is a `return` missing?)"
    several = isinstance(result, tuple | list)
    return f"{len(result)} values" if several else f"a single {type(result).__name__}"


def call_method(env: Any, name: str, env_id: Any, args: Sequence[Any]) -> Any:
    """Return what a method of a sub-environment returns, also one of an environment that gymnasium's wrappers hide.

    Raises:
        ConfigError: It has no such method.
        EnvCrashError: It called `sys.exit()`.
    """
    if not isinstance(name, str):
        raise ConfigError(
            f"call: the method of env {env_id} is {type(name).__name__}, expected the name of one of its methods, "
            "because it may live in another process; pass that, such as 'set_task', and the arguments behind it"
        )
    found = getattr(env, name, None) or getattr(getattr(env, "unwrapped", None), name, None)
    if not callable(found):
        raise ConfigError(
            f"call: env {env_id} is a {type(getattr(env, 'unwrapped', env)).__name__} and has no method {name!r}, "
            "expected the name of one of its methods; check the spelling"
        )
    with no_exit(f"call: env {env_id}, {name}"):
        return found(*args)
