"""The names of menv's own connectors, and the file in which each lives and registers itself.

The package fetches them by these names, and so does the registry. It imports none of them.
"""

from __future__ import annotations

BUILT_IN = {
    "ActionConnectorPipeline": "pipeline",
    "AgentConnectorPipeline": "pipeline",
    "ClipActionsConnector": "action_steps",
    "ClipRewardAgentConnector": "clip_reward",
    "ConvertToNumpyConnector": "action_steps",
    "EnvSamplingAgentConnector": "view_requirement",
    "FlattenDataAgentConnector": "flat_obs",
    "FrameStackAgentConnector": "frame_stack",
    "ImmutableActionsConnector": "action_steps",
    "MeanStdObservationFilterAgentConnector": "mean_std_filter",
    "NormalizeActionsConnector": "action_steps",
    "ObsPreprocessorConnector": "flat_obs",
    "StateBufferConnector": "state_buffer",
    "ViewRequirementAgentConnector": "view_requirement",
}
"""File by name."""
