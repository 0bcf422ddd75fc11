"""An agent of `possible_agents` that is paid has a return in that episode, even if it never acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import BaseEnv, DefaultCallbacks, ExternalMultiAgentEnv, MultiAgentEnv
from menv.algorithms import PPO
from menv.offline import record

OBS, ACT = gym.spaces.Box(0.0, 100.0, (1,), np.float32), gym.spaces.Discrete(2)
SMALL = {"rollout_fragment_length": 12, "train_batch_size": 12, "sgd_minibatch_size": 12, "num_sgd_iter": 1}
TWO = {"policies": ["one", "two"], "policy_mapping_fn": [("p0", "one"), ("*", "two")]}


class FirstStrike(MultiAgentEnv):
    """p0 ends every second game at once; else p1 answers, and the pay is the other way round."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.possible_agents = ["p0", "p1"]
        self.observation_space, self.action_space = OBS, ACT
        config = config or {}
        self.pay = config.get("pay", {"p0": 1.0, "p1": -1.0})
        self.always, self.games = config.get("always", False), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.games += 1
        return {"p0": np.zeros(1, np.float32)}, {}

    def step(self, action_dict: Any) -> Any:
        if "p0" in action_dict and not (self.always or self.games % 2):
            return {"p1": np.ones(1, np.float32)}, {}, {"__all__": False}, {"__all__": False}, {}
        pay = self.pay if "p0" in action_dict else {"p0": self.pay["p1"], "p1": self.pay["p0"]}
        return {}, pay, {"__all__": True}, {"__all__": False}, {}


@pytest.mark.parametrize(
    "where",
    [{}, {"num_workers": 1}, {"remote_worker_envs": True}, {"batch_mode": "complete_episodes"}],
    ids=["here", "worker", "remote", "whole"],
)
def test_returns_of_a_zero_sum_game_add_up_to_zero_wherever_it_is_played(where: Any) -> None:
    with PPO(env=FirstStrike, config={**SMALL, "multiagent": TWO, **where}) as algo:
        result = algo.train()
    # 12 env steps are 4 games of one step and 4 of two.
    assert result["hist_stats"]["episode_lengths"] == [1, 2] * 4
    assert result["agent_reward_mean"] == {"p0": 0.0, "p1": 0.0}
    assert result["policy_reward_mean"] == {"one": 0.0, "two": 0.0}
    assert result["hist_stats"]["policy_one_reward"] == [1.0, -1.0] * 4
    assert result["hist_stats"]["policy_two_reward"] == [-1.0, 1.0] * 4
    assert result["episode_reward_mean"] == 0.0


def test_a_player_that_wins_every_game_at_once_has_all_wins() -> None:
    settings = {**SMALL, "env_config": {"always": True}, "multiagent": TWO}
    with PPO(env=FirstStrike, config=settings) as algo:
        result = algo.train()
        looked = algo.evaluate()["evaluation"]
    for found in (result, looked):
        assert found["agent_reward_mean"] == {"p0": 1.0, "p1": -1.0}
        assert found["matchups"]["one"] == {"two": {"win": 1.0, "draw": 0.0, "loss": 0.0}}
        assert found["matchups"]["two"] == {"one": {"win": 0.0, "draw": 0.0, "loss": 1.0}}


def test_a_pay_of_zero_is_a_return_too() -> None:
    settings = {**SMALL, "env_config": {"pay": {"p0": 3.0, "p1": 0.0}}, "multiagent": TWO}
    with PPO(env=FirstStrike, config=settings) as algo:
        result = algo.train()
    # p1 gets 0 for each game that p0 ends, and 3 for each other one.
    assert result["agent_reward_mean"] == {"p0": 1.5, "p1": 1.5}
    assert result["agent_reward_min"] == {"p0": 0.0, "p1": 0.0}


def test_a_league_counts_a_game_for_its_winner() -> None:
    settings = {**SMALL, "env_config": {"always": True}, "multiagent": TWO, "self_play": {}}
    with PPO(env=FirstStrike, config=settings) as algo:
        result: Any = [algo.train() for _ in range(6)][-1]
    assert {one["win"] for one in result["matchups"]["one"].values()} == {1.0}
    assert {one["loss"] for one in result["matchups"]["two"].values()} == {1.0}
    assert result["league"]["rating"]["one"] > 1200 > result["league"]["rating"]["two"]


