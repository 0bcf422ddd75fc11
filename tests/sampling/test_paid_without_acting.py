"""An agent of `possible_agents` that is paid has a return in that episode, even if it never acts, or acts later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import DefaultCallbacks, MultiAgentEnv
from menv.algorithms import PPO
from menv.offline import record
from tests.contract.scripted import SixDicts
from tests.worlds import Calling, Several

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


def test_a_league_counts_a_game_for_its_winner() -> None:
    settings = {**SMALL, "seed": 0, "env_config": {"always": True}, "multiagent": TWO, "self_play": {}}
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


def always() -> FirstStrike:
    return FirstStrike({"always": True})


@pytest.mark.parametrize("make", [lambda: Calling(always()), lambda: SixDicts([always()], "now")])
def test_it_has_a_return_in_environments_of_other_kinds(make: Any) -> None:
    with PPO(env=lambda context: make(), config={**SMALL, "multiagent": TWO}) as algo:
        result = algo.train()
    assert result["agent_reward_mean"] == {"p0": 1.0, "p1": -1.0}


class Late(Several):
    """ "bob" is paid 5 and flagged before he is observed, comes in the third step, and is paid 1 in each step then.

    "cyd" is paid 7 and never comes, which is its return.
    """

    possible_agents, length = ("ann", "bob", "cyd"), 6

    def shown(self) -> Any:
        return ["ann", "bob"] if self.at >= 3 else ["ann"]

    def pay(self, actions: Any) -> Any:
        early = {"bob": 5.0, "cyd": 7.0} if self.at == 1 else {}
        return {"ann": 1.0, **early, **({"bob": 1.0} if self.at > 3 else {})}

    def dead(self, actions: Any) -> Any:
        return ["bob"] if self.at == 1 else []


@pytest.mark.parametrize("where", ["here", "worker", "caller"])
def test_rewards_before_the_first_observation_count(where: str) -> None:
    config = {"rollout_fragment_length": 12, "train_batch_size": 12, "num_workers": int(where == "worker")}
    env: Any = (lambda context: Calling(Late())) if where == "caller" else Late
    with PPO(env=env, config={**config, "engine": "process"}) as algo:
        result = algo.train()
    # Paid in all: 6 to ann, 5 + 3 to bob, 7 to cyd.
    assert result["agent_reward_mean"] == {"ann": 6.0, "bob": 8.0, "cyd": 7.0}
    assert result["policy_reward_mean"] == {"default_policy": 7.0}
    assert result["hist_stats"]["episode_reward"] == [21.0, 21.0]
    # No action can own what came before the first observation; it is reported so, too.
    assert result["unclaimed_rewards"] == 24.0


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
