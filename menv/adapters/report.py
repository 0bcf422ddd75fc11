"""What happened between two polls besides the rows; filled by the adapters, handed out in `Ready`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from menv.base_env import AgentId, End, EpisodeEnd, FloatArray, Join, Unclaimed
from menv.errors import ContractError
from menv.fault import Fault

_EMPTY: Mapping[str, Any] = {}


@dataclass(slots=True)
class Report:
    """The lists of one `Ready`, in the order in which they are to be taken in."""

    ended: list[End] = field(default_factory=list)
    unclaimed: list[Unclaimed] = field(default_factory=list)
    episodes: list[EpisodeEnd] = field(default_factory=list)
    joined: list[Join] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def own_copy(element: Any) -> Any:
    """Return a copy of an observation that its environment cannot change any more."""
    if isinstance(element, np.ndarray):
        return element.copy()
    if isinstance(element, dict):
        return {
            key: value.copy() if type(value) is np.ndarray else own_copy(value)
            for key, value in element.items()
        }
    if isinstance(element, tuple | list):
        # A named tuple takes its values one by one.
        make = getattr(type(element), "_make", type(element))
        return make(own_copy(value) for value in element)
    return element


def all_empty(infos: Mapping[AgentId, Any]) -> bool:
    """Return whether nobody's info says anything."""
    try:
        return [*infos.values()].count(_EMPTY) == len(infos)
    except ValueError:
        # An array in the place of an info.
        return False


def check_info(info: Any, whose: str) -> None:
    """Refuse an info that is no dict.

    Args:
        info: What the environment returned; a subclass of dict will do.
        whose: Begins the message, such as "env 3 step".

    Raises:
        ContractError: It is something else.
    """
    if not isinstance(info, dict):
        raise ContractError(
            f"{whose}: info is {type(info).__name__}, expected a dict; return {{}} if there is nothing to tell"
        )


def finite(reward: Any, whose: str) -> float:
    """Return a reward as a float.

    Args:
        reward: What the environment paid.
        whose: Begins the message, such as "env 3 step: the reward of 'car_1'".

    Raises:
        ContractError: It is no number, or not a finite one.
    """
    if isinstance(reward, float) and math.isfinite(reward):
        return float(reward)
    number, shape = None, ()
    try:
        one = np.asarray(reward)
        shape = one.shape
        # Texts would be read as numbers, and None as NaN.
        if one.dtype.kind in "fiubO" and reward is not None:
            number = float(one.astype(np.float64).reshape(()))
    except (TypeError, ValueError):
        pass
    if number is None:
        got = f"{type(reward).__name__} of shape {shape}" if shape else type(reward).__name__
        raise ContractError(f"{whose} is {got}, expected a number; return a float")
    if not math.isfinite(number):
        raise ContractError(f"{whose} is {number}, expected a finite number; look for a division by zero")
    return number


def as_rewards(rewards: Any, num_envs: int, where: str) -> FloatArray:
    """Return [E] float64 rewards.

    Raises:
        ContractError: There are not E of them, or one is not a finite number; it names whose.
    """
    try:
        # No dtype is asked for: texts would be read as numbers.
        numbers = np.asarray(rewards)
    except (TypeError, ValueError):
        numbers = np.zeros((0, 0))
    known = numbers.shape == (num_envs,) and numbers.dtype.kind in "fiub"
    # The sum is finite if each is: one reduction instead of a look at every reward.
    if known and math.isfinite(np.add.reduce(numbers)):
        return numbers.astype(np.float64, copy=False)
    if len(rewards) != num_envs:
        raise ContractError(
            f"{where}: returned {len(rewards)} rewards, expected {num_envs}, one for each sub-environment; "
            "return all of them"
        )
    return np.array(
        [finite(reward, f"{where}: the reward of env {index}") for index, reward in enumerate(rewards)]
    )
