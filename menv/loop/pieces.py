"""Pieces: the rows of one trajectory in one fragment, and whose they are.

`menv.loop.hooks` tells callbacks about each, `menv.algorithms` lets policies look at those of everybody in
the episode. Nothing here knows what is done with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from menv.base_env import AgentId
from menv.episode import Episode
from menv.sample_batch import SampleBatch


class Piece(NamedTuple):
    """Rows of one agent's life in one episode.

    Attributes:
        policy_id: Who answered for it.
        agent_id: The agent.
        episode: The episode; it may go on.
        batch: [T] rows, in time.
    """

    policy_id: str
    agent_id: AgentId
    episode: Episode
    batch: SampleBatch


def pieces_of(policy_id: str, batch: SampleBatch, episodes: Mapping[int, Episode]) -> list[Piece]:
    """Return the pieces of a policy's batch, in order.

    Args:
        policy_id: The policy.
        batch: Its rows of one fragment.
        episodes: By id, all that the rows belong to.
    """
    agents: dict[int, list[Any]] = {}
    pieces = []
    for part, eps_id, number in zip(
        batch.split_by_episode(), batch.segments.eps_id.tolist(), batch.segments.agent_index.tolist(), strict=True
    ):  # fmt: skip
        episode = episodes[eps_id]
        if eps_id not in agents:
            agents[eps_id] = episode.get_agents()
        pieces.append(Piece(policy_id, agents[eps_id][number], episode, part))
    return pieces
