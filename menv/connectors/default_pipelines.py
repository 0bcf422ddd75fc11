"""The pipelines that a network policy begins with, and what of a pipeline whole batches can do at once.

`menv.algorithms.cohorts` builds them; `menv.loop` asks for the short ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from menv.connectors.action_connector import ActionConnector
from menv.connectors.action_steps import (
    ClipActionsConnector,
    ConvertToNumpyConnector,
    ImmutableActionsConnector,
    NormalizeActionsConnector,
)
from menv.connectors.agent_connector import AgentConnector
from menv.connectors.clip_reward import ClipRewardAgentConnector
from menv.connectors.connector_context import ConnectorContext
from menv.connectors.connector_registry import get_connector
from menv.connectors.flat_obs import FlattenDataAgentConnector, ObsPreprocessorConnector
from menv.connectors.mean_std_filter import MeanStdObservationFilterAgentConnector
from menv.connectors.pipeline import ActionConnectorPipeline, AgentConnectorPipeline
from menv.connectors.state_buffer import StateBufferConnector
from menv.connectors.view_requirement import EnvSamplingAgentConnector, ViewRequirementAgentConnector
from menv.errors import ConfigError

FILTERS = {"NoFilter": None, "MeanStdFilter": MeanStdObservationFilterAgentConnector}
"""Settings of `observation_filter` and what they put into a pipeline."""

_NOTHING_TO_DO = (
    FlattenDataAgentConnector, StateBufferConnector, ViewRequirementAgentConnector, EnvSamplingAgentConnector,
)  # fmt: skip
_ACTION_ORDER: tuple[type[ActionConnector], ...] = (
    ConvertToNumpyConnector, NormalizeActionsConnector, ClipActionsConnector, ImmutableActionsConnector,
)  # fmt: skip


class ActionPlan(NamedTuple):
    """How a pipeline of action connectors is run.

    Attributes:
        normalize: Whether batches are scaled at once.
        clip: Whether batches are clipped at once.
        rest: Connectors that come after and are called agent by agent.
    """

    normalize: bool
    clip: bool
    rest: tuple[ActionConnector, ...]


def agent_pipeline(
    ctx: ConnectorContext,
    *,
    clip_rewards: bool | float = False,
    observation_filter: str = "NoFilter",
    more: Sequence[Any] = (),
) -> AgentConnectorPipeline:
    """Return the agent connectors that a policy begins with.

    Args:
        ctx: Of the policy.
        clip_rewards: As in the config; learners clip rewards when they learn.
        observation_filter: "NoFilter" or "MeanStdFilter".
        more: Registered names, or pairs (name, parameters), put behind the filter.

    Raises:
        ConfigError: A name is unknown, or names something else than an agent connector.
    """
    pipeline = AgentConnectorPipeline(ctx)
    if clip_rewards:
        limit = None if clip_rewards is True else float(clip_rewards)
        clip = ClipRewardAgentConnector(ctx, sign=clip_rewards is True, limit=limit)
        clip.later = True
        pipeline.append(clip)
    pipeline.append(ObsPreprocessorConnector(ctx))
    pipeline.append(FlattenDataAgentConnector(ctx))
    chosen = FILTERS[observation_filter]
    if chosen is not None:
        pipeline.append(chosen(ctx))
    for entry in more:
        name, params = (entry, None) if isinstance(entry, str) else _pair(entry)
        pipeline.append(get_connector(name, ctx, params))  # type: ignore[arg-type]
    pipeline.append(StateBufferConnector(ctx))
    pipeline.append(ViewRequirementAgentConnector(ctx))
    return pipeline


def action_pipeline(ctx: ConnectorContext, *, normalize: bool, clip: bool) -> ActionConnectorPipeline:
    """Return the action connectors that a policy begins with."""
    steps: list[ActionConnector] = [ConvertToNumpyConnector(ctx)]
    if normalize:
        steps.append(NormalizeActionsConnector(ctx))
    if clip:
        steps.append(ClipActionsConnector(ctx))
    return ActionConnectorPipeline(ctx, [*steps, ImmutableActionsConnector(ctx)])


def leaf_connectors(pipeline: AgentConnectorPipeline) -> Iterator[AgentConnector]:
    """Yield the connectors of a pipeline, and of those in it."""
    for connector in pipeline.connectors:
        if isinstance(connector, AgentConnectorPipeline):
            yield from leaf_connectors(connector)
        else:
            yield connector


def does_nothing(connector: AgentConnector) -> bool:
    """Return whether a connector leaves whole batches of rows as they are."""
    return type(connector) in _NOTHING_TO_DO


def looks(connector: AgentConnector) -> bool:
    """Return whether a connector of a user's wants to see what policies answer."""
    return (
        not connector.takes_rows and type(connector).on_policy_output is not AgentConnector.on_policy_output
    )


def is_plain(pipeline: AgentConnectorPipeline) -> bool:
    """Return whether a pipeline does to batches what the preprocessor alone does."""
    return [type(connector) for connector in steps_of(pipeline)] == [ObsPreprocessorConnector]


def steps_of(pipeline: AgentConnectorPipeline) -> list[AgentConnector]:
    """Return the connectors that do something to whole batches while these are sampled, in order."""
    return [
        connector
        for connector in leaf_connectors(pipeline)
        if not (type(connector) is ClipRewardAgentConnector and connector.later)
        and not does_nothing(connector)
    ]


def action_plan(pipeline: ActionConnectorPipeline) -> ActionPlan:
    """Return how a pipeline is run: as much as can be for whole batches."""
    kinds = [type(connector) for connector in pipeline.connectors]
    count, places = 0, [_ACTION_ORDER.index(kind) if kind in _ACTION_ORDER else -1 for kind in kinds]
    last = -1
    while count < len(places) and places[count] > last:
        last = places[count]
        count += 1
    done = kinds[:count]
    rest = tuple(pipeline.connectors[count:])
    return ActionPlan(NormalizeActionsConnector in done, ClipActionsConnector in done, rest)


def _pair(entry: Any) -> tuple[Any, Any]:
    if not isinstance(entry, list | tuple) or len(entry) != 2:
        raise ConfigError(
            f"agent_connectors: {entry!r}, expected a registered name, or a pair of one and its parameters; write "
            '("FrameStackAgentConnector", {"num_frames": 4})'
        )
    return entry[0], entry[1]
