"""Wins, draws, losses and Elo ratings of zero-sum games in results."""

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


def test_one_policy_that_plays_both_sides_is_counted_by_agent() -> None:
    metrics = Metrics()
    for x in (1.0, 1.0, 0.0, -1.0):
        played(metrics, x=x, o=-x)
    found = metrics.summary()
    assert found["win_share"] == {"x": 0.5, "o": 0.25}
    assert found["draw_share"] == {"x": 0.25, "o": 0.25}
    assert found["loss_share"] == {"x": 0.25, "o": 0.5}
    assert found["elo"]["x"] + found["elo"]["o"] == pytest.approx(2400.0)
    assert found["elo"]["x"] > found["elo"]["o"]


def test_several_policies_are_counted_by_policy_and_shared_by_pairs() -> None:
    metrics = Metrics()
    played(metrics, a_red=2.0, b_red=1.0, c_blue=-2.0, d_green=-1.0)
    found = metrics.summary()
    assert found["win_share"] == {"red": 1.0, "blue": 0.0, "green": 0.0}
    # Two wins of a half step each; green has won against blue.
    assert found["elo"] == {"red": 1208.0, "blue": 1192.0, "green": 1200.0}


@pytest.mark.parametrize("returns", [{"x": 1.0, "o": 1.0}, {"x": 0.0, "o": 0.0}, {"x": 0.0}])
def test_other_games_have_no_winners(returns: dict[str, float]) -> None:
    metrics = Metrics()
    played(metrics, **returns)
    found = metrics.summary()
    assert found["win_share"] == found["draw_share"] == found["loss_share"] == found["elo"] == {}


def test_draws_count_once_the_game_is_known_also_after_a_checkpoint() -> None:
    metrics, resumed = Metrics(1), Metrics(1)
    played(metrics, x=1.0, o=-1.0)
    before = metrics.summary()["elo"]
    resumed.set_state(metrics.state())
    played(resumed, x=0.0, o=0.0)
    found = resumed.summary()
    assert found["draw_share"] == {"x": 1.0, "o": 1.0}
    assert 1200.0 < found["elo"]["x"] < before["x"]


def test_results_of_a_game_have_them(capsys: pytest.CaptureFixture[str]) -> None:
    config: dict[str, Any] = {"train_batch_size": 256, "sgd_minibatch_size": 64, "seed": 1}
    with PPO(env="tictactoe", config=config) as algo:
        result = algo.learn(stop={"win_share/player1": 0.1}, progress_bar=True)
    assert set(result["elo"]) == {"player1", "player2"}
    assert result["win_share"]["player1"] == result["loss_share"]["player2"]
    assert " player1: win " in capsys.readouterr().out
