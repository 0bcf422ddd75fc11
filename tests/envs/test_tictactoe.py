"""TicTacToe as a `MultiAgentEnv`: rules, observations, pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.base_env import ALL
from menv.envs.tictactoe import PLAYERS, TicTacToe, picture_of, text_of, winner_of
from menv.errors import CallOrderError, ContractError

X_WINS = (0, 3, 1, 4, 2)
O_WINS = (0, 2, 1, 4, 8, 6)
DRAW = (0, 1, 2, 4, 3, 5, 7, 6, 8)


def play(*squares: int) -> tuple[TicTacToe, Any]:
    env = TicTacToe()
    outcome: Any = (*env.reset(), None, None, None)
    for turn, square in enumerate(squares):
        outcome = env.step({PLAYERS[turn % 2]: square})
    return env, outcome


def test_player1_is_asked_first_on_an_empty_board() -> None:
    obs, infos = TicTacToe().reset(seed=3)
    assert list(obs) == ["player1"]
    assert infos == {}
    assert obs["player1"]["observations"].tolist() == [0.0] * 18
    assert obs["player1"]["action_mask"].tolist() == [1] * 9


def test_each_player_sees_the_own_stones_first() -> None:
    _, (obs, rewards, terminateds, truncateds, infos) = play(4)
    assert list(obs) == ["player2"]
    seen = obs["player2"]["observations"]
    assert np.flatnonzero(seen).tolist() == [9 + 4]
    assert obs["player2"]["action_mask"].tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1]
    assert rewards == {"player1": 0.0, "player2": 0.0}
    assert (terminateds, truncateds, infos) == ({ALL: False}, {ALL: False}, {})
    _, (obs, *_) = play(4, 0)
    assert np.flatnonzero(obs["player1"]["observations"]).tolist() == [4, 9 + 0]


@pytest.mark.parametrize(("moves", "winner", "loser"), [(X_WINS, *PLAYERS), (O_WINS, *PLAYERS[::-1])])
def test_three_in_a_row_win(moves: tuple[int, ...], winner: str, loser: str) -> None:
    env, (obs, rewards, terminateds, truncateds, _) = play(*moves)
    assert rewards == {winner: 1.0, loser: -1.0}
    assert terminateds == {"player1": True, "player2": True, ALL: True}
    assert truncateds == {ALL: False}
    assert env.agents == []
    assert set(obs) == set(PLAYERS)


def test_a_full_board_without_a_line_is_a_draw() -> None:
    _, (_, rewards, terminateds, _, _) = play(*DRAW)
    assert rewards == {"player1": 0.0, "player2": 0.0}
    assert terminateds[ALL]


def test_each_player_gets_its_own_last_observation() -> None:
    _, (obs, *_) = play(*X_WINS)
    assert np.flatnonzero(obs["player1"]["observations"]).tolist() == [0, 1, 2, 9 + 3, 9 + 4]
    assert np.flatnonzero(obs["player2"]["observations"]).tolist() == [3, 4, 9 + 0, 9 + 1, 9 + 2]
    assert not obs["player1"]["action_mask"].any()


@pytest.mark.parametrize("square", [4, 9, -1, 100])
def test_an_illegal_move_loses_at_once(square: int) -> None:
    _, (obs, rewards, terminateds, _, infos) = play(4, square)
    assert rewards == {"player1": 1.0, "player2": -1.0}
    assert terminateds == {"player1": True, "player2": True, ALL: True}
    assert infos == {"player2": {"illegal_move": square}}
    assert np.flatnonzero(obs["player2"]["observations"]).tolist() == [9 + 4]


def test_all_eight_lines_win_and_nothing_else_does() -> None:
    won = {
        bits
        for bits in range(512)
        if bits.bit_count() == 3 and winner_of(tuple(bits >> square & 1 for square in range(9))) == "player1"
    }
    assert won == {0b111, 0b111000, 0b111000000, 0b1001001, 0b10010010, 0b100100100, 0b100010001, 0b1010100}


def test_observations_are_in_their_space_whatever_is_played() -> None:
    env, rng = TicTacToe(), np.random.default_rng(0)
    for _ in range(50):
        obs, _ = env.reset()
        while env.agents:
            assert env.observation_space_contains(obs)
            ((agent, seen),) = obs.items()
            obs, *_ = env.step({agent: rng.choice(np.flatnonzero(seen["action_mask"]))})
        assert env.observation_space_contains(obs)


@pytest.mark.parametrize("actions", [{}, {"player2": 1}, {"player1": 1, "player2": 2}, {"player1": 1.5}])
def test_an_action_out_of_turn_names_the_player_to_move(actions: dict[str, Any]) -> None:
    env = TicTacToe()
    env.reset()
    with pytest.raises(ContractError, match="'player1'"):
        env.step(actions)
    assert env.board == (0,) * 9


def test_a_step_outside_a_game_asks_for_reset() -> None:
    with pytest.raises(CallOrderError, match="reset"):
        TicTacToe().step({"player1": 0})
    env, _ = play(*X_WINS)
    with pytest.raises(CallOrderError, match="reset"):
        env.step({"player2": 5})


def test_the_text_shows_the_board() -> None:
    env, _ = play(0, 4, 8)
    assert (
        env.render()
        == " X | 1 | 2 \n---+---+---\n 3 | O | 5 \n---+---+---\n 6 | 7 | X "
        == text_of(env.board)
    )


def test_the_picture_shows_marks_of_two_kinds() -> None:
    env = TicTacToe({"render_mode": "rgb_array"})
    env.reset()
    empty = env.render()
    assert (empty.shape, empty.dtype) == ((192, 192, 3), np.uint8)
    marks = picture_of((1, 2, 0, 0, 0, 0, 0, 0, 0))
    changed = (marks != empty).any(axis=2)
    assert changed[:64, :64].any()
    assert changed[:64, 64:128].any()
    assert not changed[64:].any()
    assert not np.array_equal(marks[:64, :64], marks[:64, 64:128])
