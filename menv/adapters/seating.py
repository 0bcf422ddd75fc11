"""The slots of the agents of one sub-environment, and the layouts in which they have waited.

A `Roster` keeps one. Slots of agents that are gone are kept for their return, so that layouts stay the same objects. It
knows neither lives nor rewards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from menv.adapters.layout import Layout
from menv.adapters.slot_pool import SlotPool
from menv.base_env import COMMON, AgentId, EnvId
from menv.errors import ContractError

_KEPT_SLOTS = 256
_KEPT_LAYOUTS = 256


class Seating:
    """Who has which slot.

    Args:
        env_id: Of the sub-environment.
        pool: Where slots come from.

    Attributes:
        slots: The slot of each agent that has one, in the order of first use.
        layouts: By the agents that wait, in the environment's order; it stays the same dict.
    """

    def __init__(self, env_id: EnvId, pool: SlotPool) -> None:
        self.slots: dict[AgentId, int] = {}
        self.layouts: dict[tuple[AgentId, ...], Layout] = {}
        self._env_id = env_id
        self._pool = pool

    @property
    def crowded(self) -> bool:
        """Whether so many agents have a slot that those who are gone had better give theirs back."""
        return len(self.slots) > _KEPT_SLOTS

    def new_layout(self, agents: tuple[AgentId, ...]) -> Layout:
        """Give each agent a slot and remember the layout.

        Raises:
            ContractError: One has the name under which infos of everybody are given.
        """
        if COMMON in agents:
            raise ContractError(
                f"env {self._env_id}: an agent is called {COMMON!r}, expected another name: infos under it are of the "
                "whole environment; rename the agent"
            )
        if len(self.layouts) >= _KEPT_LAYOUTS:
            self.layouts.clear()
        for agent in agents:
            if agent not in self.slots:
                self.slots[agent] = self._pool.take(self._env_id, agent)
        layout = Layout(list(agents), np.array([self.slots[agent] for agent in agents], np.int64))
        self.layouts[agents] = layout
        return layout

    def release(self, agents: Iterable[AgentId]) -> None:
        """Free the slots of agents."""
        for agent in agents:
            self._pool.free.append(self.slots.pop(agent))
            self.layouts.clear()

    def release_all_but(self, agents: Collection[AgentId]) -> None:
        """Free the slots of all who are not among some agents."""
        self.release([agent for agent in self.slots if agent not in agents])

    def move(self, env_id: EnvId) -> None:
        """Stand for another sub-environment from now on; agents keep their slots."""
        self._env_id = env_id
        for agent, slot in self.slots.items():
            self._pool.seats[slot] = env_id, agent
