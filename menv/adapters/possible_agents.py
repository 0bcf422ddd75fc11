"""What an environment says of the agents that may ever appear in it."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

import numpy as np

from menv.base_env import AgentId
from menv.errors import ContractError


def possible_agents(env: Any) -> frozenset[AgentId] | None:
    """Return the agents that may ever appear, None if the environment does not say.

    Raises:
        ContractError: It lists something else than agent ids.
    """
    listed = getattr(env, "possible_agents", None)
    if listed is None:
        return None
    # What may be meant by a number, a text or an array is not guessed.
    if not isinstance(listed, Collection) or isinstance(listed, str | np.ndarray):
        raise _wrong(env, f"{type(listed).__name__} {str(listed)[:40]!r}")
    for agent in listed:
        if not isinstance(agent, Hashable):
            raise _wrong(env, f"a collection with a {type(agent).__name__}")
    return frozenset(listed) or None


def _wrong(env: Any, got: str) -> ContractError:
    return ContractError(
        f"{type(env).__name__}: possible_agents is {got}, expected a list of agent ids; set it to all that may "
        "ever appear, or leave it out"
    )
