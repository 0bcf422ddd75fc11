"""Slots: the small integers that stand for a trajectory while it lives.

Shared by all sub-environments of one adapter. It knows nothing about who sits on a slot beyond the
pair `(env_id, agent_id)` that error messages and dict views print.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from menv.base_env import AgentId, EnvId


class SlotPool:
    """Gives out freed slots before new ones, so that arrays indexed by slot stay short.

    Attributes:
        seats: `seats[slot]` is the `(env_id, agent_id)` that has, or had last, the slot.
    """

    def __init__(self) -> None:
        self.seats: list[tuple[EnvId, AgentId]] = []
        # The slots that were given back, in the order in which they were.
        self.free: list[int] = []

    def take(self, env_id: EnvId, agent_id: AgentId) -> int:
        """Return a slot for an agent."""
        if self.free:
            slot = self.free.pop()
            self.seats[slot] = (env_id, agent_id)
            return slot
        self.seats.append((env_id, agent_id))
        return len(self.seats) - 1

    def put(self, state: tuple[Sequence[tuple[EnvId, AgentId]], Sequence[int]]) -> None:
        """Take over the seats and the free slots of another pool."""
        self.seats[:], self.free[:] = state

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Undo afterwards whatever was taken and given back."""
        before = list(self.seats), list(self.free)
        try:
            yield
        finally:
            self.put(before)
