"""The agents that wait together in one sub-environment, and their slots.

`roster` makes layouts, and keeps those that come again; adapters join them into the rows of a poll.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from menv.base_env import AgentId, IntArray

_NO_INFO: Mapping[str, Any] = {}


class Layout:
    """The agents that wait together, in the environment's order, and their slots."""

    __slots__ = ("agents", "checked_at", "no_infos", "no_rewards", "slot_list", "slots")

    def __init__(self, agents: list[AgentId], slots: IntArray) -> None:
        self.agents = agents
        self.slots = slots
        self.slot_list: list[int] = slots.tolist()
        self.no_rewards = [0.0] * len(agents)
        self.no_infos: list[Mapping[str, Any]] = [_NO_INFO] * len(agents)
        self.checked_at = -1


def join_slots(layouts: list[Layout]) -> IntArray:
    """Return the slots of all layouts, one after the other."""
    if not layouts:
        return np.zeros(0, np.int64)
    # A concatenation costs as much per array as a handful of integers.
    if sum([len(layout.agents) for layout in layouts]) > 4 * len(layouts):
        return np.concatenate([layout.slots for layout in layouts])
    return np.array(list(chain.from_iterable([layout.slot_list for layout in layouts])), np.int64)
