"""How agents end, in which step, and where their rewards go; for both interfaces."""

from __future__ import annotations

from typing import Any

import pytest
from pettingzoo.utils.wrappers import BaseWrapper, MultiEpisodeEnv, OrderEnforcingWrapper

from menv.base_env import ALL
from menv.multi_agent_env import MultiAgentEnv
from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv
from tests.wrappers_pettingzoo.replay import Story, build, play
from tests.wrappers_pettingzoo.small_games import Plan, Together, Turns

MIXED: list[tuple[Plan, tuple[bool, bool]]] = [
    ({"a": (6, "terminated"), "b": (6, "truncated"), "c": (6, "terminated")}, (False, True)),
    ({"a": (6, "terminated"), "b": (6, "terminated"), "c": (6, "terminated")}, (True, False)),
    ({"a": (3, "terminated"), "b": (6, "truncated"), "c": (6, "terminated")}, (False, True)),
    ({"a": (3, "truncated"), "b": (6, "terminated"), "c": (4, "truncated")}, (True, False)),
    ({"a": (2, "terminated"), "b": (3, "terminated"), "c": (7, "truncated")}, (False, True)),
    ({"a": (1, "both"), "b": (5, "both"), "c": (5, "terminated")}, (False, True)),
]
OWN_FLAGS = {
    "terminated": (True, False),
    "truncated": (False, True),
    "both": (True, True),
    "dropped": (True, False),
}
mixed_ends = pytest.mark.parametrize(("plan", "flags"), MIXED)


def first_story(game: Any) -> tuple[Story, Any]:
    base_env, envs = build(lambda: game, 1, seed=1)
    stories = play(base_env, envs, 12)[0]
    assert len(stories) >= 2, "the episode was not recognised as over"
    return stories[0], envs[0]


def steps_of(env: Any) -> int:
    return len(env.scripts[0].actions)


@mixed_ends
@pytest.mark.parametrize("at_once", [True, False])
def test_turns_that_end_in_mixed_ways_end_the_episode(
    plan: Plan, flags: tuple[bool, bool], at_once: bool
) -> None:
    story, env = first_story(Turns(plan, at_once))
    assert story.flags == flags
    assert steps_of(env) == max(step for step, _ in plan.values())
    for agent, (life,) in story.lives.items():
        assert life.end is not None
        assert life.end[1:] == OWN_FLAGS[plan[agent][1]]


@mixed_ends
@pytest.mark.parametrize("stays", [False, True])
def test_agents_that_act_at_once_and_end_in_mixed_ways_end_the_episode(
    plan: Plan, flags: tuple[bool, bool], stays: bool
) -> None:
    game = Together(plan, stays)
    story, env = first_story(game)
    assert story.flags == flags
    assert steps_of(env) == max(step for step, _ in plan.values())
    for agent, (life,) in story.lives.items():
        step, how = plan[agent]
        assert life.end is not None
        assert life.end[1:] == OWN_FLAGS[how]
        assert life.final.tolist() == [game.possible_agents.index(agent), step]
        assert len(life.obs) == step
    alive = [[agent for agent in plan if plan[agent][0] >= step] for step in range(1, steps_of(env) + 1)]
    assert game.asked[: steps_of(env)] == alive


def test_an_agents_death_is_reported_in_the_step_in_which_it_died() -> None:
    env = PettingZooEnv(Turns({"a": (2, "terminated"), "b": (9, "truncated"), "c": (9, "truncated")}))
    env.reset()
    env.step({"a": 0})
    obs, rewards, terminateds, truncateds, infos = env.step({"b": 0})
    assert {agent: value.tolist() for agent, value in obs.items()} == {"a": [0, 2], "c": [2, 2]}
    assert rewards == {"a": 1.0 + 2.0, "c": 100.0 + 200.0}
    assert terminateds == {"a": True, ALL: False}
    assert not any(truncateds.values())
    assert infos == {"a": {"step": 2}, "c": {"step": 2}}
    assert env.agents == ["b", "c"]


def test_a_dead_agent_gets_its_last_observation_and_all_rewards_at_its_next_turn() -> None:
    game = Turns({"a": (2, "terminated"), "b": (9, "truncated"), "c": (9, "truncated")}, at_once=False)
    env = PettingZooEnv(game)
    env.reset()
    env.step({"a": 0})
    assert "a" not in env.step({"b": 0})[0]
    assert env.agents == ["b", "c"]
    obs, rewards, terminateds, _, _ = env.step({"c": 0})
    assert list(obs) == ["a", "b"]
    assert rewards["a"] == 1.0 + 2.0
    assert terminateds["a"]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("stays", [True, False])
