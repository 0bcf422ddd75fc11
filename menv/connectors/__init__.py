"""Connectors: the only place where data changes shape between an environment and a policy.

Each name is fetched when it is first used; registered ones are registered then, and when an algorithm is built.
"""

from typing import TYPE_CHECKING

from menv._lazy_names import lazy_names

if TYPE_CHECKING:
    from menv.connectors.built_in import AgentIdAgentConnector as AgentIdAgentConnector
    from menv.connectors.built_in import ClipActionsConnector as ClipActionsConnector
    from menv.connectors.built_in import ClipRewardAgentConnector as ClipRewardAgentConnector
    from menv.connectors.built_in import ConvertToNumpyConnector as ConvertToNumpyConnector
    from menv.connectors.built_in import FrameStackAgentConnector as FrameStackAgentConnector
    from menv.connectors.built_in import ImmutableActionsConnector as ImmutableActionsConnector
    from menv.connectors.built_in import NormalizeActionsConnector as NormalizeActionsConnector
    from menv.connectors.built_in import StateBufferConnector as StateBufferConnector
    from menv.connectors.built_in import ViewRequirement as ViewRequirement
    from menv.connectors.built_in import ViewRequirementAgentConnector as ViewRequirementAgentConnector
    from menv.connectors.connector import ActionConnector as ActionConnector
    from menv.connectors.connector import ActionConnectorDataType as ActionConnectorDataType
    from menv.connectors.connector import AgentConnector as AgentConnector
    from menv.connectors.connector import AgentConnectorDataType as AgentConnectorDataType
    from menv.connectors.connector import AgentConnectorsOutput as AgentConnectorsOutput
    from menv.connectors.connector import Connector as Connector
    from menv.connectors.connector import ConnectorContext as ConnectorContext
    from menv.connectors.connector import get_connector as get_connector
    from menv.connectors.connector import register_connector as register_connector
    from menv.connectors.connector import register_lambda_action_connector as register_lambda_action_connector
    from menv.connectors.connector import register_lambda_agent_connector as register_lambda_agent_connector
    from menv.connectors.mean_std_filter import (
        MeanStdObservationFilterAgentConnector as MeanStdObservationFilterAgentConnector,
    )
    from menv.connectors.obs_preprocessor import FlattenDataAgentConnector as FlattenDataAgentConnector
    from menv.connectors.obs_preprocessor import ObsPreprocessorConnector as ObsPreprocessorConnector
    from menv.connectors.pipeline import ActionConnectorPipeline as ActionConnectorPipeline
    from menv.connectors.pipeline import AgentConnectorPipeline as AgentConnectorPipeline

__all__, __getattr__, __dir__ = lazy_names(__name__)
