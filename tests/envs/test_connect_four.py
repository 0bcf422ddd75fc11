"""Connect four among the examples: its rules against a slow referee."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.connect_four import COLUMNS, LINES, PLAYERS, ROWS, ConnectFour, has_four
from menv.base_env import ALL
from menv.checking import check_env

DRAW = tuple(map(int, "436014551150160155104632660465204242223333"))


def lines_of(columns: Sequence[Sequence[str]]) -> set[str]:
    """Return who owns a line of four; columns grow from the bottom."""
    at = {(x, y): owner for x, column in enumerate(columns) for y, owner in enumerate(column)}
    ways = ((1, 0), (0, 1), (1, 1), (1, -1))
    return {
        owner
        for (x, y), owner in at.items()
        for right, up in ways
        if all(at.get((x + right * step, y + up * step)) == owner for step in range(4))
    }


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, COLUMNS - 1), min_size=20, max_size=120))
def test_every_game_agrees_with_a_slow_reference(wishes: Sequence[int]) -> None:
    env, columns = ConnectFour(), [list[str]() for _ in range(COLUMNS)]
    obs, _ = env.reset()
    turn = 0
    for column in wishes:
        if len(columns[column]) == ROWS:
            continue
        mover, waiting = PLAYERS[turn % 2], PLAYERS[1 - turn % 2]
        assert list(obs) == [mover]
        assert obs[mover]["action_mask"].tolist() == [len(one) < ROWS for one in columns]
        columns[column].append(mover)
        obs, rewards, terminateds, truncateds, _ = env.step({mover: column})
        turn += 1
        winners = lines_of(columns)
        over = bool(winners) or all(len(one) == ROWS for one in columns)
        assert (terminateds[ALL], truncateds) == (over, {ALL: False})
        assert winners <= {mover}
        won = float(bool(winners))
        assert rewards == {mover: won, waiting: -won}
        if over:
            assert env.agents == []
            return
        own, other = obs[waiting]["observations"].reshape(2, ROWS, COLUMNS)
        assert own.sum() + other.sum() == turn
        assert other[ROWS - len(columns[column]), column] == 1.0


def test_every_line_of_four_wins_and_there_are_69_of_them() -> None:
    assert len({tuple(sorted(line)) for line in LINES.tolist()}) == 69
    discs = np.zeros(ROWS * COLUMNS, np.float32)
    discs[LINES[0][:3]] = 1.0
    assert not has_four(discs)


def test_a_full_board_without_a_line_is_a_draw() -> None:
    env = ConnectFour()
    env.reset()
    for turn, column in enumerate(DRAW):
        _, rewards, terminateds, *_ = env.step({PLAYERS[turn % 2]: column})
    assert 0 not in env.board
    assert rewards == {"player1": 0.0, "player2": 0.0}
    assert terminateds[ALL]


def test_an_illegal_move_loses_at_once() -> None:
    env = ConnectFour()
    env.reset()
    _, rewards, terminateds, *_ = env.step({"player1": 7})
    assert rewards == {"player1": -1.0, "player2": 1.0}
    assert terminateds[ALL]


def test_the_checker_finds_nothing_and_the_text_shows_the_board() -> None:
    check_env(ConnectFour)
    env = ConnectFour()
    env.reset()
    env.step({"player1": 0})
    env.step({"player2": 6})
    assert env.render().splitlines()[-2:] == ["X . . . . . O", "0 1 2 3 4 5 6"]
