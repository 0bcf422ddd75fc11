"""Groups that cannot be: each is refused by name when the environment is wrapped."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from menv.errors import ConfigError, ContractError
from menv.wrappers.group_agents import GroupAgentsWrapper
from tests.bad_input.broken_envs import Faulty, checked
from tests.worlds import like

PAIR = gym.spaces.Tuple([gym.spaces.Discrete(2)] * 2)


@pytest.mark.parametrize(("groups", "named"), [
    ({"g": ["ann", "eve"]}, "'eve'"), ({"g": ["ann"], "h": ["bob", "ann"]}, "'ann'"),
    ({"g": ["ann", "ann"]}, "'ann'"), ({"g": []}, "'g'"), ({"g": "ann"}, "'g'"), ({"g": {"ann"}}, "'g'"),
    ({"ann": ["ann", "bob"]}, "'ann'"), ({"__all__": ["ann"]}, "'__all__'"), ({}, "groups"), (["ann", "bob"], "groups"),
])  # fmt: skip
def test_impossible_groups_are_refused_by_name(groups: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        Faulty().with_agent_groups(groups)
    checked(str(caught.value))


def test_a_member_without_a_space_is_named() -> None:
    bare = like(Faulty, action_spaces={"ann": gym.spaces.Discrete(2)})
    with pytest.raises(ContractError, match="'bob'"):
        bare().with_agent_groups({"g": ["ann", "bob"]})
    env = bare().with_agent_groups({"g": ["ann", "bob"]}, act_space=PAIR)
    assert env.get_action_space("g") is PAIR
    # An agent in no group may declare its space later.
    with pytest.raises(ContractError, match="'bob'"):
        bare().with_agent_groups({"g": ["ann"]}).get_action_space("bob")


@pytest.mark.parametrize("given", [PAIR, {"g": PAIR}, gym.spaces.Dict({"g": PAIR})])
def test_spaces_are_given_for_all_groups_or_by_group(given: Any) -> None:
    env = GroupAgentsWrapper(Faulty(), {"g": ["ann", "bob"]}, given, given)
    assert env.get_observation_space("g") is env.get_action_space("g")
    assert env.get_observation_space("g") == PAIR


@pytest.mark.parametrize(("given", "named"), [
    (gym.spaces.Discrete(2), "'g'"), (gym.spaces.Tuple([gym.spaces.Discrete(2)]), "'g'"), (3, "'g'"), ([PAIR], "'g'"),
    ({"g": 3}, "'g'"), ({"h": PAIR}, "'h'"),
])  # fmt: skip
def test_spaces_that_do_not_fit_the_groups_are_refused(given: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        Faulty().with_agent_groups({"g": ["ann", "bob"]}, given)
    checked(str(caught.value))


def test_groups_of_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="groups"):
        Faulty().with_agent_groups({"g": ["ann", "bob"]}).with_agent_groups({"h": ["g"]})
