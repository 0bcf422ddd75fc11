"""Rock-paper-scissors, the two-step game, and the package that hands them out."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import menv.envs
from menv.base_env import ALL
from menv.envs.rock_paper_scissors import NOTHING, PAPER, ROCK, SCISSORS, RockPaperScissors
from menv.envs.two_step_game import FIRST, STATE_2A, STATE_2B, TwoStepGame
from menv.errors import CallOrderError, ConfigError, ContractError


def test_the_package_exports_every_name_it_lists() -> None:
    for name in menv.envs.__all__:
        assert getattr(menv.envs, name).__module__.startswith("menv.envs.")
        assert name in dir(menv.envs)
    with pytest.raises(AttributeError, match="'Chess'"):
        _ = menv.envs.Chess


def test_importing_the_package_imports_no_environment() -> None:
    code = "import sys, menv.envs; sys.exit('menv.envs.traffic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("first", "second", "score"),
    [
        (ROCK, SCISSORS, 1.0),
        (PAPER, ROCK, 1.0),
        (SCISSORS, PAPER, 1.0),
        (ROCK, PAPER, -1.0),
        (PAPER, PAPER, 0.0),
    ],
)
def test_hands_beat_each_other_in_a_circle(first: int, second: int, score: float) -> None:
    env = RockPaperScissors()
    obs, _ = env.reset()
    assert obs == {"player1": NOTHING, "player2": NOTHING}
    obs, rewards, terminateds, truncateds, _ = env.step({"player1": first, "player2": second})
    assert obs == {"player1": second, "player2": first}
    assert rewards == {"player1": score, "player2": -score}
    assert not any(terminateds.values())
    assert truncateds == {ALL: False}


def test_ten_rounds_end_the_game_for_both() -> None:
    env = RockPaperScissors()
    env.reset()
    flags = [env.step({"player1": ROCK, "player2": PAPER})[2] for _ in range(10)]
    assert [flag[ALL] for flag in flags] == [False] * 9 + [True]
    assert flags[-1] == {"player1": True, "player2": True, ALL: True}
    assert env.agents == []
    with pytest.raises(CallOrderError, match="reset"):
        env.step({"player1": ROCK, "player2": PAPER})


def test_the_number_of_rounds_can_be_set() -> None:
    env = RockPaperScissors({"rounds": 1})
    env.reset()
    assert env.step({"player1": ROCK, "player2": PAPER})[2][ALL]
    with pytest.raises(ConfigError, match="rounds"):
        RockPaperScissors({"rounds": 0})


@pytest.mark.parametrize(
    "actions", [{}, {"player1": 0}, {"player1": 0, "player2": 3}, {"player1": 0, "cat": 1}]
)
def test_both_players_must_show_a_hand(actions: dict[str, Any]) -> None:
    env = RockPaperScissors()
    env.reset()
    with pytest.raises(ContractError, match="player1"):
        env.step(actions)


@pytest.mark.parametrize(
    ("choice", "second", "state", "team"),
    [
        (0, (0, 0), STATE_2A, 7.0),
        (0, (1, 0), STATE_2A, 7.0),
        (1, (0, 0), STATE_2B, 0.0),
        (1, (0, 1), STATE_2B, 1.0),
        (1, (1, 0), STATE_2B, 1.0),
        (1, (1, 1), STATE_2B, 8.0),
    ],
)
@pytest.mark.parametrize("no_say", [0, 1])
def test_the_two_step_game_pays_the_team_as_published(
    choice: int, second: tuple[int, int], state: int, team: float, no_say: int
) -> None:
    env = TwoStepGame()
    obs, _ = env.reset()
    assert np.flatnonzero(obs["agent_2"]).tolist() == [FIRST, 4]
    obs, rewards, terminateds, truncateds, _ = env.step({"agent_1": choice, "agent_2": no_say})
    assert sum(rewards.values()) == 0.0
    assert not any(terminateds.values())
    assert np.flatnonzero(obs["agent_1"]).tolist() == [state, 3]
    assert np.flatnonzero(env.state()).tolist() == [state]
    obs, rewards, terminateds, truncateds, _ = env.step(dict(zip(obs, second, strict=True)))
    assert rewards == {"agent_1": team / 2, "agent_2": team / 2}
    assert terminateds == {"agent_1": True, "agent_2": True, ALL: True}
    assert truncateds == {ALL: False}
    assert env.observation_space_contains(obs)


@pytest.mark.parametrize("one_hot", [True, False])
@pytest.mark.parametrize("with_state", [True, False])
def test_the_two_step_game_shows_what_its_settings_ask_for(one_hot: bool, with_state: bool) -> None:
    env = TwoStepGame({"one_hot_state_encoding": one_hot, "with_state": with_state})
    for number, (obs, state) in enumerate([
        (env.reset()[0], FIRST),
        (env.step({"agent_1": 1, "agent_2": 0})[0], STATE_2B),
        (env.step({"agent_1": 1, "agent_2": 0})[0], STATE_2B),
    ]):  # fmt: skip
        assert env.observation_space_contains(obs), number
        for agent, place in (("agent_1", 0), ("agent_2", 1)):
            shown = obs[agent]
            if with_state:
                assert np.flatnonzero(shown["state"]).tolist() == [state]
                shown = shown["obs"]
            if one_hot:
                assert np.flatnonzero(shown).tolist() == [state, 3 + place]
            else:
                assert int(shown) == state + 3 * place


def test_the_two_step_game_refuses_half_an_answer_and_steps_after_the_end() -> None:
    env = TwoStepGame()
    with pytest.raises(CallOrderError, match="reset"):
        env.step({"agent_1": 0, "agent_2": 0})
    env.reset()
    with pytest.raises(ContractError, match="agent_1"):
        env.step({"agent_1": 0})
