"""Arrays by slot: which cohort and policy answer, whose sub-environment it is, what was earned.

Only the parts of a `menv.loop.sampler` write it. Looking up R rows is one fancy index a column; rows that wait
again and again cost nothing, because their look-ups are cached by the identity of the slots array.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from menv.draws import Keys


class Seat(NamedTuple):
    """What is looked up for a slot.

    Attributes:
        cohort: Index of the cohort.
        policy: Index of the policy in its cohort.
        env_index: Index of the sub-environment.
        key: Key of the agent's random draws.
    """

    cohort: int
    policy: int
    env_index: int
    key: int


class SlotTable:
    """The seats and the running returns; columns have room for more slots than there are.

    Attributes:
        cohorts: [slots] index of the cohort that answers.
        policies: [slots] index of the policy in its cohort.
        env_indices: [slots] index of the sub-environment.
        keys: [slots] key of the agent's random draws.
        returns: [slots] what the life has earned so far.
        version: Grows whenever a seat changes; look-ups of an older version are stale.
        used: Slots up to the highest that was ever in use.
    """

    def __init__(self) -> None:
        self.version = 0
        self.used = 0
        self.cohorts: npt.NDArray[np.int64] = np.zeros(64, np.int64)
        self.policies: npt.NDArray[np.int64] = np.zeros(64, np.int64)
        self.env_indices: npt.NDArray[np.int64] = np.zeros(64, np.int64)
        self.keys: Keys = np.zeros(64, np.uint64)
        self.returns: npt.NDArray[np.float64] = np.zeros(64, np.float64)
        self._seats: list[Seat | None] = [None] * 64

    def seat(self, slot: int) -> Seat:
        """Return what stands for a slot that is in use."""
        seat = self._seats[slot]
        assert seat is not None
        return seat

    def sit(self, slot: int, cohort: int, policy: int, env_index: int, key: int) -> None:
        """Begin a life on a slot; its return starts at 0."""
        while slot >= len(self._seats):
            self._grow()
        self.returns[slot] = 0.0
        # As a rule the same agent begins its next life on the slot.
        if self._seats[slot] == (cohort, policy, env_index, key):
            return
        seat = self._seats[slot] = Seat(cohort, policy, env_index, key)
        self.version += 1
        self.used = max(self.used, slot + 1)
        self.cohorts[slot], self.policies[slot], self.env_indices[slot] = seat[:3]
        self.keys[slot] = seat.key

    def _grow(self) -> None:
        self._seats.extend([None] * len(self._seats))
        for name in ("cohorts", "policies", "env_indices", "keys", "returns"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.zeros_like(column))))
