"""What is wrong with calls from outside that several places refuse in the same words."""

from __future__ import annotations

from collections.abc import Iterable

from menv.base_env import AgentId
from menv.errors import CallOrderError, EpisodeError


def stopped() -> CallOrderError:
    """Return the error for calls that nobody will answer."""
    return CallOrderError(
        "external environment: nobody samples any more, expected no further call; end the thread"
    )


def mixed(where: str, episode_id: str) -> EpisodeError:
    """Return the error for single calls in an episode that is handed in in pieces."""
    return EpisodeError(
        f"{where}: whole pieces of episode {episode_id!r} were handed in, expected no single calls; do one or the other"
    )


def unlike(obs: Iterable[AgentId], actions: Iterable[AgentId]) -> CallOrderError:
    """Return what a caller is told that has logged actions of other agents than those that observed."""
    return CallOrderError(
        f"log_action: observations of {_named(obs)} and actions of {_named(actions)}, expected the same agents; log an "
        "action for each agent that observes"
    )


def _named(agents: Iterable[AgentId]) -> str:
    return ", ".join(sorted(map(repr, agents))[:8]) or "nobody"
