"""What a policy answered to one agent, on its way through action connectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

PolicyOutput: TypeAlias = tuple[Any, Any, Mapping[str, Any]]
"""The action, the parts of the recurrent state, and fetches such as `action_logp`."""


@dataclass(slots=True)
class ActionConnectorDataType:
    """What action connectors take and give for one agent.

    Attributes:
        env_id: The sub-environment.
        agent_id: The agent.
        input_dict: What the policy was shown.
        output: `(action, states, fetches)`.
    """

    env_id: Any
    agent_id: Any
    input_dict: Any
    output: PolicyOutput
