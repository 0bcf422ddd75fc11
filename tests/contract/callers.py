"""Scripted games whose players call a broker, in the thread that samples: each step follows from its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from menv.adapters.episode_broker import EpisodeBroker
from menv.adapters.external import ExternalEnvs
from menv.base_env import ALL, Ready
from tests.contract.scripted import ACTIONS, OBS, Script, ScriptedEnv, altered


def without_own_truncations(script: Script) -> Script:
    """Let agents that are cut short end by themselves: a caller cannot say more of an agent than that it is done."""
    return [
        [altered(moment, terminated=moment.terminated + moment.truncated, truncated="") for moment in episode]
        for episode in script
    ]


class Player:
    """Plays one game, episode after episode."""

    def __init__(self, board: EpisodeBroker, game: ScriptedEnv) -> None:
        self.board, self.game = board, game
        self.episode = ""

    def begin(self) -> None:
        self.episode = self.board.start()
        obs, infos = self.game.reset()
        self.board.log_returns(self.episode, {}, infos)
        self.board.request_actions(self.episode, _copies(obs), self.answered)

    def answered(self, actions: Mapping[Any, Any] | BaseException) -> None:
        if isinstance(actions, BaseException):
            return
        obs, rewards, terminateds, truncateds, infos = self.game.step(dict(actions))
        done = {agent: flag for agent, flag in terminateds.items() if agent != ALL}
        self.board.log_returns(self.episode, rewards, infos, done)
        if terminateds[ALL] or truncateds[ALL]:
            self.board.end(self.episode, _copies(obs), truncated=truncateds[ALL])
            self.begin()
        else:
            self.board.request_actions(self.episode, _copies(obs), self.answered)


class CalledEnvs(ExternalEnvs):
    """The games as external episodes; their players begin with the first poll, and never keep it waiting."""

    def __init__(self, games: Sequence[ScriptedEnv]) -> None:
        super().__init__(
            EpisodeBroker(),
            observation_space=OBS,
            action_space=ACTIONS,
            possible_agents=games[0].possible_agents,
        )
        self._players = [Player(self.broker, game) for game in games]

    def poll(self, timeout: float | None = None) -> Ready:
        players, self._players = self._players, []
        for player in players:
            player.begin()
        return super().poll(timeout or 0.0)


def _copies(obs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return observations that the game does not overwrite."""
    return {agent: seen.copy() for agent, seen in obs.items()}
