"""Exact evaluation of policies for TicTacToe.

`losing_lines` says whether a policy can be beaten at all, `play_random` and `play_perfect` play games against it. A
policy is a function of a batch:

    choose(observations, action_mask) -> moves      float32 [B, 18], bool [B, 9] -> int [B]
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from menv.envs.tictactoe import LINES, Board, winner_of

Boards: TypeAlias = npt.NDArray[np.int8]
"""[B, 9]: 0 is empty, 1 the stones of the policy, 2 the stones of its opponent."""
Moves: TypeAlias = npt.NDArray[np.int64]
Choose: TypeAlias = Callable[[npt.NDArray[np.float32], npt.NDArray[np.bool_]], Any]
"""`choose(observations [B, 18], action_mask [B, 9]) -> moves [B]`, deterministic."""

_POWERS = 3 ** np.arange(9)


class PlayedLines(NamedTuple):
    """Ways in which the opponents beat a policy.

    A line is one sequence of moves of the opponent: with a deterministic policy it fixes the whole game. The
    policy loses it when the opponent completes three in a row, or when it plays an illegal move itself.

    Attributes:
        player1: Lost lines with the policy as player1.
        player2: Lost lines with the policy as player2.
    """

    player1: int
    player2: int

    @property
    def total(self) -> int:
        """Lost lines of both seats; 0 means that the policy cannot be beaten."""
        return self.player1 + self.player2


class PlayRecord(NamedTuple):
    """Results of several games, as the policy that is judged sees them."""

    wins: int
    draws: int
    losses: int


class Results(NamedTuple):
    """A `PlayRecord` for each seat."""

    player1: PlayRecord
    player2: PlayRecord


def losing_lines(choose: Choose) -> PlayedLines:
    """Play every line of every opponent against a deterministic policy, from both seats.

    Args:
        choose: The policy; called with all positions of one depth at once, at most 945.
    """
    return PlayedLines(*(_lost_lines(choose, policy_starts) for policy_starts in (True, False)))


def play_random(choose: Choose, games: int, seed: int | None = None) -> Results:
    """Play `games` games from each seat against an opponent that moves uniformly at random."""
    rng = np.random.default_rng(seed)
    return Results(*(_play(choose, _random_moves, starts, games, rng) for starts in (True, False)))


def play_perfect(choose: Choose, games: int, seed: int | None = None) -> Results:
    """Play `games` games from each seat against an opponent that takes a perfect move at random."""
    rng = np.random.default_rng(seed)
    return Results(*(_play(choose, _perfect_moves, starts, games, rng) for starts in (True, False)))


def choose_perfect(observations: npt.NDArray[np.float32], action_mask: npt.NDArray[np.bool_]) -> Moves:
    """Return the first perfect move in each position; a policy in the sense of this module."""
    boards = (observations[:, :9] + 2 * observations[:, 9:]).astype(np.int8)
    return _best(_perfect_table()[boards @ _POWERS])


def choose_first_legal(observations: npt.NDArray[np.float32], action_mask: npt.NDArray[np.bool_]) -> Moves:
    """Return the first empty square of each position; a policy that is easily beaten."""
    return _best(action_mask)


@functools.cache
def board_value(board: Board) -> int:
    """Return the value of `board` for its mover under perfect play: 1 wins, 0 draws, -1 loses.

    Args:
        board: As `TicTacToe.board`; the number of stones says whose turn it is.
    """
    if winner_of(board) is not None:
        # Only the player who just moved can own a line.
        return -1
    return max((-board_value(after) for _, after in _replies(board)), default=0)


def perfect_moves(board: Board) -> tuple[int, ...]:
    """Return every move that keeps the value of `board`, in order; none if the game is over."""
    if winner_of(board) is not None:
        return ()
    value = board_value(board)
    return tuple(square for square, after in _replies(board) if -board_value(after) == value)


def _replies(board: Board) -> list[tuple[int, Board]]:
    stone = 1 + (9 - board.count(0)) % 2
    return [
        (square, (*board[:square], stone, *board[square + 1 :])) for square in range(9) if board[square] == 0
    ]


@functools.cache
def _perfect_table() -> npt.NDArray[np.bool_]:
    """Return the perfect moves of every position as [19683, 9].

    A row's number is its board in base 3 with the mover's stones as 1 and the other's as 2, the first square
    being the lowest digit. Boards that cannot occur have no moves.
    """
    table = np.zeros((3**9, 9), np.bool_)
    seen: set[Board] = set()
    front: list[Board] = [(0,) * 9]
    while front:
        board = front.pop()
        if board in seen:
            continue
        seen.add(board)
        stone = 1 + (9 - board.count(0)) % 2
        own_first = [0 if square == 0 else 1 if square == stone else 2 for square in board]
        row = int(np.dot(own_first, _POWERS))
        table[row, list(perfect_moves(board))] = True
        if winner_of(board) is None:
            front.extend(after for _, after in _replies(board))
    return table


def _lost_lines(choose: Choose, policy_starts: bool) -> int:
    boards = np.zeros((1, 9), np.int8)
    if not policy_starts:
        boards, _ = _every_reply(boards)
    lost = 0
    while len(boards):
        boards, illegal = _policy_moves(choose, boards)
        lost += int(illegal.sum())
        boards, beaten = _every_reply(boards[~illegal & ~_over(boards)])
        lost += int(beaten.sum())
        boards = boards[~beaten & (boards == 0).any(axis=1)]
    return lost


def _every_reply(boards: Boards) -> tuple[Boards, npt.NDArray[np.bool_]]:
    """Return the boards after each legal reply of the opponent, and where it has won."""
    rows, squares = np.nonzero(boards == 0)
    after = boards[rows]
    after[np.arange(len(rows)), squares] = 2
    return after, _has_line(after, 2)


def _policy_moves(choose: Choose, boards: Boards) -> tuple[Boards, npt.NDArray[np.bool_]]:
    """Return the boards after the policy's moves, and where its move was illegal."""
    free = boards == 0
    observations = np.concatenate([boards == 1, boards == 2], axis=1).astype(np.float32)
    moves = np.asarray(choose(observations, free.copy())).astype(np.int64).reshape(len(boards))
    legal = (moves >= 0) & (moves < 9)
    rows = np.arange(len(boards))
    legal &= free[rows, np.where(legal, moves, 0)]
    after = boards.copy()
    after[rows[legal], moves[legal]] = 1
    return after, ~legal


