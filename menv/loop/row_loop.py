"""The long way round, for every kind of environment: poll, connect, write down, act, send; row by row.

`menv.loop.sampler` goes it unless whole frames lead to the same (`menv.loop.frame_loop`, `menv.loop.copies_loop`). It
holds the rows that wait, and knows neither when fragments are closed nor what becomes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.adapters.external import ExternalEnvs
from menv.base_env import BaseEnv, EnvId, Ready
from menv.loop.block import Block, joined, set_aside, split
from menv.loop.cohort import Answers, Cohort, outside
from menv.loop.episode_book import EpisodeBook
from menv.loop.hooks import Hooks
from menv.loop.layouts import Layout, look_up
from menv.loop.observation_fn import ObservationFn
from menv.loop.own_cohort import OwnCohort
from menv.loop.patience import Patience
from menv.loop.played_rows import PlayedRows
from menv.loop.quota import ExternalQuota, Quota
from menv.loop.slot_table import SlotTable
from menv.loop.times import Times
from menv.segments import Column
from menv.spaces import OutsideSpaceError


class RowLoop:
    """Goes round row by row, and holds the rows that wait.

    Attributes:
        env_steps: [E] env steps of each sub-environment so far.
        agent_steps: Rows that have been answered so far.
    """

    def __init__(
        self,
        base_env: BaseEnv,
        cohorts: list[Cohort],
        quota: Quota,
        table: SlotTable,
        book: EpisodeBook,
        hooks: Hooks,
        played: PlayedRows,
        observation_fn: ObservationFn | None,
        times: Times,
    ) -> None:
        """Begin without rows.

        Args:
            base_env: What is polled.
            cohorts: Who answers; `follow` has to be called when they have changed.
            quota: When a fragment is full.
            table: Whose slots are whose.
            book: Told what begins and ends.
            hooks: Told what moved.
            played: Writes down what was played elsewhere.
            observation_fn: Shows agents more than their own observations, if there is one.
            times: Told of what environments and policies take.
        """
        self.env_steps: Column = np.zeros(0, np.int64)
        self.agent_steps = 0
        self._base_env = base_env
        self._cohorts = cohorts
        self._quota = quota
        self._board = base_env.switchboard if isinstance(base_env, ExternalEnvs) else None
        self._table = table
        self._book = book
        self._hooks = hooks
        self._played = played
        self._observation_fn = observation_fn
        self._times = times
        self._seats: Any = ()
        # Rows that wait, by cohort number, and the slots array if they are all rows of one poll.
        self._pending: list[tuple[int, Block]] = []
        self._pending_slots: Column | None = None
        self.follow()

    def follow(self) -> None:
        """Take note of cohorts that have come, or of other policies in those there are."""
        self._own = any(isinstance(cohort, OwnCohort) for cohort in self._cohorts)
        self._layout: Layout | None = None

    @property
    def alone(self) -> Block | None:
        """The rows that wait, None unless they are one block."""
        return self._pending[0][1] if len(self._pending) == 1 else None

    def lend(self, env_steps: Column) -> None:
        """Leave the rows that wait to somebody else, who counts env steps in this very array [E] meanwhile."""
        self._pending, self._pending_slots = [], None
        self.env_steps = env_steps

    def take_back(self, blocks: Sequence[Block]) -> None:
        """Go on with rows of the first cohort that wait."""
        self._pending = [(0, block) for block in blocks]

    def state(self, number: int, slots: Column) -> dict[str, Any]:
        """Return of some trajectories [S] of a cohort what is known of the rows that wait: `raw` and `turn`.

        `turn` [S, 2] is the number of a row's block and its place in it, which decide who is answered first; -1 where
        nobody waits.
        """
        raw: dict[int, Any] = {}
        turn: dict[int, tuple[int, int]] = {}
        for which, (cohort, block) in enumerate(self._pending):
            if cohort == number:
                waits = block.slots.tolist()
                turn |= {slot: (which, place) for place, slot in enumerate(waits)}
                raw |= dict(zip(waits, block.raw or [None] * len(waits), strict=True))
        wanted = slots.tolist()
        turns = np.array([turn.get(slot, (-1, 0)) for slot in wanted], np.int64).reshape(len(wanted), 2)
        return {"raw": [raw.get(slot) for slot in wanted], "turn": turns}

    def resume(
        self, env_steps: Column, seats: Any, waiting: Sequence[tuple[int, int, Mapping[str, Any]]]
    ) -> None:
        """Go on with rows of which `state` of another loop told.

        Args:
            env_steps: [E] so far.
            seats: See `Ready.seats`.
            waiting: The number of a cohort, where the first of some rows is in its ledger, and these rows: `slot`,
                `policy` and `env_index` beside what `state` returned.
        """
        self.env_steps, self._seats = env_steps, seats
        blocks = [
            (turn, number, self._block(turn, number, first, rows))
            for number, first, rows in waiting
            for turn in np.unique(rows["turn"][:, 0]).tolist()
            if turn >= 0
        ]
        self._pending = [(number, block) for _, number, block in sorted(blocks, key=itemgetter(0))]

    def _block(self, turn: int, number: int, first: int, rows: Mapping[str, Any]) -> Block:
        """Return those of some rows of a cohort that wait with one turn, in their order."""
        turns, places = rows["turn"].T
        waits = np.flatnonzero(turns == turn)
        waits = waits[np.argsort(places[waits])]
        which = 0 if len(self._cohorts[number].policy_ids) == 1 else rows["policy"][waits]
        raw = [rows["raw"][place] for place in waits.tolist()]
        return Block(rows["slot"][waits], which, rows["env_index"][waits], first + waits, raw)

    def begin(self, polled: bool) -> Column:
        """Begin a fragment and return the env steps of then; the first poll is made where nobody has polled."""
        if polled or self._base_env.external:
            begun = self.env_steps.copy()
        else:
            begun = self.env_steps
            self.poll()
            begun = begun if len(begun) else np.zeros_like(self.env_steps)
        self._quota.begin(begun)
        return begun

    def fill(self, explore: bool) -> bool:
        """Poll and answer until the fragment is full; False if nobody called an external environment for too long.

        Args:
            explore: False asks for the most likely actions.
        """
        quota, patience = self._quota, Patience(self._base_env)
        while True:
            closed = quota.closed(self.env_steps)
            if closed is not None and closed.all():
                return True
            answered = self._answer(closed, explore)
            if self._board is not None and isinstance(quota, ExternalQuota):
                self._board.has_room(*quota.room)
            ready = self._polled(patience.left)
            self._take(ready)
            if patience.ends(ready, answered):
                return False
            # Its observations are let go before the environments make the next ones: these find room in the caches.
            del ready

    @property
    def awaited(self) -> list[EnvId]:
        """The episodes of an external environment whose ends are all that a fragment lacks."""
        closed = self._quota.closed(self.env_steps)
        if closed is None or not isinstance(self._base_env, ExternalEnvs):
            return []
        return self._base_env.episodes_at(np.flatnonzero(~closed))

    def poll(self) -> None:
        """Take in what there is to tell."""
        self._take(self._polled(None))

    def _polled(self, timeout: float | None) -> Ready:
        before = perf_counter()
        ready: Ready = self._base_env.poll(timeout)
        self._times.env += perf_counter() - before
        return ready

    def closed(self) -> None:
        """Find the rows that wait at their new places, once the ledgers have been closed."""
        for number, block in self._pending:
            block.rows = self._cohorts[number].ledger.moved(block.rows)

    def _answer(self, closed: npt.NDArray[np.bool_] | None, explore: bool) -> bool:
        """Answer the rows that wait, but for sub-environments whose share is full."""
        blocks, slots = self._pending, self._pending_slots
        self._pending, self._pending_slots = [], None
        if closed is not None:
            # Rows of full sub-environments go on waiting.
            blocks, self._pending = set_aside(blocks, closed)
            slots = None
        if not blocks:
            return False
        if slots is not None and len(blocks) == 1:
            # As a rule one cohort answers for all rows of a poll.
            self.agent_steps += len(slots)
            self._send(slots, self._decide(*blocks[0], explore))
            return True
        answers = [self._decide(number, block, explore) for number, block in blocks]
        self.agent_steps += sum(len(block.slots) for _, block in blocks)
        self._send(*joined(blocks, answers, slots))
        return True

    def _send(self, slots: Column, actions: Answers) -> None:
        """Hand actions [R] to the environment; many step right then."""
        before = perf_counter()
        self._base_env.send_actions(slots, actions)
        self._times.env += perf_counter() - before

    def _decide(self, number: int, block: Block, explore: bool) -> Answers:
        before, cohort = perf_counter(), self._cohorts[number]
        episodes: Sequence[Any] = ()
        if self._own and isinstance(cohort, OwnCohort):
            seats = self._seats
            episodes = [self._book.running[seats[slot][0]] for slot in block.slots.tolist()]
        self._quota.count(block.env_indices)
        if block.taken is not None:
            return self._played.took(cohort, block, block.taken, self._seats)
        answers = cohort.answer(block, self._table, self.env_steps, explore, episodes)
        self._times.act += perf_counter() - before
        return answers

    def _take(self, ready: Ready) -> None:
        self.env_steps = ready.env_steps
        self._seats = ready.seats
        before = ready
        if self._observation_fn is not None:
            ready = self._observation_fn.finals(ready)
        if ready.ended or ready.joined or ready.unclaimed or ready.episodes or ready.faults:
            self._book.take(ready)
            self._quota.note_ends(ready.episodes)
        if ready.played:
            self._take_played(ready)
        if self._hooks.active:
            self._hooks.polled(ready, self._book.running, self._table.returns)
        if len(ready.slots):
            self._take_rows(ready, before)

    def _take_played(self, ready: Ready) -> None:
        acted = self._played.take(ready)
        self._quota.count(acted)
        self._quota.note_ends([piece.episode for piece in ready.played if piece.episode])
        self.agent_steps += len(acted)

    def _take_rows(self, ready: Ready, before: Ready) -> None:
        """Take in the rows of a poll; `before` as it was without an `observation_fn`."""
        if self._observation_fn is not None:
            ready = self._observation_fn.rows(ready, before)
        table = self._table
        table.returns[ready.slots] += ready.rewards
        layout = self._layout
        if layout is None or layout.slots is not ready.slots or layout.version != table.version:
            layout = self._layout = look_up(ready.slots, table, self._cohorts)
        whole = not self._pending
        for number, looked_up in layout.blocks:
            block = looked_up if len(layout.blocks) == 1 else looked_up.copy()
            self._write(number, block, ready)
            parts = split(block, ready.taken) if ready.taken else [block]
            self._pending += [(number, part) for part in parts]
        self._pending_slots = ready.slots if whole and not ready.taken else None

    def _write(self, number: int, block: Block, ready: Ready) -> None:
        obs, rewards = block.of(ready.obs), block.of(ready.rewards)
        try:
            block.rows = self._cohorts[number].write(block, obs, rewards, ready)
            self._cohorts[number].ledger.inform(ready.infos, block.places)
            if self._hooks.keeps:
                self._cohorts[number].ledger.date(block.rows, self.env_steps[block.env_indices])
        except OutsideSpaceError as error:
            env_id, agent_id = ready.seats[int(block.slots[error.row])]
            step = int(self.env_steps[block.env_indices[error.row]])
            origin = "" if self._observation_fn is None else "observation_fn, "
            space = self._cohorts[number].observation_space
            raise outside(env_id, agent_id, f"{origin}env step {step}", error, space) from error
        block.raw = obs if self._own else None
