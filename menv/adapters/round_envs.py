"""External episodes that may be asked for in rounds: whole columns from the switchboard to the sampler and back.

Serving inputs are kinds of it. A round is delivered as it is where nothing else was said since the last poll, and told
at once where all of it is answered together; otherwise it goes on as the turns of its episodes, with the code that
`menv.adapters.external` has for these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from menv.adapters.external import ExternalEnvs
from menv.adapters.game import Game
from menv.adapters.layout import Layout, join_slots
from menv.base_env import AgentId, IntArray, Ready
from menv.call_errors import stopped
from menv.line import Line
from menv.round import Round
from menv.round_board import RoundBoard


class RoundEnvs(ExternalEnvs):
    """The open episodes of a switchboard that takes rounds.

    Args:
        switchboard: Where callers call.
        observation_space: Of each agent.
        action_space: Likewise.
        possible_agents: Agents that may ever appear, () if nobody knows.
        idle_timeout: See `ExternalEnvs`.
    """

    def __init__(
        self,
        switchboard: RoundBoard,
        *,
        observation_space: Any = None,
        action_space: Any = None,
        possible_agents: Iterable[AgentId] = (),
        idle_timeout: float | None = 30.0,
    ) -> None:
        super().__init__(
            switchboard, observation_space=observation_space, action_space=action_space,
            possible_agents=possible_agents, idle_timeout=idle_timeout,
        )  # fmt: skip
        self._board = switchboard
        # The round that the sampler has and has not answered.
        self._open_round: Round | None = None
        # The episodes of the last round, mostly those of the next one, and what was looked up for them.
        self._lines: list[Line] = []
        self._players: list[Game] = []
        self._indices: IntArray = np.zeros(0, np.int64)
        self._rows: tuple[list[Layout], IntArray] = ([], self._indices)

    def _answer(self, slots: Any, actions: Any) -> None:
        asked, self._open_round = self._open_round, None
        if asked is None:
            super()._answer(slots, actions)
        elif (
            slots is self._delivered[1]
            and isinstance(actions, Sequence | np.ndarray)
            and len(actions) == len(slots)
        ):
            self._board.answered_round(asked)
            asked.tell(actions)
        else:
            # Some of them, or in another order.
            for game, turn in zip(self._players, asked.turns(), strict=True):
                game.turn = turn
            self._asked = self._players
            super()._answer(slots, actions)

    def _tell_stopped(self) -> None:
        super()._tell_stopped()
        if (asked := self._open_round) is not None:
            asked.tell(stopped())

    def _take_in(self, lines: Sequence[Line]) -> Ready:
        """Take what was said in some episodes, and the round that waits; return what there is for the sampler."""
        asked = self._board.take_round()
        if asked is not None and not lines:
            return self._deliver_round(asked)
        if asked is not None:
            for line, turn in zip(asked.lines, asked.turns(), strict=True):
                self._advance(line, turn)
        return super()._take_in(lines)

    def _deliver_round(self, asked: Round) -> Ready:
        if asked.lines != self._lines:
            self._lines = asked.lines
            games = self._players = [self._games[line.episode_id] for line in asked.lines]
            layouts = [game.roster.waiting for game in games]
            self._indices = np.array([game.roster.env_index for game in games], np.int64)
            self._rows = (layouts, join_slots(layouts))
        self._delivered = self._rows
        for game in self._players:
            game.roster.episode_steps += 1
        self._env_steps[self._indices] += 1
        self._open_round = asked
        return Ready(self._rows[1], asked.obs, asked.rewards, self._env_steps, seats=self._pool.seats)

    def _let_go(self, games: Sequence[Game]) -> None:
        """Note that what was said in some games has been answered; they may be part of a round next time."""
        super()._let_go(games)
        self._board.steady([game.line for game in games if game.roster.alone])