def test_what_turns_pay_reaches_each_agent_once(at_once: bool, stays: bool) -> None:
    plan: Plan = {"a": (4, "terminated"), "b": (8, "truncated"), "c": (8, "terminated")}
    story, _ = first_story(Turns(plan, at_once, stays))
    assert story.income() == {
        "a": 1 + 2 + 3 + 4,
        "b": 10 * (1 + 2 + 3 + 4) + (5 + 6 + 7 + 8),
        "c": 100 * (1 + 2 + 3 + 4) + 10 * (5 + 6 + 7 + 8),
    }
    assert story.unclaimed == {}
    assert story.lives["b"][0].rewards[:2] == [10.0, 20.0 + 30.0 + 40.0]


@pytest.mark.parametrize("interface", [Turns, Together])
def test_an_agent_that_is_dropped_without_a_flag_counts_as_terminated(interface: Any) -> None:
    plan: Plan = {"a": (3, "dropped"), "b": (6, "truncated"), "c": (6, "dropped")}
    story, _ = first_story(interface(plan))
    ends = {agent: lives[0].end for agent, lives in story.lives.items()}
    assert ends["a"] is not None
    assert ends["a"][1:] == (True, False)
    assert story.lives["a"][0].final is None
    assert ends["b"] is not None
    assert ends["b"][1:] == (False, True)
    assert story.flags == (False, True)
    assert story.income()["a"] == 1 + 2 + 3


class Silent(Together):
    """Clears its agents at the end without a flag, and goes on to observe them."""

    def step(self, actions: dict[str, Any]) -> Any:
        result = super().step(actions)
        if self.steps == 3:
            self.agents = []
        return result


def test_a_parallel_game_without_agents_is_over_whatever_it_observes() -> None:
    story, env = first_story(Silent({"a": (9, "terminated"), "b": (9, "terminated")}))
    assert story.flags == (True, False)
    assert steps_of(env) == 3
    assert story.lives["b"][0].final.tolist() == [1, 3]


def test_an_agent_that_dies_and_returns_at_once_begins_a_new_life() -> None:
    plan: Plan = {"a": (2, "terminated"), "b": (2, "terminated")}
    story, env = first_story(MultiEpisodeEnv(Turns(plan), num_episodes=2))
    assert [len(lives) for lives in story.lives.values()] == [2, 2]
    assert story.income() == {"a": 2 * (1 + 2), "b": 2 * (10 + 20)}
    assert env.scripts[0].actions[2] == {}


class Halved(BaseWrapper[str, Any, Any]):  # type: ignore[misc]
    """A user's wrapper that pays half."""

    @property
    def _cumulative_rewards(self) -> dict[str, float]:
        return {agent: reward / 2 for agent, reward in self.env._cumulative_rewards.items()}


class OwnLast(BaseWrapper[str, Any, Any]):  # type: ignore[misc]
    """A user's wrapper with a `last` of its own."""

    def last(self, observe: bool = True) -> Any:
        obs, reward, *rest = self.env.last(observe)
        return obs + 500, -reward, *rest


def test_what_a_users_wrapper_shows_is_what_counts() -> None:
    plan: Plan = {"a": (3, "terminated"), "b": (3, "terminated")}
    plain, _ = first_story(Turns(plan))
    halved, _ = first_story(OrderEnforcingWrapper(Halved(Turns(plan))))
    own, _ = first_story(OrderEnforcingWrapper(OwnLast(Turns(plan))))
    assert halved.income() == {agent: reward / 2 for agent, reward in plain.income().items()}
    outermost, _ = first_story(OwnLast(Turns(plan)))
    assert outermost.income() == {agent: -reward for agent, reward in plain.income().items()}
    assert outermost.lives["a"][0].obs[0].tolist() == [500, 500]
    # PettingZoo's own wrapper asks the game, not the wrapper beneath it.
    assert own.income() == plain.income()


@pytest.mark.parametrize(
    "env",
    [PettingZooEnv(Turns({"a": (1, "truncated")})), ParallelPettingZooEnv(Together({"a": (1, "truncated")}))],
)
def test_no_agent_is_alive_before_the_first_reset_or_after_the_end(env: MultiAgentEnv) -> None:
    assert env.agents == []
    env.reset()
    assert env.agents == ["a"]
    env.step({"a": 0})
    assert env.agents == []


def test_one_that_is_dropped_with_the_last_ones_keeps_its_own_end_and_reward() -> None:
    story, _ = first_story(Turns({"a": (4, "dropped"), "b": (4, "truncated")}))
    assert story.flags == (False, True)
    # It had its last turn in step 3.
    assert story.lives["a"][0].end == (3.0 + 4.0, True, False)
    assert story.income() == {"a": 1 + 2 + 3 + 4, "b": 10 + 20 + 30 + 40}
