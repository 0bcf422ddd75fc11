"""Grouped environments that play a script."""

from __future__ import annotations

from typing import Any

from menv.wrappers.group_agents import GroupAgentsWrapper
from tests.contract.scripted import Moment, ScriptedEnv, seen

BOTH = {"ab": ["a", "b"]}


def playing(*moments: Moment, groups: Any = None, agents: str = "abc") -> GroupAgentsWrapper:
    return GroupAgentsWrapper(ScriptedEnv([moments], agents=agents), groups or BOTH)


def steps_of(obs: Any) -> list[int]:
    """Return the env step at which each place of a group's observation was seen."""
    return [seen(part).step for part in obs]


DEATH = (
    Moment("ab"),
    Moment("b", {"a": 1}, terminated="a", final="a"),
    Moment("b", {"a": 2, "b": 4}),
    Moment("", {"b": 8}, truncated="b", final="b"),
    Moment("c"),
)
