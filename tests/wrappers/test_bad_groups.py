"""Groups that cannot be: each is refused by name when the environment is wrapped."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from menv.errors import ConfigError, ContractError
from menv.wrappers.group_agents import GroupAgentsWrapper
from tests.bad_input.broken_envs import Faulty, checked

PAIR = gym.spaces.Tuple([gym.spaces.Discrete(2)] * 2)


@pytest.mark.parametrize(("groups", "told"), [
    ({"g": ["ann", "eve"]}, r"group 'g' has members \['eve'\], expected some of 'ann', 'bob'"),
    ({"g": ["ann"], "h": ["bob", "ann"]}, r"agent 'ann' is in group 'g' and again in 'h'"),
    ({"g": ["ann", "ann"]}, r"agent 'ann' is in group 'g' and again in 'g'"),
    ({"g": []}, r"the members of group 'g' are \[\], expected a list"),
    ({"g": "ann"}, r"the members of group 'g' are 'ann', expected a list"),
    ({"g": {"ann", "bob"}}, r"the members of group 'g' are {.*expected a list"),
    ({"ann": ["ann", "bob"]}, "ann"),
    ({"__all__": ["ann"]}, "__all__"),
    ({}, r"the groups are dict {}, expected a dict that is not empty"),
    (["ann", "bob"], r"the groups are list .*expected a dict"),
])  # fmt: skip
def test_groups_that_cannot_be_are_refused_by_name(groups: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        Faulty().with_agent_groups(groups)
    checked(str(caught.value))


def test_an_environment_in_the_place_of_the_groups_is_told_where_it_belongs() -> None:
    env: Any = Faulty()
    with pytest.raises(
        ConfigError, match=r"the groups are an environment \(Faulty\).*what the dot follows"
    ) as caught:
        env.with_agent_groups(env, {"g": ["ann", "bob"]})
    checked(str(caught.value))


def test_a_member_without_a_space_is_named() -> None:
    class Bare(Faulty):
        def __init__(self) -> None:
            super().__init__()
            self.action_spaces = {"ann": gym.spaces.Discrete(2)}

    with pytest.raises(ContractError, match=r"no action space for agent 'bob'"):
        Bare().with_agent_groups({"g": ["ann", "bob"]})
    env = Bare().with_agent_groups({"g": ["ann", "bob"]}, act_space=PAIR)
    assert env.get_action_space("g") is PAIR
    # An agent in no group may declare its space later.
    with pytest.raises(ContractError, match=r"no action space for agent 'bob'"):
        Bare().with_agent_groups({"g": ["ann"]}).get_action_space("bob")


@pytest.mark.parametrize("given", [PAIR, {"g": PAIR}, gym.spaces.Dict({"g": PAIR})])
def test_spaces_are_given_for_all_groups_or_by_group(given: Any) -> None:
    env = GroupAgentsWrapper(Faulty(), {"g": ["ann", "bob"]}, given, given)
    assert env.get_observation_space("g") is env.get_action_space("g")
    assert env.get_observation_space("g") == PAIR


@pytest.mark.parametrize(("given", "told"), [
    (gym.spaces.Discrete(2), "'g'"),
    (gym.spaces.Tuple([gym.spaces.Discrete(2)]), r"expected a Tuple of 2 spaces, one a member"),
    *((given, r"spaces are given as .*by group, of \['g'\]") for given in (3, [PAIR], {"g": 3}, {"h": PAIR})),
])  # fmt: skip
def test_spaces_that_do_not_fit_the_groups_are_refused(given: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        Faulty().with_agent_groups({"g": ["ann", "bob"]}, given)
    checked(str(caught.value))


def test_groups_of_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="has groups already"):
        Faulty().with_agent_groups({"g": ["ann", "bob"]}).with_agent_groups({"h": ["g"]})
