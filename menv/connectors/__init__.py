"""Connectors: the only place where data changes shape between an environment and a policy.

Each name is fetched when it is first used; registered ones are registered then, and when an algorithm is built.
"""

from typing import TYPE_CHECKING

from menv._names_on_demand import names_on_demand
from menv.connectors.built_in import BUILT_IN

if TYPE_CHECKING:
    from menv.connectors.action_connector import ActionConnector as ActionConnector
    from menv.connectors.action_data import ActionConnectorDataType as ActionConnectorDataType
    from menv.connectors.action_steps import ClipActionsConnector as ClipActionsConnector
    from menv.connectors.action_steps import ConvertToNumpyConnector as ConvertToNumpyConnector
    from menv.connectors.action_steps import ImmutableActionsConnector as ImmutableActionsConnector
    from menv.connectors.action_steps import NormalizeActionsConnector as NormalizeActionsConnector
    from menv.connectors.agent_connector import AgentConnector as AgentConnector
    from menv.connectors.agent_rows import AgentConnectorDataType as AgentConnectorDataType
    from menv.connectors.agent_rows import AgentConnectorsOutput as AgentConnectorsOutput
    from menv.connectors.clip_reward import ClipRewardAgentConnector as ClipRewardAgentConnector
    from menv.connectors.connector import Connector as Connector
    from menv.connectors.connector_context import ConnectorContext as ConnectorContext
    from menv.connectors.connector_registry import get_connector as get_connector
    from menv.connectors.connector_registry import register_connector as register_connector
    from menv.connectors.flat_obs import FlattenDataAgentConnector as FlattenDataAgentConnector
    from menv.connectors.flat_obs import ObsPreprocessorConnector as ObsPreprocessorConnector
    from menv.connectors.frame_stack import FrameStackAgentConnector as FrameStackAgentConnector
    from menv.connectors.lambda_connectors import (
        register_lambda_action_connector as register_lambda_action_connector,
    )
    from menv.connectors.lambda_connectors import (
        register_lambda_agent_connector as register_lambda_agent_connector,
    )
    from menv.connectors.mean_std_filter import (
        MeanStdObservationFilterAgentConnector as MeanStdObservationFilterAgentConnector,
    )
    from menv.connectors.mean_std_filter import SyncedFilterAgentConnector as SyncedFilterAgentConnector
    from menv.connectors.pipeline import ActionConnectorPipeline as ActionConnectorPipeline
    from menv.connectors.pipeline import AgentConnectorPipeline as AgentConnectorPipeline
    from menv.connectors.state_buffer import StateBufferConnector as StateBufferConnector
    from menv.connectors.view_requirement import EnvSamplingAgentConnector as EnvSamplingAgentConnector
    from menv.connectors.view_requirement import ViewRequirement as ViewRequirement
    from menv.connectors.view_requirement import (
        ViewRequirementAgentConnector as ViewRequirementAgentConnector,
    )

_HOMES = {
    **BUILT_IN,
    "ActionConnector": "action_connector",
    "ActionConnectorDataType": "action_data",
    "AgentConnector": "agent_connector",
    "AgentConnectorDataType": "agent_rows",
    "AgentConnectorsOutput": "agent_rows",
    "Connector": "connector",
    "ConnectorContext": "connector_context",
    "SyncedFilterAgentConnector": "mean_std_filter",
    "ViewRequirement": "view_requirement",
    "get_connector": "connector_registry",
    "register_connector": "connector_registry",
    "register_lambda_action_connector": "lambda_connectors",
    "register_lambda_agent_connector": "lambda_connectors",
}
__all__ = sorted(_HOMES)

__getattr__, __dir__ = names_on_demand(__name__, _HOMES)