def test_hooks_and_the_mapping_meet_an_agent_that_never_acts_once() -> None:
    asked: list[tuple[str, int, int]] = []
    seen: list[tuple[Any, Any]] = []

    def seat(agent_id: Any, episode: Any, worker: Any, **kwargs: Any) -> str:
        asked.append((agent_id, episode.episode_id, episode.length))
        return {"p0": "one", "p1": "two"}[agent_id]

    class Look(DefaultCallbacks):
        def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
            assert episode.get_agents() == ["p0", "p1"]
            seen.append((episode.episode_id, dict(episode.agent_rewards)))

    multiagent = {"policies": ["one", "two"], "policy_mapping_fn": seat}
    settings = {**SMALL, "env_config": {"always": True}, "multiagent": multiagent, "callbacks": Look}
    with PPO(env=FirstStrike, config=settings) as algo:
        asked.clear()
        algo.sample()
    assert [rewards for _, rewards in seen] == [{("p0", "one"): 1.0, ("p1", "two"): -1.0}] * 12
    over = [(agent, game, steps) for game, _ in seen for agent, steps in (("p0", 0), ("p1", 1))]
    assert asked[: len(over)] == over


class Caller(ExternalMultiAgentEnv):
    """The game as an application that asks for actions."""

    def __init__(self) -> None:
        super().__init__(ACT, OBS)
        self.possible_agents = ["p0", "p1"]

    def run(self) -> None:
        while True:
            episode = self.start_episode()
            obs: dict[Any, Any] = {"p0": np.zeros(1, np.float32)}
            self.get_action(episode, obs)
            self.log_returns(episode, {"p0": 1.0, "p1": -1.0})
            self.end_episode(episode, obs)


class Dicts(BaseEnv):
    """The game as six dicts."""

    observation_space, action_space, num_envs = OBS, ACT, 1
    possible_agents = ("p0", "p1")

    def __init__(self, config: Any = None) -> None:
        self.over = False

    def poll(self, timeout: float | None = None) -> Any:
        flags = {0: {"__all__": self.over}}
        if self.over:
            return {0: {}}, {0: {"p0": 1.0, "p1": -1.0}}, flags, {0: {"__all__": False}}, {}, {}
        return self.try_reset(0)[0], {}, flags, {0: {"__all__": False}}, {}, {}

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self.over = True

    def try_reset(self, env_id: Any = None, **kwargs: Any) -> Any:
        self.over = False
        return {0: {"p0": np.zeros(1, np.float32)}}, {}


@pytest.mark.parametrize("make", [Caller, Dicts])
def test_it_has_a_return_in_environments_of_other_kinds(make: Any) -> None:
    with PPO(env=lambda context: make(), config={**SMALL, "multiagent": TWO}) as algo:
        result = algo.train()
    assert result["agent_reward_mean"] == {"p0": 1.0, "p1": -1.0}


def test_what_record_says_about_games_adds_up_to_zero(tmp_path: Path) -> None:
    returns = record(lambda obs: 0, FirstStrike, tmp_path / "games.parquet", episodes=16)
    # The first game of each of the eight copies ends at once, the second does not.
    assert returns == {"p0": 0.0, "p1": 0.0}


def test_texas_holdem_has_shares_of_wins_and_returns_that_add_up_to_zero() -> None:
    holdem = pytest.importorskip("pettingzoo.classic.texas_holdem_v4")
    settings = {**SMALL, "rollout_fragment_length": 200, "train_batch_size": 200, "seed": 1}
    multiagent = {"policies": ["one", "two"], "policy_mapping_fn": [("player_0", "one"), ("*", "two")]}
    with PPO(env=lambda config: holdem.env(), config={**settings, "multiagent": multiagent}) as algo:
        result = algo.train()
    means = result["agent_reward_mean"]
    assert set(means) == {"player_0", "player_1"}
    assert sum(means.values()) == pytest.approx(0.0, abs=1e-9)
    one, two = result["matchups"]["one"]["two"], result["matchups"]["two"]["one"]
    assert one["win"] + one["draw"] + two["win"] == pytest.approx(1.0)
