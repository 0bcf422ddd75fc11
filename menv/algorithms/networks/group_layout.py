"""Which numbers of a group's flat observation are whose: each member's own, and the state of the whole.

`menv.algorithms.qmix` reads it off the spaces of a group of agents, once. It knows no networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym

from menv.acting.action_head import in_a_line
from menv.algorithms.off_policy_recipe import instead
from menv.connectors.obs_preprocessor import Leaf, ObsPreprocessor
from menv.errors import ConfigError

STATE_KEY = "state"
"""The entry of a member's Dict observation that holds the state of the whole, the same for all members."""


class GroupLayout(NamedTuple):
    """The columns of a flat observation, and the choices.

    Attributes:
        members: [C] the columns that each member sees.
        state: The columns of the state of the whole: the first member's `"state"`; everything that the members
            see where the observations have no such entry.
        choices: Number of choices of each member.
    """

    members: tuple[tuple[int, ...], ...]
    state: tuple[int, ...]
    choices: int


def group_layout(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> GroupLayout:
    """Return the layout of a group's observations and actions.

    Raises:
        ConfigError: These are no spaces of a group, or those of its members differ.
    """
    members = _parts("observation", observation_space)
    actions = _parts("action", action_space)
    if len(members) != len(actions):
        raise ConfigError(
            f"QMIX: {len(members)} members observe and {len(actions)} act, expected the same number; group the agents "
            "with env.with_agent_groups"
        )
    _refuse_unlike("observation", members, members)
    # Where a member's numbers begin is of no account.
    _refuse_unlike("action", actions, [getattr(space, "n", space) for space in actions])
    if not isinstance(actions[0], gym.spaces.Discrete):
        raise ConfigError(
            f"QMIX: the members' action space is {in_a_line(actions[0])}, expected Discrete; {instead(actions[0])}"
        )
    leaves = ObsPreprocessor(observation_space).leaves
    own = tuple(_columns(leaves, place, state=False) for place in range(len(members)))
    return GroupLayout(own, _columns(leaves, 0, state=True) or sum(own, ()), int(actions[0].n))


def _parts(kind: str, space: gym.Space[Any]) -> tuple[Any, ...]:
    if not isinstance(space, gym.spaces.Tuple) or not space.spaces:
        raise ConfigError(
            f"QMIX: {kind} space {in_a_line(space)}, expected the Tuple of a group of agents; group them with "
            'env.with_agent_groups({"group": ["agent_1", "agent_2"]})'
        )
    return tuple(space.spaces)


def _refuse_unlike(kind: str, spaces: Sequence[Any], forms: Sequence[Any]) -> None:
    for place, (space, form) in enumerate(zip(spaces, forms, strict=True)):
        if form != forms[0] or type(space) is not type(spaces[0]):
            raise ConfigError(
                f"QMIX: the {kind} spaces of members 0 and {place} of the group are {in_a_line(spaces[0])} and "
                f"{in_a_line(space)}, expected equal ones, because the members share one network; pad the smaller one "
                "(action_mask forbids choices), or train this policy with PPO"
            )


def _columns(leaves: list[Leaf], place: int, *, state: bool) -> tuple[int, ...]:
    return tuple(
        column
        for leaf in leaves
        if leaf.keys[0] == place and (leaf.keys[1:2] == (STATE_KEY,)) is state
        for column in range(leaf.start, leaf.start + leaf.width)
    )
