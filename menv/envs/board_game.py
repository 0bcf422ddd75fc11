"""Base of the turn-based board games for two players: spaces, whose move it is, rewards at the end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from operator import index
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from menv.base_env import ALL
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

PLAYERS = ("player1", "player2")


class BoardGame(MultiAgentEnv):
    """Two players in turn, on a board of `cells` cells with `moves` actions; both see their own pieces first."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}

    def __init__(self, config: Mapping[str, Any] | None, cells: int, moves: int) -> None:
        super().__init__()
        self._name = type(self).__name__
        self.render_mode = (config or {}).get("render_mode", "ansi")
        if self.render_mode not in self.metadata["render_modes"]:
            raise ConfigError(
                f"{self._name}: render_mode is {self.render_mode!r}, expected 'ansi' or 'rgb_array'; change the config"
            )
        self.possible_agents = list(PLAYERS)
        self.observation_space = gym.spaces.Dict(
            {
                "observations": gym.spaces.Box(0.0, 1.0, (2 * cells,), np.float32),
                "action_mask": gym.spaces.Box(0, 1, (moves,), np.int8),
            }
        )
        self.action_space = gym.spaces.Discrete(moves)

    @abstractmethod
    def _observe(self, player: int) -> AgentDict:
        """Return the observation of player 0 or 1; the mask allows nothing after the end."""

    def _end(self, winner: str | None, infos: AgentDict) -> StepDicts:
        """End the game; None for a draw."""
        self.agents = []
        obs = {player: self._observe(number) for number, player in enumerate(PLAYERS)}
        rewards = dict.fromkeys(PLAYERS, 0.0)
        if winner is not None:
            rewards = {player: 1.0 if player == winner else -1.0 for player in PLAYERS}
        return obs, rewards, {"player1": True, "player2": True, ALL: True}, {ALL: False}, infos

    def _move_of(self, mover: str, action_dict: AgentDict) -> int:
        if not self.agents:
            raise CallOrderError(f"{self._name}.step: no game is running, expected reset first; call reset")
        if list(action_dict) == [mover]:
            # Other types, such as 1.5, get the error below.
            with suppress(TypeError):
                return index(action_dict[mover])
        given = ", ".join(f"{agent!r}: {type(move).__name__}" for agent, move in action_dict.items())
        raise ContractError(
            f"{self._name}.step: got actions {{{given}}}, expected one integer from {mover!r} alone, "
            "whose turn it is; answer the agent that the last obs named"
        )
