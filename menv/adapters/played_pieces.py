"""Pieces of episodes that were played elsewhere, as the sampler takes them: with slots, joins and ends.

`menv.adapters.external` calls it for what clients send that choose their actions themselves.
"""

from __future__ import annotations

from menv.adapters.external_roster import ExternalRoster
from menv.base_env import AgentPiece, End, Piece
from menv.played import Played


def next_piece(roster: ExternalRoster, played: Played, trained: bool, now: int) -> Piece:
    """Return a piece of the episode that `roster` stands for.

    Agents that live on in an episode that ends, end with it, with the observation that they wait with.

    Args:
        roster: Of the episode.
        played: What was played.
        trained: Whether policies may learn from it.
        now: Env steps of the sub-environment, those of the piece included.
    """
    parts = []
    times = now - roster.episode_steps, now
    for agent, moves in played.agents.items():
        if not len(moves.rewards) and agent not in roster.living():
            continue
        slot, join = roster.enter(agent)
        end = None
        if moves.over or played.over:
            own = (moves.terminated, moves.truncated) if moves.over else (played.terminated, played.truncated)
            # Without an action the observation that waits is the last one.
            acted = len(moves.rewards) > 0
            last = moves.obs[len(moves.rewards)] if acted else None
            reward = float(moves.rewards[-1]) if acted else 0.0
            end = End(slot, roster.env_id, agent, reward, *own, last, {}, withdrawn=not acted)
            roster.leave(agent)
        if join is not None:
            join = join._replace(trained=trained, policy_id=played.policies.get(agent))
        parts.append(AgentPiece(slot, join, moves, end))
    if not played.over:
        return Piece(roster.env_id, roster.env_index, parts, None, played.weights_seq_no, *times)
    parts += _others(roster, played.terminated, played.truncated)
    episode = roster.close(played.terminated, played.truncated)
    return Piece(roster.env_id, roster.env_index, parts, episode, played.weights_seq_no, *times)


def last_piece(roster: ExternalRoster, now: int) -> Piece:
    """Return the end of an episode whose client is gone; see `next_piece`."""
    parts, began = _others(roster, False, True), now - roster.episode_steps
    episode = roster.close(False, True)._replace(faulty=True)
    return Piece(roster.env_id, roster.env_index, parts, episode, None, began, now)


def _others(roster: ExternalRoster, terminated: bool, truncated: bool) -> list[AgentPiece]:
    parts = []
    for agent in roster.living():
        slot, _ = roster.enter(agent)
        end = End(slot, roster.env_id, agent, 0.0, terminated, truncated, None, {}, withdrawn=True)
        parts.append(AgentPiece(slot, None, None, end))
        roster.leave(agent)
    return parts
