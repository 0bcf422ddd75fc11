"""What is wrong with calls from outside that several places refuse in the same words."""

from __future__ import annotations

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
