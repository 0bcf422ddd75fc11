"""What `MultiAgentEnv.step` must return, looked at where it is not the usual thing; a roster calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from menv.base_env import ALL, AgentId
from menv.env_calls import as_flag, how_many
from menv.errors import ContractError

_LASTING = frozenset((bool, int, float, np.bool_, np.int64, np.float32, np.float64))
_NAMES = ("obs", "rewards", "terminateds", "truncateds", "infos")


def five_dicts(result: Any, wrong: Callable[..., ContractError]) -> tuple[Any, Any, Any, Any, Any]:
    """Return the five dicts of a step once they have the right shape.

    Args:
        result: What the step returned.
        wrong: Makes an error of a method's name, what came and what was expected.

    Raises:
        ContractError: They have another one.
    """
    if not isinstance(result, tuple | list) or len(result) != 5:
        raise wrong(
            "step", f"returned {how_many(result)}", "(obs, rewards, terminateds, truncateds, infos)",
            "return all five from step" if result is None else
            "split the old `dones` into terminateds and truncateds, or wrap the environment in "
            "menv.wrappers.LegacyGym",
        )  # fmt: skip
    obs, rewards, terminateds, truncateds, infos = result
    # Each is a dict, or a subclass of one: cheaper than asking five times in the usual case.
    if not type(obs) is type(rewards) is type(terminateds) is type(truncateds) is type(infos) is dict:
        for name, part in zip(_NAMES, result, strict=True):
            if not isinstance(part, dict):
                raise wrong("step", f"{name} is {type(part).__name__}", "a dict keyed by agent id")
    if ALL not in terminateds or ALL not in truncateds:
        name = "terminateds" if ALL not in terminateds else "truncateds"
        raise wrong("step", f"{name} has no {ALL!r}", f"{ALL!r}: True where the episode ends for everyone")
    if ALL in obs or ALL in rewards:
        raise wrong("step", f"{ALL!r} is among obs or rewards", "agent ids only")
    return obs, rewards, terminateds, truncateds, infos


def flag_of(flags: Mapping[AgentId, Any], agent: AgentId, where: Callable[[str], str]) -> bool:
    """Return whether an agent's flag is set, or that of all.

    Args:
        flags: One of the two dicts of flags.
        agent: Whose; without one it is not set.
        where: Makes the beginning of a message of the method's name.

    Raises:
        ContractError: It is no truth value.
    """
    flag = flags.get(agent)
    if flag is None or flag is True or flag is False:
        return bool(flag)
    return as_flag(flag, f"{where('step')}: the flag of {agent!r}")


def refuse_none(flags: Mapping[AgentId, Any], where: Callable[[str], str]) -> None:
    """Refuse a flag that is None, which a function without a `return` gives; arguments as for `any_set`."""
    for agent, flag in flags.items():
        if flag is None:
            as_flag(flag, f"{where('step')}: the flag of {agent!r}")


def lasting(values: Mapping[AgentId, Any]) -> dict[AgentId, Any] | None:
    """Return a copy of flags or rewards, None where the environment could still change what is in it.

    Views of an array and tensors of one element are such: what they hold by then is not what they held.
    """
    return dict(values) if _LASTING.issuperset(map(type, values.values())) else None


def any_set(flags: Mapping[AgentId, Any], where: Callable[[str], str]) -> bool:
    """Return whether a flag is set.

    Args:
        flags: One of the two dicts of flags.
        where: As for `flag_of`.

    Raises:
        ContractError: One is an array of several.
    """
    try:
        return any(flags.values())
    except (ValueError, RuntimeError):
        # An array or a tensor of several; the look at each of them names it.
        return any(flag_of(flags, agent, where) for agent in flags)
