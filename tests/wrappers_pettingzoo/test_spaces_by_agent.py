"""Spaces of all agents at once, as wrapped games declare them and as policies are given them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from menv.algorithms import PPO
from menv.errors import ConfigError
from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv
from tests.wrappers_pettingzoo.small_games import OBS, Together, Turns

pytestmark = pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")

PLAN = {"b": (6, "terminated"), "a": (6, "terminated")}
both = pytest.mark.parametrize("game", [Turns, Together])


def wrapped(game: Any) -> Any:
    return (PettingZooEnv if game is Turns else ParallelPettingZooEnv)(game(PLAN))


@both
def test_the_space_of_a_game_is_a_dict_of_those_of_its_agents(game: Any) -> None:
    env = wrapped(game)
    for kind in ("observation", "action"):
        whole, spaces = getattr(env, f"{kind}_space"), getattr(env, f"{kind}_spaces")
        assert isinstance(whole, gym.spaces.Dict)
        assert list(whole.spaces) == list(spaces) == ["b", "a"]
        assert all(whole[agent] is spaces[agent] for agent in spaces)
    obs, _ = env.reset()
    assert env.observation_space_contains(obs)


def test_without_agents_there_is_no_space_but_a_given_one_stays() -> None:
    game = Together(PLAN)
    game.possible_agents = game.agents = []
    env = ParallelPettingZooEnv(game)
    assert env.observation_space is None
    assert env.action_space is None
    env.observation_space = OBS
    assert env.observation_space is OBS


@both
def test_policies_may_be_given_the_spaces_of_the_game(game: Any) -> None:
    env = wrapped(game)
    policies: Any = {
        agent: (None, env.observation_space, env.action_space, {}) for agent in env.possible_agents
    }
    config: dict[str, Any] = {
        "train_batch_size": 32,
        "sgd_minibatch_size": 16,
        "multiagent": {"policies": policies, "policy_mapping_fn": lambda agent_id, *args, **kwargs: agent_id},
    }
    with PPO(env=lambda context: wrapped(game), config=config) as algo:
        assert algo.get_policy("a").observation_space == OBS
        algo.train()


def test_a_policy_whose_agents_differ_in_the_dict_is_refused() -> None:
    whole = gym.spaces.Dict({"a": OBS, "b": gym.spaces.Box(0, 1, (7,))})
    config: dict[str, Any] = {"multiagent": {"policies": {"shared": (None, whole, None, {})}}}
    with pytest.raises(ConfigError, match=r"policies\['shared'\].observation_space"):
        PPO(env=lambda context: wrapped(Together), config=config)
