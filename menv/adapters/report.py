"""What happened between two polls besides the rows; filled by the adapters, handed out in `Ready`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from menv.base_env import End, EpisodeEnd, Join, Unclaimed


@dataclass(slots=True)
class Report:
    """The lists of one `Ready`, in the order in which they are to be taken in."""

    ended: list[End] = field(default_factory=list)
    unclaimed: list[Unclaimed] = field(default_factory=list)
    episodes: list[EpisodeEnd] = field(default_factory=list)
    joined: list[Join] = field(default_factory=list)


def own_copy(element: Any) -> Any:
    """Return a copy of an observation that its environment cannot change any more."""
    if isinstance(element, np.ndarray):
        return element.copy()
    if isinstance(element, dict):
        return {key: own_copy(value) for key, value in element.items()}
    if isinstance(element, tuple | list):
        return type(element)(own_copy(value) for value in element)
    return element
