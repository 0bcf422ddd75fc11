"""Connectors of a single function, registered under a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from menv.connectors.action_connector import ActionConnector
from menv.connectors.action_data import ActionConnectorDataType
from menv.connectors.agent_connector import AgentConnector, columns_of
from menv.connectors.agent_rows import AgentConnectorDataType
from menv.connectors.connector_registry import register_connector
from menv.connectors.stateless import Stateless
from menv.errors import ContractError


def register_lambda_agent_connector(name: str, fn: Callable[[Any], Any]) -> type[AgentConnector]:
    """Return a class of agent connectors that call a function, registered under a name.

    Args:
        name: Of the class; a saved pipeline refers to it.
        fn: Takes an agent's data, a dict of columns such as `data[SampleBatch.NEXT_OBS]`, and returns it.

    Raises:
        ConfigError: The name is taken.
    """

    class LambdaAgentConnector(Stateless, AgentConnector):
        """Calls a function for each agent."""

        def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
            data = fn(columns_of(self, ac_data))
            if data is None:
                raise ContractError(f"{name}: the function returned None, expected the data; return it")
            return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, data)

    LambdaAgentConnector.__name__ = LambdaAgentConnector.__qualname__ = name
    register_connector(name, LambdaAgentConnector)
    return LambdaAgentConnector


def register_lambda_action_connector(
    name: str, fn: Callable[[Any, Any, Any], tuple[Any, Any, Any]]
) -> type[ActionConnector]:
    """Return a class of action connectors that call a function, registered under a name.

    Args:
        name: Of the class; a saved pipeline refers to it.
        fn: Takes an action, the parts of the recurrent state and the fetches, and returns the three.

    Raises:
        ConfigError: The name is taken.
    """

    class LambdaActionConnector(Stateless, ActionConnector):
        """Calls a function for each answer."""

        def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
            output: Any = fn(*ac_data.output)
            if not isinstance(output, tuple) or len(output) != 3:
                raise ContractError(
                    f"{name}: the function returned {type(output).__name__}, expected (actions, states, fetches); "
                    "put parentheses around the three in a lambda"
                )
            return ActionConnectorDataType(ac_data.env_id, ac_data.agent_id, ac_data.input_dict, output)

    LambdaActionConnector.__name__ = LambdaActionConnector.__qualname__ = name
    register_connector(name, LambdaActionConnector)
    return LambdaActionConnector
