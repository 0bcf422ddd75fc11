"""An episode that was written down as its seed and its actions, to be played again in a new environment.

`menv.loop.running_episodes` makes them; the adapters of environments in this process play them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from menv.base_env import AgentId


@dataclass(frozen=True, slots=True)
class Recorded:
    """One running episode.

    Attributes:
        start: Env steps of its sub-environment at its reset.
        stop: Env steps at which it was written down.
        seed: Of its reset, None where the environment was left alone.
        actions: Env-ready actions of each agent, in order.
        slots: The slot of each agent that its sub-environment knows.
        shown: The digest of what waited when it was written down.
    """

    start: int
    stop: int
    seed: int | None
    actions: Mapping[AgentId, Iterator[Any]]
    slots: Mapping[AgentId, int]
    shown: str
