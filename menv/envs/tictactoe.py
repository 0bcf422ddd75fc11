"""Noughts and crosses for two agents that take turns, with action masks.

Made for examples, tests and benchmarks, so a step costs about a microsecond: every position is worked
out once and kept in one table for all instances. `menv.envs.tictactoe_play` judges how well a policy plays.
Nothing here knows who chooses the moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
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

Board = tuple[int, ...]
"""Nine squares: 0 is empty, 1 and 2 are the stones of player1 and player2."""

_SQUARE_PIXELS = 64


class _Position:
    """One position of the game and the arrays that show it; shared by all games, never changed."""

    __slots__ = ("board", "mask", "mover", "next", "over", "planes", "waiting", "winner")

    def __init__(self, board: Board) -> None:
        self.board = board
        self.winner = winner_of(board)
        self.over = self.winner is not None or 0 not in board
        turn = (9 - board.count(0)) % 2
        self.mover: str = PLAYERS[turn]
        self.waiting: str = PLAYERS[1 - turn]
        self.planes = planes_of(board, turn + 1)
        self.mask = np.array([not self.over and square == 0 for square in board], np.int8)
        self.next: list[_Position | None] = [None] * 9

    def after(self, square: int) -> _Position | None:
        """Return the position after a stone on `square`, None if that is no legal move."""
        if not 0 <= square < 9 or self.board[square]:
            return None
        stone = PLAYERS.index(self.mover) + 1
        board = (*self.board[:square], stone, *self.board[square + 1 :])
        reached = _POSITIONS.get(board)
        if reached is None:
            reached = _POSITIONS.setdefault(board, _Position(board))
        self.next[square] = reached
        return reached


def winner_of(board: Board) -> str | None:
    """Return the player who owns a line of `board`, None if nobody does."""
    for a, b, c in LINES:
        if board[a] and board[a] == board[b] == board[c]:
            return PLAYERS[board[a] - 1]
    return None


def planes_of(board: Board, stone: int) -> npt.NDArray[np.float32]:
    """Return the float32 [18] observation of the player with this `stone`: own squares, then the other's."""
    own = [square == stone for square in board]
    other = [square == 3 - stone for square in board]
    return np.array(own + other, np.float32)


_POSITIONS: dict[Board, _Position] = {}
_START = _POSITIONS.setdefault((0,) * 9, _Position((0,) * 9))


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

    The game has no chance in it, so `seed` has nothing to do.

    Args:
        config: `"render_mode"`: `"ansi"` (default), a text, or `"rgb_array"`, a uint8 picture [192, 192, 3].

    Raises:
        ConfigError: The render mode is unknown.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.render_mode = (config or {}).get("render_mode", "ansi")
        if self.render_mode not in self.metadata["render_modes"]:
            raise ConfigError(
                f"TicTacToe: render_mode is {self.render_mode!r}, expected 'ansi' or 'rgb_array'; "
                "change the config"
            )
        self.possible_agents = list(PLAYERS)
        self.observation_space = gym.spaces.Dict(
            {
                "observations": gym.spaces.Box(0.0, 1.0, (18,), np.float32),
                "action_mask": gym.spaces.Box(0, 1, (9,), np.int8),
            }
        )
        self.action_space = gym.spaces.Discrete(9)
        self._position = _START
        self._running = False

    @property
    def board(self) -> Board:
        """The nine squares: 0 is empty, 1 and 2 are the stones of player1 and player2."""
        return self._position.board

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Empty the board; player1 is asked first."""
        self._position = _START
        self._running = True
        self.agents = list(PLAYERS)
        return {"player1": {"observations": _START.planes.copy(), "action_mask": _START.mask.copy()}}, {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Put the mover's stone.

        Args:
            action_dict: `{mover: square}`.

        Raises:
            CallOrderError: The game is over, or never began.
            ContractError: Somebody else than the mover, or nobody, was answered, or not with an integer.
        """
        before = self._position
        if not self._running or len(action_dict) != 1 or before.mover not in action_dict:
            raise self._cannot_step(action_dict)
        try:
            square = index(action_dict[before.mover])
        except TypeError:
            raise self._cannot_step(action_dict) from None
        # A negative square would count from the end of the list.
        now = before.next[square] if 0 <= square < 9 else None
        if now is None:
            now = before.after(square)
            if now is None:
                return self._end(before.waiting, {before.mover: {"illegal_move": square}})
        self._position = now
        if now.over:
            return self._end(now.winner, {})
        return (
            {now.mover: {"observations": now.planes.copy(), "action_mask": now.mask.copy()}},
            {"player1": 0.0, "player2": 0.0},
            {ALL: False},
            {ALL: False},
            {},
        )

    def _end(self, winner: str | None, infos: AgentDict) -> StepDicts:
        self._running = False
        self.agents = []
        board = self._position.board
        obs: AgentDict = {
            player: {"observations": planes_of(board, stone), "action_mask": np.zeros(9, np.int8)}
            for stone, player in enumerate(PLAYERS, 1)
        }
        rewards: AgentDict = dict.fromkeys(PLAYERS, 0.0)
        if winner is not None:
            rewards = {player: 1.0 if player == winner else -1.0 for player in PLAYERS}
        terminateds: AgentDict = {"player1": True, "player2": True, ALL: True}
        return obs, rewards, terminateds, {ALL: False}, infos

    def _cannot_step(self, action_dict: AgentDict) -> CallOrderError | ContractError:
        if not self._running:
            return CallOrderError("TicTacToe.step: no game is running, expected reset first; call reset")
        given = ", ".join(f"{agent!r}: {type(move).__name__}" for agent, move in action_dict.items())
        mover = self._position.mover
        return ContractError(
            f"TicTacToe.step: got actions {{{given}}}, expected one integer from {mover!r} alone, "
            "whose turn it is; answer the agent that the last obs named"
        )

    def render(self) -> Any:
        """Return the board as text or as a picture, as `render_mode` says."""
        board = self._position.board
        return picture_of(board) if self.render_mode == "rgb_array" else text_of(board)


def text_of(board: Board) -> str:
    """Return three lines; X is player1, O player2."""
    marks = [".XO"[square] for square in board]
    return "\n".join(" ".join(marks[row : row + 3]) for row in (0, 3, 6))


def picture_of(board: Board) -> npt.NDArray[np.uint8]:
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
