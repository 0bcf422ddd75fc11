"""What is wrong with calls from outside that several places refuse in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from menv.base_env import AgentId
from menv.env_calls import as_flag
from menv.errors import CallOrderError, ContractError, EpisodeError


def stopped() -> CallOrderError:
    """Return the error for calls that nobody will answer."""
    return CallOrderError(
        "external environment: nobody samples any more, expected no further call; end the thread"
    )


def over() -> CallOrderError:
    """Return the error for a sampler that goes on with an environment that was stopped."""
    return CallOrderError("poll: this environment was stopped, expected no further poll; create another")


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


def keyed_by_agent(where: str, what: str, given: Any) -> Mapping[Any, Any]:
    """Return what a caller gave for several agents.

    Raises:
        ContractError: It is no dict.
    """
    if isinstance(given, Mapping):
        return given
    raise ContractError(
        f"{where}: {what} is {type(given).__name__}, expected a dict by agent id; write {{agent_id: ...}} also for one "
        "agent alone"
    )


def done_flags(given: Any) -> dict[Any, bool]:
    """Return the flags that a caller gave for agents whose own trajectories end.

    Raises:
        ContractError: It is no dict, or holds something else than True and False.
    """
    if given is None:
        return {}
    flags = keyed_by_agent("log_returns", "multiagent_done_dict", given)
    return {
        agent: as_flag(flag, f"log_returns: the done flag of {agent!a:.60}") for agent, flag in flags.items()
    }


def truncation(given: Any) -> bool:
    """Return whether a caller's episode was cut short.

    Raises:
        ContractError: It is neither True nor False.
    """
    return as_flag(given, "end_episode: truncated")


def check_told_info(given: Any) -> None:
    """Refuse an info that is neither a dict nor None.

    Raises:
        ContractError: It is something else.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ContractError(
            f"log_returns: info is {type(given).__name__}, expected a dict; leave it out if there is nothing to tell"
        )


def check_start(episode_id: Any, trained: Any) -> None:
    """Refuse what no episode can begin with.

    Raises:
        ContractError: The id is no text, or whether policies may learn is neither True nor False.
    """
    if not isinstance(episode_id, str | int | None):
        raise ContractError(
            f"start_episode: episode_id is {type(episode_id).__name__}, expected a text; leave it out to be given one"
        )
    if not isinstance(trained, bool | np.bool_):
        raise ContractError(
            f"start_episode: training_enabled is {trained!r:.40}, expected True or False; say whether policies may "
            "learn from the episode"
        )


def _named(agents: Iterable[AgentId]) -> str:
    return ", ".join(sorted(map(repr, agents))[:8]) or "nobody"
