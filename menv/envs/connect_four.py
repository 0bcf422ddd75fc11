"""Connect four: a turn-based game with action masks that is too large to enumerate, for self-play."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from menv.base_env import ALL
from menv.envs.board_game import PLAYERS as PLAYERS
from menv.envs.board_game import BoardGame
from menv.multi_agent_env import AgentDict, StepDicts

ROWS, COLUMNS = 6, 7
CELLS = ROWS * COLUMNS

Board = tuple[int, ...]
"""Forty-two cells from the top left, row by row: 0 is empty, 1 and 2 are the discs of player1 and player2."""

# A player's discs are one integer: bit `column * _TALL + height`, counted from the bottom. The topmost bit of
# each column stays empty, so that no line runs from the top of one column into the bottom of the next.
_TALL = ROWS + 1
_DIRECTIONS = (1, _TALL, _TALL - 1, _TALL + 1)
_CELL_PIXELS = 64


def has_four(discs: int) -> bool:
    """Return whether four of one player's `discs` form a line: up, across, or on either diagonal.

    Args:
        discs: Bit `column * 7 + height` is set for a disc; height 0 is the bottom.
    """
    for step in _DIRECTIONS:
        pairs = discs & (discs >> step)
        if pairs & (pairs >> 2 * step):
            return True
    return False


class ConnectFour(BoardGame):
    """Two players drop discs into seven columns in turn; four in a line win.

    - Agents: `"player1"` moves first, then `"player2"`, and so on; only the mover is in `obs`.
    - Observation: Dict of `"observations"`, float32 [84], the own discs on 6 rows of 7 cells from the top
      left, and then the opponent's, and `"action_mask"`, int8 [7], 1 where a column has room. The arrays
      are fresh and belong to the caller.
    - Action: Discrete(7), the column, counted from the left.
    - Reward: both players get one at every step: 1.0 for a win, -1.0 for a loss, else 0.0.
    - End: both players are terminated and get a last observation whose mask allows nothing. There is
      no truncation; a full board without four in a line is a draw.
    - An illegal move ends the game: the mover loses, the opponent wins, and the mover's info holds the move
      as `"illegal_move"`.

    The game is deterministic, so `seed` has no effect.

    Args:
        config: `"render_mode"`: `"ansi"` (default), a text, or `"rgb_array"`, a uint8 picture [384, 448, 3].

    Raises:
        ConfigError: The render mode is unknown.
    """

    metadata: ClassVar[dict[str, Any]] = {**BoardGame.metadata, "board": (ROWS, COLUMNS)}

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config, CELLS, COLUMNS)
        self._mover = 0
        self._clear()

    @property
    def board(self) -> Board:
        """The 42 cells from the top left, row by row: 0 is empty, 1 and 2 are player1's and player2's."""
        owners = self._planes[0] + 2.0 * self._planes[1]
        return tuple(int(owner) for owner in owners)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Empty the board; player1 is asked first."""
        self._clear()
        self.agents = list(PLAYERS)
        return {"player1": self._observe(0)}, {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Drop the mover's disc.

        Args:
            action_dict: `{mover: column}`.

        Raises:
            CallOrderError: The game is over, or never began.
            ContractError: The actions are not one integer of the mover.
        """
        mover = self._mover
        column = self._move_of(PLAYERS[mover], action_dict)
        if not 0 <= column < COLUMNS or self._heights[column] == ROWS:
            return self._end(PLAYERS[1 - mover], {PLAYERS[mover]: {"illegal_move": column}})
        self._drop(mover, column)
        if has_four(self._discs[mover]):
            return self._end(PLAYERS[mover], {})
        if self._count == CELLS:
            return self._end(None, {})
        self._mover = 1 - mover
        rewards = {"player1": 0.0, "player2": 0.0}
        return {PLAYERS[1 - mover]: self._observe(1 - mover)}, rewards, {ALL: False}, {ALL: False}, {}

    def render(self) -> Any:
        """Return the board as text or as a picture, as `render_mode` says."""
        return picture_of(self.board) if self.render_mode == "rgb_array" else text_of(self.board)

    def _clear(self) -> None:
        self._mover = 0
        self._count = 0
        self._discs = [0, 0]
        self._heights = [0] * COLUMNS
        # The same board in the form of observations.
        self._planes = np.zeros((2, CELLS), np.float32)
        self._room = np.ones(COLUMNS, np.int8)

    def _drop(self, mover: int, column: int) -> None:
        height = self._heights[column]
        self._discs[mover] |= 1 << (column * _TALL + height)
        self._planes[mover, (ROWS - 1 - height) * COLUMNS + column] = 1.0
        self._heights[column] = height + 1
        self._count += 1
        if height + 1 == ROWS:
            self._room[column] = 0

    def _observe(self, player: int) -> AgentDict:
        own_first = np.concatenate((self._planes[player], self._planes[1 - player]))
        allowed = self._room.copy() if self.agents else np.zeros(COLUMNS, np.int8)
        return {"observations": own_first, "action_mask": allowed}


def text_of(board: Sequence[int]) -> str:
    """Return six lines and one of the columns' actions; X is player1, O player2."""
    marks = [*(".XO"[owner] for owner in board), *map(str, range(COLUMNS))]
    return "\n".join(" ".join(marks[first : first + COLUMNS]) for first in range(0, CELLS + 1, COLUMNS))


def picture_of(board: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return a uint8 [384, 448, 3] picture: red discs are player1's, yellow ones player2's."""
    across = np.linspace(-1.0, 1.0, _CELL_PIXELS)
    hole = np.hypot(*np.meshgrid(across, across)) < 0.8
    tiles = np.empty((3, _CELL_PIXELS, _CELL_PIXELS, 3), np.uint8)
    tiles[:] = (40, 90, 190)
    for tile, colour in zip(tiles, ((245, 245, 245), (200, 60, 50), (240, 200, 60)), strict=True):
        tile[hole] = colour
    # [row, column, y, x, rgb] to [row, y, column, x, rgb]
    cells = tiles[np.array(board).reshape(ROWS, COLUMNS)].swapaxes(1, 2)
    return np.ascontiguousarray(cells.reshape(ROWS * _CELL_PIXELS, COLUMNS * _CELL_PIXELS, 3))
