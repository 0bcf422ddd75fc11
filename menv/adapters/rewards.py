"""Rewards as environments pay them, as the float64 that everybody reckons with.

Every adapter asks it, for all rows of a poll at once. It knows no episodes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from menv.base_env import FloatArray
from menv.env_calls import as_reward

if TYPE_CHECKING:
    from menv.adapters.roster import Roster

_FLOAT64 = np.dtype(np.float64)
_NONE = np.zeros((0, 0))


def as_rewards(rewards: Any, whose: Callable[[], Iterable[str]], otherwise: str = "") -> FloatArray:
    """Return R rewards as [R] float64.

    Args:
        rewards: A list or an array.
        whose: Asked only if one needs a look of its own; gives what begins the message about each.
        otherwise: What may be done about one that is no number beside returning one.

    Raises:
        ContractError: One is not a finite number; it names whose.
    """
    try:
        # No dtype is asked for: texts would be read as numbers.
        numbers = np.asarray(rewards)
    except (TypeError, ValueError, RuntimeError):
        numbers = _NONE
    if numbers.dtype is not _FLOAT64 and numbers.dtype.kind in "fiub":
        numbers = numbers.astype(_FLOAT64)
    # The sum of their squares is finite only if each is: one product instead of a look at every reward.
    if numbers.ndim == 1 and numbers.dtype is _FLOAT64 and math.isfinite(numbers.dot(numbers)):
        return numbers
    return np.array([as_reward(*each, otherwise) for each in zip(rewards, whose(), strict=False)], np.float64)


def of_envs(where: str) -> Iterator[str]:
    """Yield what begins messages about rewards of sub-environments, as many as there may be.

    Args:
        where: The method that returned them.
    """
    return (f"{where}: the reward of env {index}" for index in itertools.count())


def of_rosters(rosters: Iterable[Roster]) -> Iterator[str]:
    """Yield what begins the message about the reward of each row of some rosters."""
    for roster in rosters:
        yield from map(roster.whose, roster.waiting.agents)
