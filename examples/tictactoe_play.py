"""Exact evaluation of policies for TicTacToe, which examples/tictactoe.py uses.

`losing_lines` says whether a policy can be beaten at all, `play` plays games against it. A policy is a function of a
batch: `choose(observations, action_mask) -> moves`, of float32 [B, 18] and bool [B, 9] to int [B].
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from menv.envs.tictactoe import LINES, Board, winner_of

Boards: TypeAlias = npt.NDArray[np.int8]
"""[B, 9]: 0 is empty, 1 the stones of the policy, 2 the stones of its opponent."""
Flags: TypeAlias = npt.NDArray[np.bool_]
Choose: TypeAlias = Callable[[npt.NDArray[np.float32], Flags], Any]
Opponent: TypeAlias = Callable[[Boards, np.random.Generator], Any]


class PlayRecord(NamedTuple):
    wins: int
    draws: int
    losses: int


def losing_lines(choose: Choose) -> list[int]:
    """Return how many sequences of the opponent's moves beat a deterministic policy as player1 and as player2."""
    return [_lost_lines(choose, policy_starts) for policy_starts in (True, False)]


def play(choose: Choose, opponent: Opponent, games: int, seed: int | None = None) -> list[PlayRecord]:
    """Play as player1 and as player2 against `random_moves` or `perfect_moves`."""
    rng = np.random.default_rng(seed)
    return [_play(choose, opponent, policy_starts, games, rng) for policy_starts in (True, False)]


def random_moves(boards: Boards, rng: np.random.Generator) -> Any:
    return np.argmax((boards == 0) * rng.random(boards.shape), axis=1)


def perfect_moves(boards: Boards, rng: np.random.Generator) -> Any:
    return [rng.choice(best_moves(_swapped(board))) for board in boards.tolist()]


@functools.cache
def board_value(board: Board) -> int:
    """Return the value of a board under perfect play for its mover, whose stones are 1: 1 wins, 0 draws, -1 loses."""
    # Only the player who just moved can own a line.
    lost = winner_of(board) is not None
    return -1 if lost else max((-board_value(after) for after in _replies(board).values()), default=0)


@functools.cache
def best_moves(board: Board) -> list[int]:
    """Return every move that keeps the value of a board, in order; none if the game is over."""
    replies = {} if winner_of(board) is not None else _replies(board)
    return [square for square, after in replies.items() if -board_value(after) == board_value(board)]


def _swapped(board: Any) -> Board:
    return tuple((0, 2, 1)[stone] for stone in board)


def _replies(board: Board) -> dict[int, Board]:
    """Return the boards after each move of the mover, as the other player sees them."""
    empty = [square for square in range(9) if board[square] == 0]
    return {square: _swapped((*board[:square], 1, *board[square + 1 :])) for square in empty}


def _lost_lines(choose: Choose, moves: bool) -> int:
    boards, lost = np.zeros((1, 9), np.int8), 0
    while len(boards):
        if moves:
            boards, beaten = _policy_moves(choose, boards)
        else:
            rows, squares = np.nonzero(boards == 0)
            boards = boards[rows]
            boards[np.arange(len(rows)), squares] = 2
            beaten = _has_line(boards, 2)
        lost += int(beaten.sum())
        boards = boards[~beaten & ~_has_line(boards, 1) & (boards == 0).any(axis=1)]
        moves = not moves
    return lost


def _policy_moves(choose: Choose, boards: Boards) -> tuple[Boards, Flags]:
    """Return the boards after the policy's moves, and where its move was illegal."""
    free = boards == 0
    observations = np.concatenate([boards == 1, boards == 2], axis=1).astype(np.float32)
    moves = np.asarray(choose(observations, free.copy()), np.int64)
    rows = np.arange(len(boards))
    legal = (moves >= 0) & (moves < 9) & free[rows, np.clip(moves, 0, 8)]
    after = boards.copy()
    after[rows[legal], moves[legal]] = 1
    return after, ~legal


def _play(
    choose: Choose, opponent: Opponent, moves: bool, games: int, rng: np.random.Generator
) -> PlayRecord:
    boards, record = np.zeros((games, 9), np.int8), np.zeros(3, np.int64)
    while len(boards):
        lost = np.zeros(len(boards), np.bool_)
        if moves:
            boards, lost = _policy_moves(choose, boards)
        else:
            boards[np.arange(len(boards)), opponent(boards, rng)] = 2
        won, lost = _has_line(boards, 1), lost | _has_line(boards, 2)
        drawn = ~won & ~lost & (boards != 0).all(axis=1)
        record += [won.sum(), drawn.sum(), lost.sum()]
        boards = boards[~(won | lost | drawn)]
        moves = not moves
    return PlayRecord(*record.tolist())


def _has_line(boards: Boards, stone: int) -> Flags:
    return np.array((boards[:, LINES] == stone).all(axis=2).any(axis=1))