def _play(
    choose: Choose,
    opponent: Callable[[Boards, np.random.Generator], Moves],
    policy_starts: bool,
    games: int,
    rng: np.random.Generator,
) -> PlayRecord:
    boards = np.zeros((games, 9), np.int8)
    wins = draws = losses = 0
    policy_moves = policy_starts
    while len(boards):
        if policy_moves:
            boards, lost = _policy_moves(choose, boards)
            won = _has_line(boards, 1)
        else:
            boards[np.arange(len(boards)), opponent(boards, rng)] = 2
            won, lost = np.zeros(len(boards), np.bool_), _has_line(boards, 2)
        drawn = ~won & ~lost & (boards != 0).all(axis=1)
        wins, draws, losses = wins + int(won.sum()), draws + int(drawn.sum()), losses + int(lost.sum())
        boards = boards[~(won | lost | drawn)]
        policy_moves = not policy_moves
    return PlayRecord(wins, draws, losses)


def _random_moves(boards: Boards, rng: np.random.Generator) -> Moves:
    return _any_true(boards == 0, rng)


def _perfect_moves(boards: Boards, rng: np.random.Generator) -> Moves:
    own_first = np.array([0, 2, 1], np.int8)[boards]
    return _any_true(_perfect_table()[own_first @ _POWERS], rng)


def _best(scores: npt.NDArray[Any]) -> Moves:
    moves: Moves = np.argmax(scores, axis=1)
    return moves


def _any_true(allowed: npt.NDArray[np.bool_], rng: np.random.Generator) -> Moves:
    return _best(np.where(allowed, rng.random(allowed.shape), -1.0))


def _has_line(boards: Boards, stone: int) -> npt.NDArray[np.bool_]:
    owned: npt.NDArray[np.bool_] = np.all(boards[:, np.array(LINES)] == stone, axis=2).any(axis=1)
    return owned


def _over(boards: Boards) -> npt.NDArray[np.bool_]:
    full: npt.NDArray[np.bool_] = np.all(boards != 0, axis=1)
    return _has_line(boards, 1) | full
