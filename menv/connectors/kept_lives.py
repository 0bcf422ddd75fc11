"""What connectors remember of single lives, taken out of one pipeline and put into another one like it.

Checkpoints of running episodes, clients that act by themselves and workers whose pipelines are changed call it. What a
connector remembers it knows itself; here is only which of them are asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from menv.connectors.agent_connector import AgentConnector
from menv.connectors.default_pipelines import leaf_connectors
from menv.connectors.pipeline import AgentConnectorPipeline


def keepers(pipeline: AgentConnectorPipeline) -> list[AgentConnector]:
    """Return the connectors that remember something of each life.

    Of those that are called agent by agent also the ones that only say so by overriding `reset`.
    """
    return [
        leaf
        for leaf in leaf_connectors(pipeline)
        if leaf.keeps_lives or not (leaf.takes_rows or type(leaf).reset is AgentConnector.reset)
    ]


def can_move(pipeline: AgentConnectorPipeline) -> bool:
    """Return whether all that connectors remember of a life can be taken out."""
    return all(leaf.takes_rows and leaf.tells_lives for leaf in keepers(pipeline))


def kept_lives(pipeline: AgentConnectorPipeline, slots: Sequence[int]) -> list[list[Any]]:
    """Return of the life on each slot what each connector remembers; see `AgentConnector.lives`."""
    found = [leaf.lives(slots) for leaf in keepers(pipeline)]
    return [list(life) for life in zip(*found, strict=True)] if found else [[] for _ in slots]


def put_lives(pipeline: AgentConnectorPipeline, slots: Sequence[int], lives: Sequence[Sequence[Any]]) -> None:
    """Let the lives that `kept_lives` told of go on on these slots; one of which nothing is told is new."""
    for number, leaf in enumerate(keepers(pipeline)):
        leaf.take_lives(slots, [life[number] if life else None for life in lives])


def hand_on_lives(
    pipeline: AgentConnectorPipeline, successor: AgentConnectorPipeline, slots: Sequence[int]
) -> None:
    """Let lives go on in a pipeline that takes another one's place, with those connectors that both have."""
    before, after = keepers(pipeline), keepers(successor)
    places = predecessors([type(leaf) for leaf in before], [type(leaf) for leaf in after])
    for leaf, place in zip(after, places, strict=True):
        if place is not None and leaf.takes_rows and leaf.tells_lives:
            leaf.take_lives(slots, before[place].lives(slots))


def predecessors(kinds: Sequence[type], successors: Sequence[type]) -> list[int | None]:
    """Return where among `kinds` each of their successors has its own, the first one to the first; None without one."""
    left = [*enumerate(kinds)]
    found: list[int | None] = []
    for kind in successors:
        pair = next((pair for pair in left if pair[1] is kind), None)
        if pair is not None:
            left.remove(pair)
        found.append(None if pair is None else pair[0])
    return found
