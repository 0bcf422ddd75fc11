"""Sums over episodes that ended."""

from __future__ import annotations

import pytest

from menv.episode import Episode
from menv.errors import ConfigError
from menv.metrics import Metrics


def episode(rewards: dict[tuple[str, str], float], length: int = 10, unclaimed: float = 0.0) -> Episode:
    one = Episode(1, 0)
    for agent, policy in rewards:
        one.bind(agent, policy)
    for (agent, _), reward in rewards.items():
        one.credit(agent, reward)
    one.length, one.unclaimed_rewards = length, unclaimed
    return one


def test_a_window_without_an_episode_reports_none_and_a_count_of_zero() -> None:
    summary = Metrics().summary()
    for key in ("episode_reward_mean", "episode_reward_min", "episode_reward_max", "episode_len_mean"):
        assert summary[key] is None
    assert summary["episodes_this_iter"] == summary["episodes_total"] == summary["episodes_in_window"] == 0
    assert summary["policy_reward_mean"] == summary["policy_reward_min"] == summary["custom_metrics"] == {}
    assert summary["hist_stats"] == {"episode_reward": [], "episode_lengths": []}
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


def test_two_agents_of_one_policy_are_two_entries() -> None:
    metrics = Metrics()
    metrics.record(episode({("a", "p"): 1.0, ("b", "p"): 5.0}))
    assert metrics.summary()["policy_reward_mean"] == {"p": 3.0}


def test_several_lives_of_an_agent_add_up() -> None:
    one = episode({("a", "p"): 1.0})
    one.credit("a", 4.0)
    assert one.total_reward == 5.0
    assert one.agent_rewards == {("a", "p"): 5.0}


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


def test_own_numbers_and_lists_reach_the_result() -> None:
    metrics = Metrics()
    for value in (1.0, 3.0):
        one = episode({("a", "p"): 0.0})
        one.custom_metrics["speed"] = value
        one.hist_data["stops"] = [value, 0.0]
        metrics.record(one)
    summary = metrics.summary()
    assert summary["custom_metrics"] == {"speed_mean": 2.0, "speed_min": 1.0, "speed_max": 3.0}
    assert summary["hist_stats"]["stops"] == [1.0, 0.0, 3.0, 0.0]


def test_media_reach_one_result_and_are_let_go() -> None:
    metrics = Metrics()
    episodes = [episode({("a", "p"): 0.0}) for _ in range(3)]
    for one, media in zip(episodes, ({"video": "first"}, {}, {"video": "last", "map": "m"}), strict=True):
        one.media.update(media)
        metrics.record(one)
    assert metrics.summary()["episode_media"] == {"video": ["first", "last"], "map": ["m"]}
    assert metrics.summary()["episode_media"] == {}


def test_faulty_episodes_are_counted_in_their_iteration_and_in_no_mean() -> None:
    metrics = Metrics()
    metrics.record(episode({("a", "p"): 2.0}))
    metrics.record_faulty()
    metrics.record_faulty()
    summary = metrics.summary()
    assert (
        summary["num_faulty_episodes"],
        summary["episodes_this_iter"],
        summary["episode_reward_mean"],
    ) == (2, 1, 2.0)
    assert metrics.summary()["num_faulty_episodes"] == 0


def test_an_episode_tells_who_answers_for_whom() -> None:
    one = episode({("b", "q"): 0.0, ("a", "p"): 0.0})
    assert one.get_agents() == ["b", "a"]
    assert one.policy_for("a") == "p"
    assert (one.seat_of("b"), one.seat_of("a"), one.seat_of("c")) == (("q", 0), ("p", 1), None)
    with pytest.raises(ConfigError, match=r"agent 'c' has not appeared, expected one of .*'a'"):
        one.policy_for("c")


def test_the_generator_of_an_episode_depends_on_its_id_alone() -> None:
    assert Episode(5, 0).rng.random() == Episode(5, 3).rng.random()
    assert Episode(5, 0).rng.random() != Episode(6, 0).rng.random()
