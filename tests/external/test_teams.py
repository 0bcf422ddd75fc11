"""Several agents in an external episode: who is asked, who ends when, who is paid, who may be learned from."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from menv.algorithms import DQN, PPO
from menv.errors import CallOrderError
from tests.external.told import ACTIONS, OBS, ToldTeam, calling, obs, rows, training
from tests.inside import metrics

NUMBERS = {"a": 0, "b": 1, "c": 2}
TWO = {
    "policies": ["even", "odd"],
    "policy_mapping_fn": lambda agent_id, **kw: "odd" if agent_id == "b" else "even",
}


def seen(agents: str, step: int) -> dict[Any, Any]:
    return {agent: obs(NUMBERS[agent], step) for agent in agents}


def acts(agents: str, action: int = 1) -> dict[Any, int]:
    return dict.fromkeys(agents, action)


def by_agent(batch: Any, name: str, policies: Any = ("default_policy",)) -> dict[str, list[Any]]:
    """Return a column by agent."""
    letters = {number: agent for agent, number in NUMBERS.items()}
    found: dict[str, list[Any]] = {}
    for policy_id in policies:
        for row in rows([batch], policy_id):
            found.setdefault(letters[int(row["obs"][0])], []).append(row[name])
    return found


def steps(batch: Any, policies: Any = ("default_policy",)) -> dict[str, list[int]]:
    return {
        agent: [int(one[1]) for one in found] for agent, found in by_agent(batch, "obs", policies).items()
    }


def test_agents_that_observe_are_asked_and_the_others_are_not() -> None:
    env = ToldTeam()
    asked: list[set[Any]] = []

    def play() -> None:
        episode = env.start_episode()
        for step, agents in enumerate(["ab", "a", "c", "abc", ""]):
            asked.append(set(env.get_action(episode, seen(agents, step))))
            env.log_returns(episode, {"a": 1.0})
        env.end_episode(episode, seen("abc", 5))

    with training(env, rollout_fragment_length=5) as algo, calling(play):
        batch = algo.sample()
    assert asked == [{"a", "b"}, {"a"}, {"c"}, {"a", "b", "c"}, set()]
    assert steps(batch) == {"a": [0, 1, 3], "b": [0, 3], "c": [2, 3]}
    assert by_agent(batch, "rewards") == {"a": [1.0, 2.0, 2.0], "b": [0.0, 0.0], "c": [0.0, 0.0]}
    assert by_agent(batch, "terminateds") == {
        "a": [False, False, True],
        "b": [False, True],
        "c": [False, True],
    }


@pytest.mark.parametrize("given", [True, False], ids=["its last observation", "none"])
@pytest.mark.parametrize("logs", [False, True], ids=["asks", "logs"])
def test_an_agent_that_is_done_ends_and_the_others_continue(given: bool, logs: bool) -> None:
    env = ToldTeam()
    asked: list[set[Any]] = []

    def act(episode: str, agents: str, step: int, actions: str) -> None:
        if logs:
            env.log_action(episode, seen(agents, step), acts(actions))
        else:
            asked.append(set(env.get_action(episode, seen(agents, step))))

    def play() -> None:
        episode = env.start_episode()
        act(episode, "ab", 0, "ab")
        env.log_returns(episode, {"a": 1.0, "b": 2.0})
        act(episode, "ab", 1, "ab")
        env.log_returns(episode, {"a": 3.0, "b": 4.0}, multiagent_done_dict={"a": True, "b": False})
        act(episode, "ab" if given else "b", 2, "b")
        env.log_returns(episode, {"b": 5.0})
        act(episode, "b", 3, "b")
        env.log_returns(episode, {"b": 6.0})
        env.end_episode(episode, seen("b", 4), truncated=True)

    with training(env, DQN, rollout_fragment_length=4) as algo, calling(play):
        batch = algo.sample()
    if not logs:
        assert asked == [{"a", "b"}, {"a", "b"}, {"b"}, {"b"}]
    assert steps(batch) == {"a": [0, 1], "b": [0, 1, 2, 3]}
    assert by_agent(batch, "rewards") == {"a": [1.0, 3.0], "b": [2.0, 4.0, 5.0, 6.0]}
    assert by_agent(batch, "terminateds") == {"a": [False, True], "b": [False] * 4}
    assert by_agent(batch, "truncateds") == {"a": [False, False], "b": [False] * 3 + [True]}
    last = by_agent(batch, "new_obs")["a"][-1].tolist()
    assert last == ([0.0, 2.0] if given else [0.0, 1.0])
    assert sorted(batch["default_policy"].segments.final_missing.tolist()) == [False, not given]


def test_an_info_goes_with_its_agents_next_observation_alone() -> None:
    env = ToldTeam()
    with training(env, DQN, rollout_fragment_length=3) as algo:
        env.start_episode("x")
        env.log_action("x", seen("ab", 0), acts("ab"))
        env.log_returns("x", {"a": 1.0}, {"a": {"n": 1}})
        env.log_action("x", seen("ab", 1), acts("ab"))
        env.log_action("x", seen("ab", 2), acts("ab"))
        env.log_returns("x", {}, {"b": {"n": 2}})
        env.end_episode("x", seen("ab", 3))
        batch = algo.sample()
    assert by_agent(batch, "infos") == {"a": [{"n": 1}, {}, {}], "b": [{}, {}, {"n": 2}]}


@pytest.mark.parametrize("logs", [False, True], ids=["asks", "logs"])
def test_no_policy_learns_from_any_agent_of_an_excluded_episode(logs: bool) -> None:
    env = ToldTeam()

    def play() -> None:
        for enabled in (False, True):
            episode = env.start_episode(training_enabled=enabled)
            for step, agents in enumerate(["a", "ab", "bc", "ac"]):
                if logs:
                    env.log_action(episode, seen(agents, step), acts(agents))
                else:
                    assert set(env.get_action(episode, seen(agents, step))) == set(agents)
                env.log_returns(episode, {"a": 1.0, "b": 10.0})
                if step == 2:
                    env.log_returns(episode, {}, multiagent_done_dict={"b": True})
            env.end_episode(episode, seen("ac", 4))

    with training(env, DQN, rollout_fragment_length=8, multiagent=TWO) as algo, calling(play):
        batch = algo.sample()
        summary = metrics(algo).summary()
    assert steps(batch, ("even", "odd")) == {"a": [0, 1, 3], "b": [1, 2], "c": [2, 3]}
    assert summary["hist_stats"]["episode_reward"] == [44.0, 44.0]
    assert summary["policy_reward_mean"].keys() == {"even", "odd"}


def test_agents_may_have_different_spaces() -> None:
    spaces = {"a": OBS, "b": gym.spaces.Discrete(5)}
    env = ToldTeam(observation_space=spaces, action_space={"a": ACTIONS, "b": gym.spaces.Discrete(2)})
    got: list[Any] = []

    def play() -> None:
        episode = env.start_episode()
        for step in range(4):
            got.append(env.get_action(episode, {"a": obs(0, step), "b": step}))
        env.end_episode(episode, {"a": obs(0, 4), "b": 4})

    with training(env, PPO, rollout_fragment_length=4, multiagent=TWO) as algo, calling(play):
        batch = algo.sample()
    assert batch["odd"]["obs"].shape == (4, 5)
    assert batch["even"]["obs"].shape == (4, 2)
    assert {int(actions["b"]) for actions in got} <= {0, 1}


def test_every_agent_that_observes_needs_an_action() -> None:
    env = ToldTeam()
    env.start_episode("x")
    with pytest.raises(CallOrderError, match="log_action"):
        env.log_action("x", seen("ab", 0), acts("a"))
    with pytest.raises(CallOrderError, match="'a'"):
        env.log_action("x", {}, acts("a"))
    # The refused call has spoilt nothing.
    env.log_action("x", seen("ab", 0), acts("ab"))
