"""Connect four as a `MultiAgentEnv`: rules held against a slow referee, observations, pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.base_env import ALL
from menv.checking import check_env
from menv.envs.connect_four import PLAYERS, ConnectFour, has_four, picture_of, text_of
from menv.errors import CallOrderError, ConfigError, ContractError

ROWS, COLUMNS = 6, 7
ACROSS = (0, 0, 1, 1, 2, 2, 3)
DRAW = tuple(map(int, "436014551150160155104632660465204242223333"))


class Referee:
    """Plays with lists and looks at every four cells in every direction; height 0 is the bottom."""

    def __init__(self) -> None:
        self.columns: list[list[str]] = [[] for _ in range(COLUMNS)]

    def owner(self, column: int, height: int) -> str | None:
        inside = 0 <= column < COLUMNS and 0 <= height < len(self.columns[column])
        return self.columns[column][height] if inside else None

    def has_room(self) -> list[bool]:
        return [len(column) < ROWS for column in self.columns]

    def winners(self) -> set[str]:
        found = set()
        for column in range(COLUMNS):
            for height in range(ROWS):
                for right, up in ((1, 0), (0, 1), (1, 1), (1, -1)):
                    four = {self.owner(column + right * step, height + up * step) for step in range(4)}
                    if len(four) == 1:
                        found |= four
        return {player for player in found if player is not None}

    def board(self) -> tuple[int, ...]:
        marks = {None: 0, "player1": 1, "player2": 2}
        cells = ((column, height) for height in reversed(range(ROWS)) for column in range(COLUMNS))
        return tuple(marks[self.owner(column, height)] for column, height in cells)


def play(columns: Iterable[int]) -> tuple[ConnectFour, Any]:
    env = ConnectFour()
    outcome: Any = (*env.reset(), None, None, None)
    for turn, column in enumerate(columns):
        outcome = env.step({PLAYERS[turn % 2]: column})
    return env, outcome


def bits(cells: Iterable[tuple[int, int]]) -> int:
    return sum(1 << (column * 7 + height) for column, height in cells)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, COLUMNS - 1), min_size=20, max_size=120))
def test_any_game_goes_as_a_slow_referee_says(wishes: Sequence[int]) -> None:
    env, referee = ConnectFour(), Referee()
    obs, _ = env.reset()
    turn = 0
    for column in wishes:
        if not referee.has_room()[column]:
            continue
        mover, waiting = PLAYERS[turn % 2], PLAYERS[1 - turn % 2]
        assert list(obs) == [mover]
        assert obs[mover]["action_mask"].tolist() == referee.has_room()
        own, other = obs[mover]["observations"].reshape(2, -1)
        assert tuple((own + 2 * other if turn % 2 == 0 else other + 2 * own).astype(int)) == referee.board()
        referee.columns[column].append(mover)
        obs, rewards, terminateds, truncateds, infos = env.step({mover: column})
        turn += 1
        over = bool(referee.winners()) or not any(referee.has_room())
        assert env.board == referee.board()
        assert terminateds[ALL] == over
        assert (truncateds, infos) == ({ALL: False}, {})
        if referee.winners():
            assert referee.winners() == {mover}
            assert rewards == {mover: 1.0, waiting: -1.0}
        else:
            assert rewards == {mover: 0.0, waiting: 0.0}
        if over:
            assert env.agents == []
            return


def test_every_line_of_four_wins_and_there_are_69_of_them() -> None:
    inside = {(column, height) for column in range(COLUMNS) for height in range(ROWS)}
    lines = [
        [(column + right * step, height + up * step) for step in range(4)]
        for column, height in inside
        for right, up in ((1, 0), (0, 1), (1, 1), (1, -1))
    ]
    lines = [line for line in lines if inside.issuperset(line)]
    assert len(lines) == 69
    for line in lines:
        assert has_four(bits(line))
        assert not any(has_four(bits(cell for cell in line if cell != gone)) for gone in line)


@pytest.mark.parametrize(
    "cells",
    [
        [(0, 4), (0, 5), (1, 0), (1, 1)],
        [(0, 5), (1, 5), (2, 5), (4, 5)],
        [(0, 3), (1, 4), (2, 5), (4, 0)],
        [(0, 2), (1, 1), (2, 0), (2, 5)],
        [(3, 5), (4, 0), (4, 1), (4, 2)],
    ],
)
def test_a_line_never_runs_over_an_edge(cells: list[tuple[int, int]]) -> None:
    assert not has_four(bits(cells))


def test_player1_is_asked_first_on_an_empty_board() -> None:
    obs, infos = ConnectFour().reset(seed=3)
    assert list(obs) == ["player1"]
    assert infos == {}
    assert obs["player1"]["observations"].tolist() == [0.0] * 84
    assert obs["player1"]["action_mask"].tolist() == [1] * 7


def test_each_player_sees_the_own_discs_first() -> None:
    _, (obs, *_) = play([3])
    assert np.flatnonzero(obs["player2"]["observations"]).tolist() == [42 + 5 * 7 + 3]
    _, (obs, *_) = play([3, 3])
    assert np.flatnonzero(obs["player1"]["observations"]).tolist() == [5 * 7 + 3, 42 + 4 * 7 + 3]


@pytest.mark.parametrize(
    ("columns", "winner"),
    [
        (ACROSS, "player1"),
        ((6, 5, 6, 5, 6, 5, 6), "player1"),
        ((6, 0, 6, 0, 6, 0, 1, 0), "player2"),
        ((0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3), "player1"),
        ((6, 5, 5, 4, 4, 3, 4, 3, 3, 0, 3), "player1"),
    ],
)
def test_four_in_a_line_win(columns: tuple[int, ...], winner: str) -> None:
    env, (obs, rewards, terminateds, truncateds, _) = play(columns)
    assert rewards == {player: 1.0 if player == winner else -1.0 for player in PLAYERS}
    assert terminateds == {"player1": True, "player2": True, ALL: True}
    assert truncateds == {ALL: False}
    assert env.agents == []
    assert set(obs) == set(PLAYERS)
    assert not obs["player1"]["action_mask"].any()
    first, second = (obs[player]["observations"].reshape(2, 42) for player in PLAYERS)
    assert np.array_equal(first, second[::-1])
    assert first.sum() == len(columns)


def test_a_full_board_without_a_line_is_a_draw() -> None:
    env, (_, rewards, terminateds, _, infos) = play(DRAW)
    assert 0 not in env.board
    assert rewards == {"player1": 0.0, "player2": 0.0}
    assert terminateds[ALL]
    assert infos == {}


@pytest.mark.parametrize("column", [2, 7, -1, 100])
def test_an_illegal_move_loses_at_once(column: int) -> None:
    env, (obs, rewards, terminateds, _, infos) = play([2, 2, 2, 2, 2, 2, 0, column])
    assert rewards == {"player1": 1.0, "player2": -1.0}
    assert terminateds == {"player1": True, "player2": True, ALL: True}
    assert infos == {"player2": {"illegal_move": column}}
    assert obs["player2"]["observations"].sum() == 7
    assert env.agents == []


def test_a_full_column_is_masked_until_the_next_game() -> None:
    env, (obs, *_) = play([2, 2, 2, 2, 2, 2])
    assert obs["player1"]["action_mask"].tolist() == [1, 1, 0, 1, 1, 1, 1]
    obs, _ = env.reset()
    assert obs["player1"]["action_mask"].tolist() == [1] * 7
    assert env.board == (0,) * 42


def test_arrays_that_were_handed_out_belong_to_the_caller() -> None:
    env = ConnectFour()
    first, _ = env.reset()
    first["player1"]["observations"][:] = 9.0
    first["player1"]["action_mask"][:] = 9
    second, *_ = env.step({"player1": 0})
    assert second["player2"]["observations"].sum() == 1.0
    assert second["player2"]["action_mask"].tolist() == [1] * 7
    kept = second["player2"]["observations"].copy()
    env.step({"player2": 1})
    assert np.array_equal(second["player2"]["observations"], kept)


@pytest.mark.parametrize("action", [np.int64(3), np.array(3), np.int8(3), True + 2])
def test_integers_of_any_kind_are_moves(action: Any) -> None:
    env, _ = play([action])
    assert env.board.index(1) == 5 * 7 + 3


@pytest.mark.parametrize("actions", [{}, {"player2": 1}, {"player1": 1, "player2": 2}, {"player1": 1.5}])
def test_whoever_answers_out_of_turn_is_told_whose_turn_it_is(actions: dict[str, Any]) -> None:
    env, _ = play([])
    with pytest.raises(ContractError, match="expected one integer from 'player1' alone"):
        env.step(actions)
    assert env.board == (0,) * 42


def test_a_step_outside_a_game_asks_for_reset() -> None:
    with pytest.raises(CallOrderError, match="call reset"):
        ConnectFour().step({"player1": 0})
    env, _ = play(ACROSS)
    with pytest.raises(CallOrderError, match="call reset"):
        env.step({"player2": 5})


def test_games_in_several_instances_do_not_touch_each_other() -> None:
    one, _ = play([0])
    other, _ = play([6, 5])
    assert (sum(one.board), sum(other.board)) == (1, 3)


def test_the_checker_finds_nothing() -> None:
    check_env("connect_four")


def test_the_text_shows_the_board() -> None:
    env, _ = play([0, 6, 0])
    lines = env.render().splitlines()
    assert lines == [". . . . . . ."] * 4 + ["X . . . . . .", "X . . . . . O", "0 1 2 3 4 5 6"]
    assert env.render() == text_of(env.board)


def test_the_picture_shows_discs_of_two_colours() -> None:
    env = ConnectFour({"render_mode": "rgb_array"})
    env.reset()
    empty = env.render()
    assert (empty.shape, empty.dtype) == ((384, 448, 3), np.uint8)
    env.step({"player1": 0})
    env.step({"player2": 6})
    full = env.render()
    assert np.array_equal(full, picture_of(env.board))
    changed = (full != empty).any(axis=2)
    assert changed[320:, :64].any()
    assert changed[320:, 384:].any()
    assert not changed[:320].any()
    assert not changed[:, 64:384].any()
    assert full[352, 32].tolist() != full[352, 416].tolist()


def test_an_unknown_render_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="render_mode is 'human'"):
        ConnectFour({"render_mode": "human"})
