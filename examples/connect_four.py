"""Connect four, a turn-based game with action masks that is too large to enumerate; `self_play.py` trains it.

menv train examples/connect_four.py:ConnectFour --self-play --stop time_total_s=60
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete

from menv import MultiAgentEnv

ROWS, COLUMNS = 6, 7
PLAYERS = ("player1", "player2")
LINES = np.array(
    [
        [(row + down * step) * COLUMNS + column + right * step for step in range(4)]
        for row in range(ROWS)
        for column in range(COLUMNS)
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
        if row + 3 * down < ROWS and 0 <= column + 3 * right < COLUMNS
    ]
)
"""[69, 4] the cells of each line of four; cells are counted from the top left, row by row."""


def has_four(discs: npt.NDArray[Any]) -> bool:
    """Return whether one player's discs [42] form a line of four."""
    return bool(discs.take(LINES).all(axis=1).any())


class ConnectFour(MultiAgentEnv):
    """Two players drop discs into seven columns in turn; four in a line win, an illegal move loses.

    The player whose turn it is observes the own discs, then the opponent's, and a mask of the columns with room.
    Rewards are 1.0 for a win and -1.0 for a loss.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "board": (ROWS, COLUMNS)}

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.render_mode = "ansi"
        self.possible_agents = list(PLAYERS)
        discs, mask = Box(0.0, 1.0, (2 * ROWS * COLUMNS,), np.float32), Box(0, 1, (COLUMNS,), np.int8)
        self.observation_space = Dict({"observations": discs, "action_mask": mask})
        self.action_space = Discrete(COLUMNS)
        self._discs = np.zeros((2, ROWS * COLUMNS), np.float32)

    @property
    def board(self) -> Sequence[int]:
        """The 42 cells: 0 is empty, 1 and 2 are the discs of player1 and player2."""
        cells: list[int] = (self._discs[0] + 2 * self._discs[1]).astype(int).tolist()
        return cells

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._discs[:] = 0.0
        self.agents = list(PLAYERS)
        return {PLAYERS[0]: self._seen_by(0)}, {}

    def step(self, action_dict: Any) -> Any:
        mover, waiting = (int(number) for number in np.argsort(self._discs.sum(axis=1), kind="stable"))
        column = int(action_dict[PLAYERS[mover]])
        room = self._room()
        if not 0 <= column < COLUMNS or not room[column]:
            return self._end(waiting)
        self._discs[mover, (room[column] - 1) * COLUMNS + column] = 1.0
        if has_four(self._discs[mover]):
            return self._end(mover)
        if self._discs.sum() == ROWS * COLUMNS:
            return self._end(None)
        rewards = dict.fromkeys(PLAYERS, 0.0)
        return {PLAYERS[waiting]: self._seen_by(waiting)}, rewards, {"__all__": False}, {"__all__": False}, {}

    def render(self) -> str:
        marks = [*(".XO"[owner] for owner in self.board), *map(str, range(COLUMNS))]
        return "\n".join(" ".join(marks[at : at + COLUMNS]) for at in range(0, len(marks), COLUMNS))

    def _end(self, winner: int | None) -> Any:
        self.agents = []
        obs = {player: self._seen_by(number) for number, player in enumerate(PLAYERS)}
        rewards = dict.fromkeys(PLAYERS, 0.0)
        if winner is not None:
            rewards = {PLAYERS[winner]: 1.0, PLAYERS[1 - winner]: -1.0}
        return obs, rewards, {**dict.fromkeys(PLAYERS, True), "__all__": True}, {"__all__": False}, {}

    def _room(self) -> npt.NDArray[np.int64]:
        """Return how many discs each column has room for."""
        discs = self._discs.sum(axis=0).reshape(ROWS, COLUMNS).sum(axis=0)
        room: npt.NDArray[np.int64] = (ROWS - discs).astype(np.int64)
        return room

    def _seen_by(self, player: int) -> dict[str, Any]:
        mask = (self._room() > 0 if self.agents else np.zeros(COLUMNS)).astype(np.int8)
        return {"observations": self._discs[[player, 1 - player]].ravel(), "action_mask": mask}
