"""Calls of environments: `reset`, `close` and a user's own methods, and checks of what they return.

Adapters, wrappers and vector environments share them, so that the same fault of an environment has the same message
everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError, ContractError
from menv.spaces import own_copy

OR_MANY_AGENTS = (
    ", or derive a class of several agents, whose steps return dicts by agent, from menv.MultiAgentEnv instead of "
    "gymnasium.Env (menv.wrappers.MultiAgentGym wraps one with Tuple spaces)"
)
"""Ends messages about a `gymnasium.Env` that may be meant for several agents."""

_WEIGHTED = (
    " (of several objectives their weighted sum, as LinearizeReward of momaland or LinearReward of MO-Gymnasium makes "
    "it)"
)


def reset_env(
    env: Any, index: int | str, seed: int | None = None, options: dict[str, Any] | None = None
) -> tuple[Any, Any]:
    """Reset an environment and return `(obs, info)`.

    No arguments are passed if both are None, unless its `reset` requires them. `index` names the environment in
    messages.

    Raises:
        ContractError: Its `reset` accepts or returns something else, as in the old gym API.
    """
    both = {"seed": seed, "options": options}
    # Without seed and options, a `reset` without parameters is fine, and so is one without defaults.
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
                    "declare both parameters, or wrap an environment of the old gym API in menv.wrappers.LegacyGym",
                    "ME010",
                ) from error
    obs, info = returned(result, 2, f"env {index} reset")
    return obs, info


def state_row(env: Any) -> npt.NDArray[np.float32]:
    """Return a copy of the state of a `MultiAgentEnv` as one row."""
    return np.array(env.state(), np.float32).reshape(-1)


def state_rows(env: Any, finals: Mapping[str, Any] | None = None) -> npt.NDArray[np.float32]:
    """Return copies of the states [E, S] of the worlds of a `VectorMultiAgentEnv`, the last ones of the infos `finals`.

    Raises:
        ContractError: The infos have no last states.
    """
    if finals is not None and finals.get("final_state") is None:
        raise ContractError(
            f"{type(env).__name__}.step: worlds were reset and infos['final_state'] is missing, expected their last "
            "states; put what state() returned before the reset there"
        )
    found: Any = env.state() if finals is None else finals["final_state"]
    array = found.numpy(force=True) if hasattr(found, "detach") else found
    return np.array(array, np.float32).reshape(env.num_envs, -1)


def state_space(env: Any) -> gym.spaces.Box | None:
    """Return the space of the state of one environment or world as a row; None if it has no state."""
    if not callable(env.state):
        return None
    try:
        found = env.state()
    except NotImplementedError:
        return None
    except Exception:
        # Most know their state only after a reset.
        env.reset()
        found = env.state()
    size = int(np.prod(np.shape(found))) // getattr(env, "num_envs", 1)
    return gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)


def many_agents(env: Any, obs: object = None) -> str | None:
    """Return why a `gymnasium.Env` seems to have several agents, else None; `obs` is what its reset returned."""
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


def close_env(env: object) -> None:
    """Close an environment if it has a `close`."""
    close = getattr(env, "close", None)
    if close is not None:
        close()


def close_unused(env: Any) -> None:
    """Close an environment that was never reset and ignore its errors: many cannot be closed then."""
    with suppress(Exception):
        env.close()


def close_all(envs: Iterable[Any]) -> None:
    """Close all environments, and raise the last error only afterwards."""
    with ExitStack() as closing:
        for env in reversed([*envs]):
            closing.callback(close_env, env)


def as_flag(flag: object, whose: str, fix: str = "return one flag") -> bool:
    """Return an environment's flag as a bool; arrays of one element are accepted.

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
    raise ContractError(f"{whose} is {type(flag).__name__}, expected True or False; {fix}", "ME024")


def last_obs(obs: object, where: str) -> Any:
    """Return a copy of the final observation of a single-agent environment.

    Raises:
        ContractError: It is None; `where` begins the message.
    """
    if obs is None:
        raise ContractError(
            f"{where}: the last observation is None, expected an element of the observation space; return it together "
            "with terminated or truncated",
            "ME030",
        )
    return own_copy(obs)


def as_reward(reward: object, whose: str, otherwise: str = "") -> float:
    """Return a reward as a float.

    Args:
        reward: The environment's reward.
        whose: Begins the message, such as "env 3 step: the reward of 'car_1'".
        otherwise: Ends it if the reward is not a number, with an alternative to returning one.

    Raises:
        ContractError: It is not a finite number.
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
        raise ContractError(
            f"{whose} is {got}, expected a number; return a float{weighted}{otherwise}", "ME025"
        )
    if not math.isfinite(number):
        raise ContractError(
            f"{whose} is {number}, expected a finite number; look for a division by zero", "ME026"
        )
    return number


_RETURNED: Mapping[int, tuple[str, str, str]] = {
    2: ("(obs, info)", "return both from reset", "ME011"),
    5: (
        "(obs, reward, terminated, truncated, info)",
        "return all five from step, and split the old `done` into terminated and truncated",
        "ME020",
    ),
}
"""What reset and step return, the advice if they do not, and the code of the finding."""


def returned(result: object, number: int, where: str, expected: str = "", fix: str = "") -> Any:
    """Return what an environment's method returned: 2 values of a reset, a tuple, or 5 of a step, a tuple or a list.

    Raises a ContractError for anything else. `where` begins its message; `expected` and `fix` replace the
    texts for gymnasium's methods.
    """
    if isinstance(result, tuple if number == 2 else tuple | list) and len(result) == number:
        return result
    usual, advice, finding = _RETURNED[number]
    old = "" if result is None else ", or wrap an environment of the old gym API in menv.wrappers.LegacyGym"
    raise ContractError(
        f"{where}: returned {how_many(result)}, expected {expected or usual}; {fix or advice + old}", finding
    )


def how_many(result: Any) -> str:
    """Describe a return value by its number of values."""
    if result is None:
        return "None (is a `return` missing?)"
    several = isinstance(result, tuple | list)
    return f"{len(result)} values" if several else f"a single {type(result).__name__}"


def call_method(env: object, name: str, env_id: object, args: Sequence[Any]) -> Any:
    """Call a method of a sub-environment, looking through gymnasium's wrappers, and return its result.

    Raises:
        ConfigError: It has no such method.
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
    return found(*args)
