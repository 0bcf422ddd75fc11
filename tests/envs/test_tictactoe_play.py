"""The judges of TicTacToe policies, checked against the game itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from examples.tictactoe_play import (
    Choose,
    PlayRecord,
    best_moves,
    board_value,
    losing_lines,
    perfect_moves,
    play,
    random_moves,
)
from menv.envs.tictactoe import PLAYERS, TicTacToe


def choose_perfect(observations: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_]) -> list[int]:
    boards = (observations[:, :9] + 2 * observations[:, 9:]).astype(int).tolist()
    return [best_moves(tuple(board))[0] for board in boards]


def choose_first_legal(observations: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_]) -> Any:
    return mask.argmax(axis=1)


def one_move(choose: Choose, seen: dict[str, npt.NDArray[Any]]) -> int:
    mask = seen["action_mask"][None].astype(bool)
    return int(choose(seen["observations"][None], mask)[0])


def all_results(choose: Choose, seat: str, opponent_moves: tuple[int, ...] = ()) -> Iterator[float]:
    """Yield the result of every line of the opponent, by playing each game from its start."""
    env = TicTacToe()
    obs, _ = env.reset()
    rewards: dict[str, float] = {}
    script = list(opponent_moves)
    while env.agents:
        ((agent, seen),) = obs.items()
        if agent == seat:
            square = one_move(choose, seen)
        elif script:
            square = script.pop(0)
        else:
            for square in np.flatnonzero(seen["action_mask"]).tolist():
                yield from all_results(choose, seat, (*opponent_moves, square))
            return
        obs, rewards, *_ = env.step({agent: square})
    yield rewards[seat]


@pytest.mark.parametrize("choose", [choose_perfect, choose_first_legal])
def test_losing_lines_agree_with_playing_every_game(choose: Choose) -> None:
    lost = [sum(result < 0 for result in all_results(choose, seat)) for seat in PLAYERS]
    assert losing_lines(choose) == lost


def test_a_perfect_player_loses_no_line() -> None:
    assert losing_lines(choose_perfect) == [0, 0]


def test_policies_see_what_the_game_shows() -> None:
    shown: set[bytes] = set()

    def recording(observations: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_]) -> Any:
        shown.update(row.tobytes() + free.tobytes() for row, free in zip(observations, mask, strict=True))
        assert observations.dtype == np.float32
        assert mask.dtype == np.bool_
        return choose_first_legal(observations, mask)

    losing_lines(recording)
    seen_in_games: set[bytes] = set()

    def watching(observations: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_]) -> Any:
        seen_in_games.add(observations[0].tobytes() + mask[0].tobytes())
        return choose_first_legal(observations, mask)

    for seat in PLAYERS:
        assert sum(1 for _ in all_results(watching, seat)) > 0
    assert shown == seen_in_games


def test_the_empty_board_is_worth_a_draw_and_every_first_move_keeps_it() -> None:
    assert board_value((0,) * 9) == 0
    assert best_moves((0,) * 9) == list(range(9))


def test_a_win_is_taken_and_a_threat_is_blocked() -> None:
    assert best_moves((1, 1, 0, 2, 2, 0, 0, 0, 0))[0] == 2
    assert best_moves((2, 2, 0, 0, 1, 0, 0, 0, 0)) == [2]
    assert board_value((1, 1, 0, 2, 2, 0, 0, 0, 0)) == 1


def test_random_opponents_are_counted_per_seat_and_reproducibly() -> None:
    results = play(choose_perfect, random_moves, 1000, seed=1)
    assert results == play(choose_perfect, random_moves, 1000, seed=1)
    assert results != play(choose_perfect, random_moves, 1000, seed=2)
    for record in results:
        assert sum(record) == 1000
        assert record.losses == 0
    assert results[0].wins > results[1].wins > 500


def test_perfect_players_draw_and_beat_the_first_legal_move() -> None:
    draws = PlayRecord(0, 500, 0)
    assert play(choose_perfect, perfect_moves, 500, seed=0) == [draws, draws]
    for beaten in play(choose_first_legal, perfect_moves, 500, seed=0):
        assert beaten.wins == 0
        assert beaten.losses > 400
