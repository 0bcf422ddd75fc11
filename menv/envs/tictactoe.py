"""TicTacToe: a small turn-based game with action masks; `examples/tictactoe_play.py` evaluates policies for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index, not_
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import ALL
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

PLAYERS = ("player1", "player2")
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
"""The squares of each line that wins; squares are counted from the top left, row by row."""

SQUARES = (
    "top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right",
)  # fmt: skip
"""The name of each square."""

Board = tuple[int, ...]
"""Nine squares: 0 is empty, 1 and 2 are the stones of player1 and player2."""

_SQUARE_PIXELS = 64


def winner_of(board: Sequence[int]) -> str | None:
    """Return the player who owns a line of `board`, None if no player does."""
    for a, b, c in LINES:
        if board[a] and board[a] == board[b] == board[c]:
            return PLAYERS[board[a] - 1]
    return None


class TicTacToe(MultiAgentEnv):
    """Two players put stones on nine squares in turn; three in a row win.

    - Agents: `"player1"` moves first, then `"player2"`, and so on; only the mover is in `obs`.
    - Observation: Dict of `"observations"`, float32 [18], the own stones and then the opponent's, and
      `"action_mask"`, int8 [9], 1 where a stone may be put. The arrays are fresh and belong to the caller.
    - Action: Discrete(9), the square, counted from the top left, row by row.
    - Reward: both players get one at every step: 1.0 for a win, -1.0 for a loss, else 0.0.
    - End: both players are terminated and get a last observation whose mask allows nothing. There is
      no truncation.
    - An illegal move ends the game: the mover loses, the opponent wins, and the mover's info holds the move
      as `"illegal_move"`.

    The game is deterministic, so `seed` has no effect.

    Args:
        config: `"render_mode"`: `"ansi"` (default), a text, or `"rgb_array"`, a uint8 picture [192, 192, 3].

    Raises:
        ConfigError: The render mode is unknown.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "render_modes": ["ansi", "rgb_array"], "render_fps": 1, "action_names": SQUARES, "board": (3, 3),
    }  # fmt: skip

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.render_mode = (config or {}).get("render_mode", "ansi")
        if self.render_mode not in self.metadata["render_modes"]:
            raise ConfigError(
                f"TicTacToe: render_mode is {self.render_mode!r}, expected 'ansi' or 'rgb_array'; change the config"
            )
        self.possible_agents = list(PLAYERS)
        self.observation_space = gym.spaces.Dict(
            {
                "observations": gym.spaces.Box(0.0, 1.0, (18,), np.float32),
                "action_mask": gym.spaces.Box(0, 1, (9,), np.int8),
            }
        )
        self.action_space = gym.spaces.Discrete(9)
        self._board = [0] * 9
        self._stone = 1

    @property
    def board(self) -> Board:
        """The nine squares: 0 is empty, 1 and 2 are the stones of player1 and player2."""
        return tuple(self._board)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Empty the board; player1 is asked first."""
        self._board, self._stone = [0] * 9, 1
        self.agents = list(PLAYERS)
        return {"player1": self._observe(0)}, {}

    def step(self, actions: AgentDict) -> StepDicts:
        """Put the mover's stone.

        Args:
            actions: `{mover: square}`.

        Raises:
            CallOrderError: The game is over, or never began.
            ContractError: The actions are not one integer of the mover.
        """
        mover, waiting = PLAYERS[self._stone - 1], PLAYERS[2 - self._stone]
        if not self.agents:
            raise CallOrderError("TicTacToe.step: no game is running, expected reset first; call reset")
        try:
            # Other types than integers, such as 1.5, have no index.
            square = index(actions[mover])
        except (KeyError, TypeError):
            raise self._refusal(mover, actions) from None
        if len(actions) > 1:
            raise self._refusal(mover, actions)
        if not 0 <= square < 9 or self._board[square] != 0:
            return self._end(waiting, {mover: {"illegal_move": square}})
        self._board[square] = self._stone
        winner = winner_of(self._board)
        if winner is not None or 0 not in self._board:
            return self._end(winner, {})
        self._stone = 3 - self._stone
        rewards = dict.fromkeys(PLAYERS, 0.0)
        return {waiting: self._observe(self._stone - 1)}, rewards, {ALL: False}, {ALL: False}, {}

    def render(self) -> Any:
        """Return the board as text or as a picture, as `render_mode` says."""
        return picture_of(self._board) if self.render_mode == "rgb_array" else text_of(self._board)

    def _end(self, winner: str | None, infos: AgentDict) -> StepDicts:
        self.agents = []
        obs = {player: self._observe(number) for number, player in enumerate(PLAYERS)}
        rewards = dict.fromkeys(PLAYERS, 0.0)
        if winner is not None:
            rewards = {player: 1.0 if player == winner else -1.0 for player in PLAYERS}
        return obs, rewards, {"player1": True, "player2": True, ALL: True}, {ALL: False}, infos

    def _refusal(self, mover: str, actions: AgentDict) -> ContractError:
        given = ", ".join(f"{agent!r}: {type(move).__name__}" for agent, move in actions.items())
        return ContractError(
            f"TicTacToe.step: got actions {{{given}}}, expected one integer from {mover!r} alone, "
            "whose turn it is; answer the agent that the last obs named"
        )

    def _observe(self, player: int) -> AgentDict:
        planes = np.zeros(18, np.float32)
        for square, owner in enumerate(self._board):
            if owner:
                planes[square if owner == player + 1 else 9 + square] = 1.0
        allowed = [*map(not_, self._board)] if self.agents else [False] * 9
        return {"observations": planes, "action_mask": np.array(allowed, np.int8)}


def text_of(board: Sequence[int]) -> str:
    """Return five lines; X is player1, O player2, and empty squares show their action."""
    marks = [f" {'XO'[owner - 1] if owner else square} " for square, owner in enumerate(board)]
    return "\n---+---+---\n".join("|".join(marks[row : row + 3]) for row in (0, 3, 6))


def picture_of(board: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return a uint8 [192, 192, 3] picture; crosses are player1, rings player2."""
    across = np.abs(np.linspace(-1.0, 1.0, _SQUARE_PIXELS))
    x, y = np.meshgrid(across, across)
    cross = (np.abs(x - y) < 0.14) & (np.maximum(x, y) < 0.7)
    ring = np.abs(np.hypot(x, y) - 0.6) < 0.1
    blank = np.full((_SQUARE_PIXELS, _SQUARE_PIXELS, 3), 245, np.uint8)
    blank[np.maximum(x, y) > 0.97] = 120
    tiles = [blank, blank.copy(), blank.copy()]
    tiles[1][cross] = (200, 60, 50)
    tiles[2][ring] = (40, 90, 190)
    rows = [np.concatenate([tiles[square] for square in board[row : row + 3]], axis=1) for row in (0, 3, 6)]
    return np.concatenate(rows, axis=0)
