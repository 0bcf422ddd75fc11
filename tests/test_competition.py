"""Wins, draws and losses of zero-sum games in results."""

from __future__ import annotations

from typing import Any

import pytest

from menv.algorithms import PPO
from menv.episode import Episode
from menv.metrics import Metrics


def played(metrics: Metrics, **returns: float) -> None:
    """Record an episode of agents, whose policy is the part of their name after the underscore."""
    episode = Episode(0, 0)
    for agent, reward in returns.items():
        episode.agent_rewards[agent, agent.partition("_")[2] or "shared"] = reward
    metrics.record(episode)


def shares(win: float, draw: float, loss: float) -> dict[str, float]:
    return {"win": win, "draw": draw, "loss": loss}


def test_one_policy_that_plays_both_sides_is_counted_by_agent() -> None:
    metrics = Metrics()
    for x in (1.0, 1.0, 0.0, -1.0):
        played(metrics, x=x, o=-x)
    found = metrics.summary()["matchups"]
    assert found == {"x": {"o": shares(0.5, 0.25, 0.25)}, "o": {"x": shares(0.25, 0.25, 0.5)}}


def test_several_policies_are_counted_by_policy_and_by_seat() -> None:
    metrics = Metrics()
    played(metrics, a_red=2.0, b_red=1.0, c_blue=-2.0, d_green=-1.0)
    found = metrics.summary()["matchups"]
    assert found["red"] == {"blue": shares(1, 0, 0), "green": shares(1, 0, 0)}
    assert found["blue"] == {"red": shares(0, 0, 1), "green": shares(0, 0, 1)}
    assert found["green"] == {"red": shares(0, 0, 1), "blue": shares(1, 0, 0)}


@pytest.mark.parametrize("returns", [{"x": 1.0, "o": 1.0}, {"x": 0.0, "o": 0.0}, {"x": 0.0}])
def test_other_games_have_no_winners(returns: dict[str, float]) -> None:
    metrics = Metrics()
    played(metrics, **returns)
    assert metrics.summary()["matchups"] == {}


def test_draws_count_once_the_game_is_known_even_after_a_checkpoint() -> None:
    metrics, resumed = Metrics(1), Metrics(1)
    played(metrics, x=1.0, o=-1.0)
    metrics.summary()
    resumed.set_state(metrics.state())
    played(resumed, x=0.0, o=0.0)
    assert resumed.summary()["matchups"] == {"x": {"o": shares(0, 1, 0)}, "o": {"x": shares(0, 1, 0)}}


def test_results_of_a_game_have_them(capsys: pytest.CaptureFixture[str]) -> None:
    config: dict[str, Any] = {"train_batch_size": 256, "sgd_minibatch_size": 64, "seed": 1}
    with PPO(env="tictactoe", config=config) as algo:
        result = algo.learn(stop={"matchups/player1/player2/win": 0.1}, progress_bar=True)
    assert result["matchups"].keys() == {"player1", "player2"}
    assert result["matchups"]["player1"]["player2"]["win"] == result["matchups"]["player2"]["player1"]["loss"]
    line = next(
        line for line in capsys.readouterr().out.splitlines() if " player1 against player2: win " in line
    )
    # The other one's shares are the same the other way round.
    assert "player2 against" not in line
