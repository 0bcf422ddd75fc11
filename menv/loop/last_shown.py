"""What lives were shown last, for connectors that may change the reward of an end without an observation.

`menv.loop.connector_path` keeps one. It knows no pipelines, only which of a policy's connectors there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from menv.connectors.agent_connector import AgentConnector
from menv.connectors.clip_reward import ClipRewardAgentConnector
from menv.connectors.frame_stack import FrameStackAgentConnector
from menv.nested import own_copy
from menv.segments import Column

# What is shown at ends, and does to rewards what needs no observation, or nothing.
_KNOWN = (ClipRewardAgentConnector, FrameStackAgentConnector)


class LastShown:
    """Keeps a copy of the last observation of each life, of policies some connector of which asks for it.

    Args:
        leaves: The connectors of each policy, by index.
    """

    def __init__(self, leaves: Sequence[Sequence[AgentConnector]]) -> None:
        self._asked = [any(leaf.at_ends and type(leaf) not in _KNOWN for leaf in own) for own in leaves]
        self._obs: dict[int, Any] = {}

    def note(self, index: int, slots: Column, obs: Sequence[Any]) -> None:
        """Note what the lives on slots [R] of a policy are shown, as the environment gave it."""
        if self._asked[index]:
            self._obs.update(zip(slots.tolist(), map(own_copy, obs), strict=True))

    def of(self, slots: Sequence[int]) -> list[Any]:
        """Return what the lives on slots were shown last, None where nothing was noted."""
        return [self._obs.get(slot) for slot in slots]

    def put(self, slots: Sequence[int], obs: Sequence[Any]) -> None:
        """Note what `of` told of lives that go on here, on these slots."""
        self._obs.update((slot, one) for slot, one in zip(slots, obs, strict=True) if one is not None)

    def follow(self, before: LastShown) -> None:
        """Go on with what was noted of lives while policies had other connectors."""
        self._obs = before._obs

    def take(self, slot: int) -> Any:
        """Return what the life on a slot, which ends, was shown last; None if nothing was noted."""
        return self._obs.pop(slot, None)
