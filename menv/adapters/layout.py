"""The agents that wait together in one sub-environment, and their slots.

`roster` makes layouts, and keeps those that come again; adapters join them into the rows of a poll.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from menv.base_env import AgentId, IntArray

_NO_INFO: Mapping[str, Any] = {}


class Layout:
    """The agents that wait together, in the environment's order, and their slots.

    Attributes:
        agents: Who waits.
        slots: [R] theirs; `slot_list` and `slot_bytes` are the same.
        no_rewards: R zeros.
        no_infos: R empty infos.
        checked_at: When a roster last looked whether they all live.
        no_terminateds: What a step that ended nobody's life said of ends when these agents had acted, None before one.
        no_truncateds: Likewise.
        empty_infos: The infos, likewise, where they said nothing.
        no_pay: The rewards, likewise, where nobody was paid.
    """

    __slots__ = (
        "agents", "checked_at", "empty_infos", "no_infos", "no_pay", "no_rewards", "no_terminateds", "no_truncateds",
        "slot_bytes", "slot_list", "slots",
    )  # fmt: skip

    def __init__(self, agents: list[AgentId], slots: IntArray) -> None:
        self.agents = agents
        self.slots = slots
        self.slot_list: list[int] = slots.tolist()
        self.slot_bytes = slots.tobytes()
        self.no_rewards = [0.0] * len(agents)
        self.no_infos: list[Mapping[str, Any]] = [_NO_INFO] * len(agents)
        self.checked_at = -1
        self.no_terminateds: Mapping[AgentId, Any] | None = None
        self.no_truncateds: Mapping[AgentId, Any] | None = None
        self.empty_infos: Mapping[AgentId, Any] | None = None
        self.no_pay: Mapping[AgentId, Any] | None = None


def join_slots(layouts: list[Layout]) -> IntArray:
    """Return the slots of all layouts, one after the other."""
    # A third of what it takes to join lists, or a concatenation of arrays.
    return np.frombuffer(b"".join([layout.slot_bytes for layout in layouts]), np.int64)
