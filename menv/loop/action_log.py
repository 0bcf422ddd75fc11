"""The actions of the episodes that run, so that these can be played again from their seeds.

`menv.loop.sampler` notes each closed fragment here, one copy of an array a policy; nothing is done for a row or a
step. `menv.loop.running_episodes` asks for what the running episodes have done.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from menv.sample_batch import SampleBatch
from menv.segments import Column

# Rows that are noted at least before those of finished episodes are let go.
_ROWS = 65_536
LONGEST = 200_000
"""Rows of one episode; a longer one is not kept, because playing it again would take too long."""


class Noted(NamedTuple):
    """Pieces of trajectories in the order in which they left a ledger.

    Attributes:
        cohort: Number of the cohort.
        eps_id: [S] their episodes.
        agent_index: [S] their agents' numbers in these.
        lengths: [S] rows of each.
        turn: [S] numbers by which those of one agent are in order.
        actions: [N, ...] one piece after the other, as the batch holds them.
    """

    cohort: int
    eps_id: Column
    agent_index: Column
    lengths: Column
    turn: Column
    actions: Column

    def of(self, episodes: Column) -> Noted:
        """Return the pieces of some episodes."""
        mine = np.isin(self.eps_id, episodes)
        rows = np.repeat(mine, self.lengths)
        return Noted(
            self.cohort, self.eps_id[mine], self.agent_index[mine], self.lengths[mine], self.turn[mine],
            self.actions[rows],
        )  # fmt: skip


class ActionLog:
    """What has been noted since the running episodes began.

    Attributes:
        rows: Rows that are noted.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._noted: list[Noted] = []
        self._next = _ROWS
        self._too_long: set[int] = set()

    @property
    def full(self) -> bool:
        """Whether `keep` is due."""
        return self.rows > self._next

    def note(self, cohort: int, batch: SampleBatch) -> None:
        """Note the rows of one policy's part of a fragment."""
        pieces = batch.segments
        actions = batch[SampleBatch.ACTIONS].copy()
        parts = (pieces.eps_id, pieces.agent_index, pieces.lengths, pieces.unroll_id)
        self._noted.append(Noted(cohort, *parts, actions))
        self.rows += len(actions)

    def keep(self, episodes: Collection[int]) -> None:
        """Let go of all episodes but those that run."""
        self._too_long &= set(episodes)
        self._shorten(episodes)
        rows: dict[int, int] = {}
        for noted in self._noted:
            for eps_id, length in zip(noted.eps_id.tolist(), noted.lengths.tolist(), strict=True):
                rows[eps_id] = rows.get(eps_id, 0) + length
        self._too_long |= {eps_id for eps_id, count in rows.items() if count > LONGEST}
        if self._too_long:
            self._shorten(episodes)
        # Twice as many before the next time: what it costs stays a small share of the rows that come.
        self._next = _ROWS + 2 * self.rows

    def actions_of(self, episode: int) -> dict[int, list[Column]] | None:
        """Return each agent's actions in order, by its number; None for an episode that was too long.

        Call `keep` before: what is asked of episode after episode should be little.
        """
        if episode in self._too_long:
            return None
        found: dict[int, list[tuple[int, Column]]] = {}
        for noted in self._noted:
            if episode not in noted.eps_id:
                continue
            ends = np.cumsum(noted.lengths)
            for piece in np.flatnonzero(noted.eps_id == episode).tolist():
                part = noted.actions[ends[piece] - noted.lengths[piece] : ends[piece]]
                found.setdefault(int(noted.agent_index[piece]), []).append((int(noted.turn[piece]), part))
        # A life that nobody learns from is in another batch than those before and after it.
        return {
            agent: [part for _, part in sorted(parts, key=itemgetter(0))] for agent, parts in found.items()
        }

    def put(self, cohort: int, episode: int, agent_index: int, actions: Column) -> None:
        """Note what an agent did before, when its episode is taken up again."""
        one = np.ones(1, np.int64)
        self._noted.append(Noted(cohort, one * episode, one * agent_index, one * len(actions), -one, actions))
        self.rows += len(actions)

    def _shorten(self, episodes: Collection[int]) -> None:
        """Keep the pieces of some episodes, those of one cohort joined."""
        wanted = np.array(sorted(set(episodes) - self._too_long), np.int64)
        parts = [part for part in (noted.of(wanted) for noted in self._noted) if len(part.lengths)]
        joined = []
        for cohort in sorted({part.cohort for part in parts}):
            mine = [part for part in parts if part.cohort == cohort]
            joined.append(
                Noted(cohort, *(np.concatenate(columns) for columns in list(zip(*mine, strict=True))[1:]))
            )
        self._noted = joined
        self.rows = sum(len(noted.actions) for noted in joined)
