"""Sums over episodes that ended."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.base_env import SINGLE_AGENT
from menv.episode import Episode
from menv.errors import ConfigError, ContractError
from menv.metrics import Metrics
from tests.worlds import Alone, Several, noting


def episode(rewards: dict[tuple[Any, str], float], length: int = 10, unclaimed: float = 0.0) -> Episode:
    one = Episode(1, 0)
    for agent, policy in rewards:
        one.bind(agent, policy)
    for (agent, _), reward in rewards.items():
        one.credit(agent, reward)
    one.length = length
    one.credit_unclaimed("nobody", unclaimed)
    return one


def test_a_window_without_an_episode_reports_none_and_a_count_of_zero() -> None:
    summary = Metrics().summary()
    for key in ("episode_reward_mean", "episode_reward_min", "episode_reward_max", "episode_len_mean"):
        assert summary[key] is None
    assert summary["episodes_this_iter"] == summary["episodes_total"] == summary["episodes_in_window"] == 0
    assert summary["policy_reward_mean"] == summary["policy_reward_min"] == summary["custom_metrics"] == {}
    assert summary["hist_stats"] == {"episode_reward": [], "episode_lengths": []}
    assert summary["agent_reward_mean"] == summary["group_reward_max"] == {}
    assert summary["agent_rewards_omitted"] == 0
    assert (summary["episode_media"], summary["num_faulty_episodes"]) == ({}, 0)


def test_means_minima_and_maxima_are_over_episodes_and_policies() -> None:
    metrics = Metrics()
    metrics.record(episode({("a", "p"): 1.0, ("b", "q"): 10.0}, 4))
    metrics.record(episode({("a", "p"): 3.0, ("b", "q"): -10.0}, 8, unclaimed=2.0))
    summary = metrics.summary()
    assert summary["episode_reward_mean"] == (11.0 + -5.0) / 2
    assert (summary["episode_reward_min"], summary["episode_reward_max"]) == (-5.0, 11.0)
    assert summary["episode_len_mean"] == 6.0
    assert summary["policy_reward_mean"] == {"p": 2.0, "q": 0.0}
    assert summary["policy_reward_min"] == {"p": 1.0, "q": -10.0}
    assert summary["policy_reward_max"] == {"p": 3.0, "q": 10.0}
    assert summary["unclaimed_rewards"] == 2.0
    assert summary["hist_stats"]["policy_p_reward"] == [1.0, 3.0]
    assert summary["hist_stats"]["episode_lengths"] == [4, 8]


def test_matchups_have_shares_of_wins_draws_and_losses() -> None:
    metrics = Metrics()
    for reward in (1.0, 1.0, 0.0, -1.0):
        metrics.record(episode({("a", "p"): reward, ("b", "q"): -reward}))
    assert metrics.summary()["matchups"] == {
        "p": {"q": {"win": 0.5, "draw": 0.25, "loss": 0.25}},
        "q": {"p": {"win": 0.25, "draw": 0.25, "loss": 0.5}},
    }


@pytest.mark.parametrize(
    "rewards",
    [
        {("a", "p"): 1.0, ("b", "q"): 1.0},
        {("a", "p"): 0.0, ("b", "q"): 0.0},
        {("a", "p"): 0.0},
        {(agent, f"p{agent}"): agent - 4.0 for agent in range(9)},
    ],
)
def test_games_without_winners_have_no_matchups(rewards: dict[tuple[Any, str], float]) -> None:
    metrics = Metrics()
    metrics.record(episode(rewards))
    assert metrics.summary()["matchups"] == {}


def test_agents_that_share_a_policy_are_told_apart() -> None:
    metrics = Metrics()
    metrics.record(episode({("a", "p"): 1.0, ("b", "p"): 5.0}))
    metrics.record(episode({("a", "p"): 3.0, ("b", "q"): 9.0}))
    metrics.record(episode({("b", "p"): 10.0}))
    summary = metrics.summary()
    # Over the episodes in which an agent lived, whoever answered for it.
    assert summary["agent_reward_mean"] == {"a": 2.0, "b": 8.0}
    assert summary["agent_reward_min"] == {"a": 1.0, "b": 5.0}
    assert summary["agent_reward_max"] == {"a": 3.0, "b": 10.0}
    assert summary["policy_reward_mean"] == {"p": 4.75, "q": 9.0}
    assert summary["group_reward_mean"] == {}


def test_groups_and_their_members_are_agents_and_groups_are_groups_as_well() -> None:
    metrics = Metrics()
    for factor in (1.0, 3.0):
        one = episode({("team", "p"): 3 * factor, ("c", "p"): 7.0})
        one.credit_members("team", {"a": factor})
        one.credit_members("team", {"a": factor / 2, "b": factor / 2})
        metrics.record(one)
    summary = metrics.summary()
    assert summary["agent_reward_mean"] == {"team": 6.0, "c": 7.0, "a": 3.0, "b": 1.0}
    assert summary["agent_reward_max"] == {"team": 9.0, "c": 7.0, "a": 4.5, "b": 1.5}
    assert summary["group_reward_mean"] == {"team": 6.0}
    assert (summary["group_reward_min"], summary["group_reward_max"]) == ({"team": 3.0}, {"team": 9.0})
    assert summary["policy_reward_mean"] == {"p": 6.5}


def test_episodes_are_summed_up_in_the_order_in_which_they_ended_whichever_worker_reports_first() -> None:
    metrics, worker = Metrics(window=2), Metrics(0)
    one = episode({(SINGLE_AGENT, "p"): 4.0}, 4)
    one.media["video"] = "fourth"
    worker.record(one, (9, 1))
    for length, when in ((2, (5, 1)), (5, (12, 1))):
        worker.record(episode({(SINGLE_AGENT, "p"): float(length)}, length), when)
    first = episode({(SINGLE_AGENT, "p"): 1.0}, 1)
    first.media["video"] = "first"
    metrics.absorb(worker.take())
    metrics.record(episode({(SINGLE_AGENT, "p"): 3.0}, 3), (9, 0))
    metrics.record(first, (5, 0))
    kept = Metrics(window=2)
    kept.set_state(metrics.state())
    for own, count in ((metrics, 5), (kept, 2)):
        summary = own.summary()
        assert summary["hist_stats"]["episode_reward"] == [1.0, 2.0, 3.0, 4.0, 5.0][-count:]
        assert summary["hist_stats"]["episode_lengths"] == [1, 2, 3, 4, 5][-count:]
        assert summary["episode_media"] == ({"video": ["first", "fourth"]} if own is metrics else {})
        own.record_many([(SINGLE_AGENT, "p")], np.array([[6.0]]), None, np.array([6]))
        assert own.summary()["hist_stats"]["episode_reward"] == [5.0, 6.0]


def test_unclaimed_rewards_are_the_same_sum_however_episodes_are_spread_over_workers() -> None:
    shares = [[[0.3, 0.3, 0.6, 0.1]], [[0.3, 0.6], [0.3, 0.1]], [[0.1], [0.6, 0.3], [0.3]]]
    sums = set()
    for share in shares:
        metrics = Metrics()
        for part in share:
            worker = Metrics(0)
            for unclaimed in part:
                worker.record(episode({}, unclaimed=unclaimed))
            metrics.absorb(worker.take())
        again = Metrics()
        again.set_state(metrics.state())
        sums |= {metrics.summary()["unclaimed_rewards"], again.summary()["unclaimed_rewards"]}
    assert sums == {1.3}


def test_recurring_agents_are_shown_among_unlimited_ids() -> None:
    metrics = Metrics()
    for number in range(30):
        passing = {(f"car_{100 * number + at}", "cars"): 1.0 for at in range(100)}
        metrics.record(episode({**passing, ("light", "lights"): 5.0} if number >= 20 else passing))
    summary = metrics.summary()
    assert len(summary["agent_reward_mean"]) == 1000
    assert summary["agent_reward_mean"]["light"] == 5.0
    assert summary["agent_rewards_omitted"] == 30 * 100 - 999
    assert summary["policy_reward_mean"] == {"cars": 1.0, "lights": 5.0}
    assert len(summary["hist_stats"]["policy_cars_reward"]) == 3000


def test_the_window_holds_the_latest_episodes_and_all_of_this_iteration() -> None:
    metrics = Metrics(window=3)
    for reward in (1.0, 2.0, 3.0, 4.0):
        metrics.record(episode({("a", "p"): reward}))
    assert metrics.summary()["episode_reward_mean"] == 2.5
    metrics.record(episode({("a", "p"): 8.0}))
    summary = metrics.summary()
    assert summary["hist_stats"]["episode_reward"] == [3.0, 4.0, 8.0]
    assert (summary["episodes_this_iter"], summary["episodes_in_window"], summary["episodes_total"]) == (
        1,
        3,
        5,
    )
    assert metrics.summary()["hist_stats"]["episode_reward"] == [3.0, 4.0, 8.0]


def test_custom_metrics_and_histogram_data_reach_the_result() -> None:
    metrics = Metrics()
    for value in (1.0, 3.0):
        one = episode({("a", "p"): 0.0})
        one.custom_metrics["speed"] = value
        one.hist_data["stops"] = [value, 0.0]
        metrics.record(one)
    summary = metrics.summary()
    assert summary["custom_metrics"] == {"speed_mean": 2.0, "speed_min": 1.0, "speed_max": 3.0}
    assert summary["hist_stats"]["stops"] == [1.0, 0.0, 3.0, 0.0]


@pytest.mark.parametrize(("name", "value"), [
    *(("custom_metrics", value) for value in (None, "won", [1.0, 2.0], 10**400, float("inf"), np.float32(-np.inf))),
    *(("hist_data", value) for value in (1.0, ["won"], {0: 1.0}, "12", [1.0, float("inf")])),
])  # fmt: skip
def test_invalid_metrics_are_named(name: str, value: Any) -> None:
    one = episode({("a", "p"): 0.0})
    getattr(one, name)["speed"] = value
    with pytest.raises(ContractError, match=rf"^episode\.{name}\['speed'\]: "):
        Metrics().record(one)


def test_a_custom_metric_of_nan_says_that_an_episode_has_none() -> None:
    metrics = Metrics()
    for speed, height in ((1.0, np.nan), (np.nan, np.nan), (3.0, np.nan)):
        one = episode({("a", "p"): 0.0})
        one.custom_metrics.update(speed=speed, height=height)
        metrics.record(one)
    shown = metrics.summary()["custom_metrics"]
    assert shown == {
        "speed_mean": 2.0, "speed_min": 1.0, "speed_max": 3.0,
        "height_mean": None, "height_min": None, "height_max": None,
    }  # fmt: skip


def test_a_result_is_json_whatever_names_and_numbers_callbacks_give() -> None:
    metrics = Metrics()
    for _ in range(2):
        one = episode({("a", "p"): 1e308})
        one.hist_data[("a", 1)] = [1.5, float("nan"), np.float32(2.5)]  # type: ignore[index, list-item]
        one.custom_metrics.update({("a", 1): 1e308, "none": float("nan")})  # type: ignore[dict-item]
        metrics.record(one)
    summary = metrics.summary()
    assert summary["hist_stats"]["('a', 1)"] == [1.5, 2.5, 1.5, 2.5]
    assert summary["episode_reward_mean"] == summary["custom_metrics"]["('a', 1)_mean"] == 1e308
    json.dumps(summary, allow_nan=False)


def test_faulty_episodes_are_counted_in_their_iteration_and_in_no_mean() -> None:
    metrics = Metrics()
    metrics.record(episode({("a", "p"): 2.0}))
    metrics.record_faulty("the first")
    metrics.record_faulty("the second")
    summary = metrics.summary()
    assert (
        summary["num_faulty_episodes"],
        summary["episodes_this_iter"],
        summary["episode_reward_mean"],
    ) == (2, 1, 2.0)
    assert (summary["faulty_episodes_total"], summary["first_fault"]) == (2, "the first")
    other = Metrics()
    other.set_state(metrics.state())
    for later in (metrics.summary(), other.summary()):
        assert later["num_faulty_episodes"] == 0
        assert (later["faulty_episodes_total"], later["first_fault"]) == (2, "the first")


def test_an_episode_knows_the_policy_of_each_agent() -> None:
    one = episode({("b", "q"): 0.0, ("a", "p"): 0.0})
    assert one.get_agents() == ["b", "a"]
    assert one.policy_for("a") == "p"
    assert (one.seat_of("b"), one.seat_of("a"), one.seat_of("c")) == (("q", 0), ("p", 1), None)
    with pytest.raises(ConfigError, match="'c'"):
        one.policy_for("c")


class Team(Several):
    """Ann ends after the first step; at the end all are paid, zoe too, who never acts."""

    possible_agents, length = ("ann", "bob", "zoe"), 3
    observation_space = action_space = gym.spaces.Discrete(5)

    def shown(self) -> Any:
        return ["ann", "bob"] if self.at < 2 else ["bob"]

    def see(self, agent: Any) -> Any:
        return self.at

    def dead(self, actions: Any) -> Any:
        return ["ann"] if self.at == 1 else []

    def pay(self, actions: Any) -> Any:
        last = {"ann": 10.0, "bob": 20.0, "zoe": 40.0}
        return last if self.at == 3 else {"ann": 1.0} if self.at == 1 else {}


def test_what_an_agent_is_paid_after_its_end_is_in_its_return_and_in_no_row() -> None:
    callbacks, returns = noting(
        "on_episode_end", lambda *, episode, **_: (dict(episode.agent_rewards), episode.total_reward,
                                                   episode.unclaimed_rewards),
    )  # fmt: skip
    config = {
        "train_batch_size": 30, "rollout_fragment_length": 30, "callbacks": callbacks,
        "multiagent": {"policies": ["ann", "bob", "zoe"], "policy_mapping_fn": lambda agent_id, **kwargs: agent_id},
    }  # fmt: skip
    with PPO(env=Team, config=config) as algo:
        batch = algo.sample()
        result = algo.train()
    assert batch["ann"]["rewards"].tolist() == [1.0] * 10
    assert batch["bob"]["rewards"].tolist() == [0.0, 0.0, 20.0] * 10
    paid = {"ann": 11.0, "bob": 20.0, "zoe": 40.0}
    assert result["policy_reward_mean"] == result["agent_reward_mean"] == paid
    assert result["episode_reward_mean"] == 71.0
    assert result["unclaimed_rewards"] == 50.0 * result["episodes_total"]
    assert returns[0] == ({(name, name): earned for name, earned in paid.items()}, 71.0, 50.0)


def test_a_world_without_an_end_says_why_there_are_no_means() -> None:
    with PPO(env=lambda context: Alone(length=10**9), config={"train_batch_size": 8, "seed": 0}) as algo:
        for _ in range(9):
            assert algo.train()["episode_reward_mean"] is None
        with pytest.warns(UserWarning, match=r"no episode has ended in 10 iterations.*TimeLimit"):
            algo.train()
        # Once.
        algo.train()


def test_of_very_many_episodes_that_come_as_columns_the_newest_are_summarized() -> None:
    metrics = Metrics()
    for value in range(5):
        metrics.record_many(
            [(SINGLE_AGENT, "p")], np.full((4000, 1), float(value)), None, np.full(4000, 7 + value)
        )
    result = metrics.summary()
    assert result["episodes_this_iter"] == 20_000
    # 2,000 of the third block, and the last two.
    assert result["episodes_in_window"] == 10_000
    assert (result["episode_reward_min"], result["episode_reward_mean"]) == (2.0, 3.2)


def test_episodes_that_come_as_columns_are_sorted_by_when_they_ended_among_others() -> None:
    metrics = Metrics()
    pairs, lengths = [(SINGLE_AGENT, "p")], np.array([3, 4])
    metrics.record_many(pairs, np.array([[1.0], [2.0]]), None, lengths, [(5, 0), (2, 1)])
    metrics.record(episode({(SINGLE_AGENT, "p"): 0.5}), (4, 3))
    metrics.record_many(pairs, np.array([[3.0], [4.0]]), None, lengths, [(4, 2), (5, 1)])
    assert metrics.summary()["hist_stats"]["episode_reward"] == [2.0, 3.0, 0.5, 1.0, 4.0]
