"""ActionConnector: a transform between a policy's answer and the action that the environment gets.

Users subclass it; `ActionConnectorPipeline` calls it, once for each agent.
"""

from __future__ import annotations

from typing import Any

from menv.connectors.action_data import ActionConnectorDataType, PolicyOutput
from menv.connectors.connector import Connector
from menv.errors import ContractError


class ActionConnector(Connector):
    """Base of action connectors; override `transform`."""

    def __call__(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        """Return the answer to one agent, transformed.

        Raises:
            ContractError: `transform` returned something else, or an output that is not the three of an answer.
        """
        out = self.transform(ac_data)
        if not isinstance(out, ActionConnectorDataType):
            raise ContractError(
                f"{self.name}.transform: returned {type(out).__name__}, expected ActionConnectorDataType; return the "
                "one that came in, changed"
            )
        if not isinstance(out.output, tuple | list) or len(out.output) != 3:
            raise ContractError(
                f"{self.name}.transform: output is {type(out.output).__name__}, expected (actions, states, fetches); "
                "put the changed action into a tuple with the other two"
            )
        return out

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        """Return the answer to one agent, transformed."""
        raise ContractError(
            f"{self.name}.transform: not defined, expected the agent's answer; define transform"
        )


def with_action(ac_data: ActionConnectorDataType, action: Any) -> ActionConnectorDataType:
    """Return the same answer with another action."""
    output: PolicyOutput = (action, ac_data.output[1], ac_data.output[2])
    return ActionConnectorDataType(ac_data.env_id, ac_data.agent_id, ac_data.input_dict, output)
