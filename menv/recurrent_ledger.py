"""The ledger of policies that remember: beside what happened it keeps each trajectory's recurrent state.

`menv.loop.cohort` asks it for the states of the rows that are answered and hands in those that come after. A state
belongs to one life of one agent: it is zero when the trajectory begins and survives the cut of a fragment.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.ledger import Ledger, Rows
from menv.sample_batch import SampleBatch
from menv.segments import Column
from menv.trajectories import Trajectories

States = npt.NDArray[np.float32]

_STATE = "state"


class RecurrentLedger(Ledger):
    """A `Ledger` with the columns `state_in_0`, `state_in_1` and so on: the state before each row.

    Args:
        obs_size: See `Ledger`; so are the next five.
        mask_width: M.
        action_shape: Of one action.
        action_dtype: Of actions.
        inputs_width: D.
        obs_dtype: Of observations.
        state_sizes: Numbers in each part of the state; S together.
    """

    def __init__(
        self,
        obs_size: int,
        mask_width: int,
        action_shape: tuple[int, ...],
        action_dtype: npt.DTypeLike,
        inputs_width: int,
        obs_dtype: npt.DTypeLike,
        state_sizes: tuple[int, ...],
    ) -> None:
        super().__init__(obs_size, mask_width, action_shape, action_dtype, inputs_width, obs_dtype)
        rows = len(self._columns["slots"])
        bounds = [0, *accumulate(state_sizes)]
        self._parts = {
            SampleBatch.STATE_IN.format(number): slice(bounds[number], bounds[number + 1])
            for number in range(len(state_sizes))
        }
        for name, part in self._parts.items():
            self._columns[name] = np.zeros((rows, part.stop - part.start), np.float32)
        self._released = (*self._released, *self._parts)
        self._states: States = np.zeros((64, bounds[-1]), np.float32)

    def start(self, start: tuple[int, ...], agent_id: Any) -> None:
        """Begin a trajectory, with nothing to remember."""
        super().start(start, agent_id)
        slot = start[0]
        while slot >= len(self._states):
            self._states = np.concatenate((self._states, np.zeros_like(self._states)))
        self._states[slot] = 0.0

    def held(self) -> tuple[Trajectories, dict[str, Column]]:
        """Return what goes on, the state before the next row among the columns; see `Ledger.held`."""
        living, columns = super().held()
        return living, {**columns, _STATE: self._states[living.slot]}

    def take_up(self, living: Trajectories, columns: Mapping[str, Column]) -> None:
        """Go on with trajectories of another ledger; see `Ledger.take_up`."""
        super().take_up(living, {name: column for name, column in columns.items() if name != _STATE})
        while len(living.slot) and living.slot.max() >= len(self._states):
            self._states = np.concatenate((self._states, np.zeros_like(self._states)))
        self._states[living.slot] = columns[_STATE]

    def states(self, slots: Column) -> States:
        """Return the [R, S] states of the trajectories that have these slots [R]; copies."""
        states: States = self._states.take(slots, axis=0)
        return states

    def states_at(self, rows: Rows) -> States:
        """Return the [R, S] states before rows that have been answered."""
        return np.concatenate([self._columns[name][rows] for name in self._parts], 1)

    def remember(self, rows: Rows, slots: Column, before: States, after: States) -> None:
        """Write down the states [R, S] before and after rows that are answered, of the trajectories `slots` [R]."""
        for name, part in self._parts.items():
            self._columns[name][rows] = before[:, part]
        self._states[slots] = after
