"""Whose numbers are where in a group's flat observation, and which spaces are those of no group."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from menv.algorithms.qmix.network import group_layout
from menv.errors import ConfigError

BOX = gym.spaces.Box(0.0, 1.0, (2,))
TWO = gym.spaces.Discrete(2)


def both(first: Any, second: Any = None) -> gym.spaces.Tuple[Any]:
    return gym.spaces.Tuple([first, first if second is None else second])


def test_without_a_state_everything_that_the_members_see_is_the_state() -> None:
    layout = group_layout(both(BOX), both(TWO))
    assert layout.members == ((0, 1), (2, 3))
    assert layout.state == (0, 1, 2, 3)
    assert layout.choices == 2


def test_the_state_is_seen_by_nobody_and_comes_from_the_first_member() -> None:
    parts = {"state": gym.spaces.Discrete(3), "obs": BOX, "action_mask": gym.spaces.MultiBinary(2)}
    layout = group_layout(both(gym.spaces.Dict(parts)), both(TWO))
    # Entries of a Dict come in the order of their names; masks are apart.
    assert layout.members == ((0, 1), (5, 6))
    assert layout.state == (2, 3, 4)


def test_all_entries_but_the_state_are_seen_and_a_state_may_have_parts() -> None:
    state = gym.spaces.Dict({"far": BOX, "near": TWO})
    member = gym.spaces.Dict({"a": TWO, "state": state, "z": gym.spaces.Dict({"state": BOX})})
    layout = group_layout(both(member), both(TWO))
    assert layout.members == ((0, 1, 6, 7), (8, 9, 14, 15))
    assert layout.state == (2, 3, 4, 5)


def test_actions_may_begin_at_different_numbers() -> None:
    assert group_layout(both(BOX), both(TWO, gym.spaces.Discrete(2, start=5))).choices == 2


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (BOX, both(TWO), r"observation space Box.*expected the Tuple of a group.*with_agent_groups"),
        (both(BOX), TWO, r"action space Discrete\(2\), expected the Tuple of a group.*with_agent_groups"),
        (both(BOX), gym.spaces.MultiDiscrete([2, 2]), r"action space MultiDiscrete.*with_agent_groups"),
        (both(BOX), gym.spaces.Tuple([TWO]), r"2 members observe and 1 act"),
        (
            both(BOX), both(TWO, gym.spaces.Discrete(3)),
            r"the action spaces of members 0 and 1 of the group are Discrete\(2\) and Discrete\(3\), expected equal",
        ),
        (both(BOX), both(TWO, BOX), r"action spaces of members 0 and 1 .* Discrete\(2\) and Box"),
        (
            both(BOX, gym.spaces.Box(0.0, 1.0, (3,))), both(TWO),
            r"the observation spaces of members 0 and 1 of the group are Box\(.*\(2,\).*\(3,\).*expected equal",
        ),
        (both(BOX), both(BOX), r"members' action space is Box.*expected Discrete; train this policy with PPO"),
        (
            both(BOX), both(gym.spaces.MultiBinary(2)),
            r"members' action space is MultiBinary\(2\), expected Discrete; wrap the environment",
        ),
        (gym.spaces.Tuple([]), gym.spaces.Tuple([]), r"observation space Tuple\(\), expected the Tuple of a group"),
    ],
)  # fmt: skip
def test_spaces_of_no_group_are_refused_in_one_line(observation: Any, action: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        group_layout(observation, action)
    assert str(caught.value).startswith("QMIX: ")
    assert "\n" not in str(caught.value)
