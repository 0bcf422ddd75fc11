"""Framed: what answers whole frames with one policy's network, and writes them down.

`menv.loop.frame_loop` and `menv.loop.copies_loop` go round with it. It knows no environments: who steps, when a
fragment is full and what episodes are is theirs to know.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from menv.acting.backend import Steady
from menv.base_env import SINGLE_AGENT
from menv.frame import Frame
from menv.frame_ledger import FrameLedger
from menv.loop.cohort import outside
from menv.loop.net_cohort import NetCohort
from menv.loop.noise import AHEAD
from menv.loop.slot_table import SlotTable
from menv.loop.times import Times
from menv.segments import Column
from menv.spaces import OutsideSpaceError


class Framed:
    """What answers whole frames with one policy, and writes them down.

    Attributes:
        env_steps: [E] env steps of each sub-environment so far.
    """

    def __init__(
        self,
        env_steps: Column,
        cohort: NetCohort,
        policy: int,
        table: SlotTable,
        ledger: FrameLedger,
        times: Times,
    ) -> None:
        """Begin where `ledger` stands.

        Args:
            env_steps: [E] env steps of each sub-environment, the very array that counts them.
            cohort: Whose network answers.
            policy: Index of the policy in it.
            table: Holds the keys of the draws.
            ledger: The cohort's.
            times: Told of what environments and the network take.
        """
        self.env_steps = env_steps
        self._cohort = cohort
        self._policy = policy
        self._table = table
        self._ledger = ledger
        self._times = times
        # Where the last frame is.
        self._rows = slice(0, ledger.rows)
        # Frames since draws were made ahead.
        self._since = AHEAD
        # Answers the fragment that is under way.
        self._steady: Steady
        self._explore = True

    @property
    def fits(self) -> bool:
        """Whether no connector cares whose the rows are."""
        return self._cohort.path is None or self._cohort.path.whole

    def _begin(self, explore: bool) -> None:
        obs, mask = self._last()
        self._explore = explore
        self._steady = self._cohort.backend.steady(
            self._policy, len(obs), masked=mask is not None, explore=explore
        )
        self._take(obs, mask)

    def _last(self) -> tuple[Column, Column | None]:
        ledger, rows = self._ledger, self._rows
        masks = ledger.masks
        return ledger.obs[rows], None if masks is None else masks[rows]

    def _take(self, obs: Column, mask: Column | None) -> None:
        before, noise, drawn = perf_counter(), None, self._cohort.noise
        if self._explore:
            if self._since >= AHEAD:
                drawn.draw_ahead(self._table, self.env_steps)
                self._since = 0
            noise = drawn.ahead(self.env_steps)
        self._since += 1
        self._steady.take(obs, mask, noise)
        self._times.act += perf_counter() - before

    def _answer(self) -> Any:
        before, cohort = perf_counter(), self._cohort
        decision = self._steady.decide()
        if not decision.sound:
            raise cohort.unsound(self._policy, *self._last())
        self._ledger.answer(self._rows, decision.actions, decision.dist_inputs)
        if cohort.path is None:
            answers = cohort.output(decision.actions)
        else:
            answers = cohort.path.answers(self._policy, decision.actions, *self._last(), None)
        self._times.act += perf_counter() - before
        return answers

    def _write(self, frame: Frame, *, ask: bool = False) -> None:
        """Write a frame down.

        Args:
            frame: The frame.
            ask: Whether it is answered in this fragment: the network gets its rows now.
        """
        try:
            obs, mask = self._cohort.frame_rows(self._policy, frame)
        except OutsideSpaceError as error:
            step = int(self.env_steps[error.row])
            raise outside(error.row, SINGLE_AGENT, f"env step {step}", error) from error
        if ask:
            self._take(obs, mask)
        self._rows = self._ledger.add_frame(frame, obs, mask)
