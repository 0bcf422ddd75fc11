"""The nested dict `{env_id: {agent_id: action}}`, looked at before anybody acts on it.

Every adapter's `send_actions` asks it. It knows neither who waits nor what an action is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from menv.base_env import AgentId, EnvId
from menv.errors import ContractError


def nested_answers(answers: Any) -> Mapping[EnvId, Mapping[AgentId, Any]]:
    """Return `answers` once they are a dict of dicts.

    Raises:
        ContractError: They are something else; it says where.
    """
    if not isinstance(answers, Mapping):
        raise ContractError(
            f"send_actions: got {type(answers).__name__} alone, expected {{env_id: {{agent_id: action}}}}; pass the "
            "nested dict, or slots and actions"
        )
    for env_id, by_agent in answers.items():
        if not isinstance(by_agent, Mapping):
            raise ContractError(
                f"send_actions: the actions of env {env_id!r} are {type(by_agent).__name__}, expected "
                "{agent_id: action}; key them by agent id"
            )
    return answers


def by_sub_environment(
    slots: Any, actions: Any, seats: Sequence[tuple[EnvId, AgentId]]
) -> dict[EnvId, dict[AgentId, Any]]:
    """Return the two arguments of `send_actions` as one nested dict of its own.

    Raises:
        ContractError: There are no actions beside the slots, and these are no nested dict.
    """
    if actions is None:
        return {env_id: dict(answers) for env_id, answers in nested_answers(slots).items()}
    by_env: dict[EnvId, dict[AgentId, Any]] = {}
    numbers = slots.tolist() if isinstance(slots, np.ndarray) else map(int, slots)
    for slot, action in zip(numbers, actions, strict=True):
        env_id, agent = seats[slot]
        if env_id in by_env:
            by_env[env_id][agent] = action
        else:
            by_env[env_id] = {agent: action}
    return by_env
