"""The nested dict `{env_id: {agent_id: action}}`, looked at before anybody acts on it.

Every adapter's `send_actions` asks it. It knows neither who waits nor what an action is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
