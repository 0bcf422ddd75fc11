"""Framed: what answers whole frames with one policy's network, and writes them down.

`menv.loop.frame_loop` and `menv.loop.copies_loop` go round with it. It knows no environments: who steps, when a
fragment is full and what episodes are is theirs to know.
"""

from __future__ import annotations

from typing import Any

from menv.acting.backend import AnswerRows
from menv.base_env import SINGLE_AGENT
from menv.frame import Frame
from menv.frame_ledger import FrameLedger
from menv.loop.cohort import outside
from menv.loop.net_cohort import NetCohort
from menv.loop.noise import AHEAD
from menv.loop.slot_table import SlotTable
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
    ) -> None:
        """Begin where `ledger` stands.

        Args:
            env_steps: [E] env steps of each sub-environment, the very array that counts them.
            cohort: Whose network answers.
            policy: Index of the policy in it.
            table: Holds the keys of the draws.
            ledger: The cohort's.
        """
        self.env_steps = env_steps
        self._cohort = cohort
        self._policy = policy
        self._table = table
        self._ledger = ledger
        # Where the last frame is.
        self._rows = slice(0, ledger.rows)
        # Frames since draws were made ahead.
        self._since = AHEAD

    @property
    def fits(self) -> bool:
        """Whether no connector cares whose the rows are."""
        return self._cohort.path is None or self._cohort.path.whole

    def _steady(self, num_envs: int, explore: bool) -> AnswerRows:
        """Return what decides about frames."""
        masked = self._ledger.masks is not None
        return self._cohort.backend.steady(self._policy, num_envs, masked=masked, explore=explore)

    def _answer(self, decide: AnswerRows, explore: bool) -> Any:
        """Return the actions for the last frame, and write them down."""
        ledger, cohort, rows = self._ledger, self._cohort, self._rows
        obs, masks = ledger.obs[rows], ledger.masks
        mask = None if masks is None else masks[rows]
        if explore:
            if self._since >= AHEAD:
                cohort.noise.draw_ahead(self._table, self.env_steps)
                self._since = 0
            noise = cohort.noise.ahead(self.env_steps)
        else:
            noise = None
        self._since += 1
        decision = decide(obs, mask, noise)
        if not decision.sound:
            raise cohort.unsound(self._policy, obs, mask)
        ledger.answer(rows, decision.actions, decision.dist_inputs)
        if cohort.path is None:
            return cohort.output(decision.actions)
        return cohort.path.answers(self._policy, decision.actions, obs, mask, None)

    def _write(self, frame: Frame) -> None:
        """Write a frame down."""
        try:
            obs, mask = self._cohort.frame_rows(self._policy, frame)
        except OutsideSpaceError as error:
            step = int(self.env_steps[error.row])
            raise outside(error.row, SINGLE_AGENT, f"env step {step}", error) from error
        self._rows = self._ledger.add_frame(frame, obs, mask)
