"""What was seen in a play, so that two plays can be compared.

The probes of seeds and of ownership write transcripts. Infos are left out: they may hold times.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from menv.checking.report import Broken
from menv.checking.stage import Turn
from menv.nested import own_copy


class Entry(NamedTuple):
    """One turn, copied.

    Attributes:
        env_steps: Env steps since the beginning of the play.
        acting: Who waits, in order.
        obs: Everything that was shown.
        rewards: As they came.
        flags: As they came.
        broken: What was raised instead, None if nothing was.
    """

    env_steps: int
    acting: Any
    obs: Any
    rewards: Any = None
    flags: Any = None
    broken: Broken | None = None

    @property
    def raised(self) -> str:
        """What was raised, "" if nothing was."""
        return self.broken.message if self.broken is not None else ""


def entry_of(turn: Turn, env_steps: int) -> Entry:
    """Return a turn as it is now, whatever happens to its arrays."""
    return Entry(
        env_steps, list(turn.waiting), own_copy(turn.shown), own_copy(turn.rewards), own_copy(turn.flags)
    )


def first_difference(one: list[Entry], other: list[Entry]) -> tuple[int, str] | None:
    """Return env step and subject of the first difference, None if there is none."""
    for mine, theirs in zip(one, other, strict=False):
        if theirs.raised or mine.raised:
            if theirs.raised != mine.raised:
                return mine.env_steps, f"in one of them {theirs.raised or mine.raised}"
            continue
        for name in ("acting", "obs", "rewards", "flags"):
            if not same(getattr(mine, name), getattr(theirs, name)):
                return mine.env_steps, f"{'those who act' if name == 'acting' else name} differ"
    if len(one) != len(other):
        return min(one[-1:] + other[-1:])[0], "their lengths differ"
    return None


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal to the last bit; NaN equals NaN."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, tuple | list):
        return isinstance(other, tuple | list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic) or isinstance(other, np.ndarray | np.generic):
        return _same_arrays(np.asarray(one), np.asarray(other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    try:
        return bool(one == other)
    except Exception:  # values of the environment's own that do not compare
        return True


def _same_arrays(one: Any, other: Any) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
