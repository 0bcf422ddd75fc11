"""`TimeLimit` ends episodes of many agents as truncated, and loses no reward and no observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import ConfigError, to_base_env
from menv.base_env import Ready
from menv.envs import TicTacToe
from menv.registry import make_env
from menv.wrappers import TimeLimit
from tests.worlds import Several
from tests.wrappers_pettingzoo.small_games import Together, Turns

SPACE = gym.spaces.Box(0.0, 100.0, (1,), np.float32)


class Counting(Several):
    """Two agents that see the env step and are paid 1 and 10 in each; it terminates after `length` steps."""

    possible_agents, observation_space = ("ann", "bob"), SPACE

    def __init__(self, length: int = 1000) -> None:
        super().__init__()
        self.length = length

    def pay(self, actions: Any) -> Any:
        return {"ann": 1.0, "bob": 10.0}


def ends(env: Any, polls: int) -> list[Ready]:
    """Play for some polls and return those in which an agent ended; each agent takes the lowest allowed action."""
    base_env, found = to_base_env(env), []
    for _ in range(polls):
        ready = base_env.poll()
        if ready.ended:
            found.append(ready)
        masks = [obs["action_mask"] if isinstance(obs, dict) else [1] for obs in ready.obs]
        base_env.send_actions(ready.slots, [int(np.argmax(mask)) for mask in masks])
    return found


def test_every_episode_is_truncated_after_the_same_number_of_env_steps() -> None:
    found = ends(TimeLimit(Counting(), max_episode_steps=3), 7)
    assert len(found) == 2
    for ready in found:
        assert [(end.terminated, end.truncated, end.obs.tolist()) for end in ready.ended] == [
            (False, True, [3.0]),
            (False, True, [3.0]),
        ]
        assert [end.reward for end in ready.ended] == [1.0, 10.0]


def test_an_episode_that_terminates_in_the_last_allowed_step_is_not_truncated() -> None:
    (ready,) = ends(TimeLimit(Counting(length=3), max_episode_steps=3), 4)
    assert [(end.terminated, end.truncated) for end in ready.ended] == [(True, False)] * 2


def test_a_player_that_is_not_to_move_ends_with_its_newest_observation() -> None:
    (ready,) = ends(TimeLimit(make_env("pettingzoo:classic/tictactoe_v3"), max_episode_steps=3), 4)
    by_agent = {end.agent_id: end for end in ready.ended}
    assert {agent: (end.terminated, end.truncated) for agent, end in by_agent.items()} == {
        "player_1": (False, True),
        "player_2": (False, True),
    }
    # The second player would move next and sees three stones; the first one's newest view is before its second move.
    assert int(by_agent["player_2"].obs["observation"].sum()) == 3
    assert by_agent["player_1"].obs is None


def test_a_gymnasium_environment_gets_the_limit_of_gymnasium() -> None:
    env = TimeLimit(gym.make("CartPole-v1"), 4)
    assert isinstance(env, gym.wrappers.TimeLimit)
    assert isinstance(TimeLimit(TicTacToe(), 4).unwrapped, TicTacToe)


@pytest.mark.parametrize("limit", [0, -1, True, 2.5, None])
def test_another_limit_than_a_positive_whole_number_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="max_episode_steps"):
        TimeLimit(Counting(), limit)


@pytest.mark.parametrize("env", [None, Counting, gym.make_vec("CartPole-v1", 2)])
def test_other_objects_than_single_environments_are_refused(env: Any) -> None:
    with pytest.raises(ConfigError, match="TimeLimit"):
        TimeLimit(env, 5)


def test_attributes_and_methods_of_the_environment_are_reached_through_the_limit() -> None:
    limited = TimeLimit(Counting(7), 5)
    assert limited.length == 7
    assert limited.get_observation_space("ann") is SPACE


@pytest.mark.parametrize("game", [Turns, Together])
def test_a_game_of_pettingzoo_is_put_into_its_wrapper(game: Any) -> None:
    plan = {"a": (1000, "terminated"), "b": (1000, "terminated")}
    limited = TimeLimit(game(plan), 4)
    (ready,) = ends(limited, 5)
    assert [(end.agent_id, end.truncated) for end in ready.ended] == [("a", True), ("b", True)]
