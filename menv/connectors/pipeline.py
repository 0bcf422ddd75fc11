"""Pipelines of connectors, edited by name, and the two pipelines of each network policy.

An edit that fails raises and leaves the pipeline unchanged. The functions below say which parts of a pipeline work on
whole batches.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import gymnasium as gym
import numpy as np

from menv.connectors.action_output import ActionOutput
from menv.connectors.built_in import (
    ClipActionsConnector,
    ConvertToNumpyConnector,
    FrameStackAgentConnector,
    ImmutableActionsConnector,
    NormalizeActionsConnector,
    StateBufferConnector,
    ViewRequirementAgentConnector,
)
from menv.connectors.connector import (
    ActionConnector,
    ActionConnectorDataType,
    AgentConnector,
    AgentConnectorDataType,
    AgentRows,
    Connector,
    ConnectorContext,
    get_connector,
)
from menv.connectors.mean_std_filter import MeanStdObservationFilterAgentConnector
from menv.connectors.obs_preprocessor import (
    FlattenDataAgentConnector,
    ObsPreprocessor,
    ObsPreprocessorConnector,
)
from menv.errors import ConfigError, ContractError, UnknownNameError, in_words

C = TypeVar("C", bound=Connector)
P = TypeVar("P", bound="Pipeline[Any]")


class Pipeline(Connector, Generic[C]):
    """A sequence of connectors.

    Args:
        ctx: Lent to connectors that have none.
        connectors: In the order in which data goes through them.

    Attributes:
        connectors: The connectors, in order.
        version: Grows with each change.
    """

    kind: ClassVar[type[Connector]]

    def __init__(self, ctx: ConnectorContext | None = None, connectors: Iterable[C] = ()) -> None:
        super().__init__(ctx)
        self.version = 0
        self.connectors: list[C] = []
        for connector in connectors:
            self.append(connector)

    def prepend(self, connector: C) -> None:
        """Put a connector before all others."""
        self._insert(0, connector)

    def append(self, connector: C) -> None:
        """Put a connector after all others."""
        self._insert(len(self.connectors), connector)

    def insert_before(self, name: str, connector: C) -> None:
        """Put a connector before the first one that has a name; an unknown one is an UnknownNameError."""
        self._insert(self._index(name, "insert_before"), connector)

    def insert_after(self, name: str, connector: C) -> None:
        """Put a connector after the first one that has a name; an unknown one is an UnknownNameError."""
        self._insert(self._index(name, "insert_after") + 1, connector)

    def remove(self, name: str) -> None:
        """Remove the first connector that has a name; an unknown one is an UnknownNameError."""
        del self.connectors[self._index(name, "remove")]
        self.version += 1

    def __getitem__(self, name: str) -> list[C]:
        """Return the connectors that have a name; an unknown one is an UnknownNameError."""
        self._index(name, "[]")
        return [connector for connector in self.connectors if connector.name == name]

    def __len__(self) -> int:
        return len(self.connectors)

    def in_training(self) -> None:
        super().in_training()
        for connector in self.connectors:
            connector.in_training()

    def in_eval(self) -> None:
        super().in_eval()
        for connector in self.connectors:
            connector.in_eval()

    def to_state(self) -> tuple[str, Any]:
        """Return the name and the states of the connectors; ConfigError if JSON cannot hold one of them."""
        states = [connector.to_state() for connector in self.connectors]
        for connector, state in zip(self.connectors, states, strict=True):
            try:
                json.dumps(state, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"{connector.name}.to_state: {error}, expected lists, dicts, text and finite numbers"
                ) from error
        return type(self).__name__, states

    @classmethod
    def from_state(cls, ctx: ConnectorContext, params: Any) -> Self:
        """Return the pipeline with the parameters of `to_state`; ConfigError if `params` is not a list of pairs."""
        pairs: list[Any] = list(params) if isinstance(params, list | tuple) else [None]
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            raise ConfigError(
                f"{cls.__name__}: state is not a list of pairs, expected (name, parameters) for each connector; pass "
                "what to_state returned"
            )
        connectors: Any = [get_connector(name, ctx, own) for name, own in pairs]
        return cls(ctx, connectors)

    def restore(self, params: Any) -> None:
        """Replace all connectors by the connectors of a state, or raise what `from_state` raises and change nothing."""
        made = type(self).from_state(self.ctx or ConnectorContext(), params)
        self.connectors = made.connectors
        self.version += 1
        (self.in_training if self.is_training else self.in_eval)()

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"    {connector}" for connector in self.connectors)])

    def _insert(self, place: int, connector: C) -> None:
        if (
            not isinstance(connector, self.kind)
            or isinstance(connector, Pipeline)
            or connector in self.connectors
        ):
            got = connector.__name__ if isinstance(connector, type) else type(connector).__name__
            raise ConfigError(
                f"{self.name}: {got}, expected a new instance of {self.kind.__name__}; agent connectors go into "
                "agent_connectors, action connectors into action_connectors, as objects"
            )
        if connector.ctx is None:
            connector.ctx = self.ctx
        self.connectors.insert(place, connector)
        self.version += 1

    def _index(self, name: str, method: str) -> int:
        names = [connector.name for connector in self.connectors]
        if name not in names:
            raise UnknownNameError(
                f"{self.name}.{method}: no connector {name!r}, expected one of {names}; use one"
            )
        return names.index(name)


class AgentConnectorPipeline(Pipeline[AgentConnector], AgentConnector):
    """A sequence of agent connectors."""

    kind = AgentConnector

    def __call__(self, acd_list: list[AgentConnectorDataType]) -> list[AgentConnectorDataType]:
        for connector in self.connectors:
            acd_list = connector(acd_list)
        return acd_list

    def over_rows(self, rows: AgentRows) -> None:
        """Transform a whole batch; only custom connectors see agent by agent."""
        for takes_rows, group in groupby(self.connectors, lambda connector: connector.takes_rows):
            if takes_rows:
                for connector in group:
                    connector.over_rows(rows)
                continue
            agents = rows.to_agents()
            for connector in group:
                agents = connector(agents)
                rows.take(agents, connector.name)

    def space(self, space: gym.Space[Any], width: int) -> tuple[gym.Space[Any], int]:
        for connector in self.connectors:
            space, width = connector.space(space, width)
        return space, width

    def begin(self, slot: int) -> None:
        for connector in self.connectors:
            connector.begin(slot)

    def settle(self) -> None:
        for connector in self.connectors:
            connector.settle()

    def reset(self, env_id: Any) -> None:
        for connector in self.connectors:
            connector.reset(env_id)

    def forget(self, env_id: Any, agent_id: Any) -> None:
        for connector in self.connectors:
            connector.forget(env_id, agent_id)

    def on_policy_output(self, output: ActionConnectorDataType) -> None:
        for connector in self.connectors:
            connector.on_policy_output(output)


class ActionConnectorPipeline(Pipeline[ActionConnector], ActionConnector):
    """A sequence of action connectors."""

    kind = ActionConnector

    def __call__(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        for connector in self.connectors:
            ac_data = connector(ac_data)
        return ac_data


FILTERS = {"NoFilter": None, "MeanStdFilter": MeanStdObservationFilterAgentConnector}
"""Values of `observation_filter` and their connectors."""

_NOTHING_TO_DO = (
    FlattenDataAgentConnector, StateBufferConnector, ViewRequirementAgentConnector,
)  # fmt: skip
_ACTION_ORDER: tuple[type[ActionConnector], ...] = (
    ConvertToNumpyConnector, NormalizeActionsConnector, ClipActionsConnector, ImmutableActionsConnector,
)  # fmt: skip


class ActionPlan(NamedTuple):
    """How action connectors run: whether batches are scaled and clipped at once, and the rest, agent by agent."""

    normalize: bool
    clip: bool
    rest: tuple[ActionConnector, ...]


def agent_pipeline(
    ctx: ConnectorContext, *, observation_filter: str = "NoFilter", more: Sequence[Any] = ()
) -> AgentConnectorPipeline:
    """Return the default agent connectors; `more` are names or pairs (name, parameters) after the filter."""
    pipeline = AgentConnectorPipeline(ctx)
    pipeline.append(ObsPreprocessorConnector(ctx))
    pipeline.append(FlattenDataAgentConnector(ctx))
    chosen = FILTERS[observation_filter]
    if chosen is not None:
        pipeline.append(chosen(ctx))
    for entry in more:
        pair = (entry, None) if isinstance(entry, str) else entry
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ConfigError(
                f"agent_connectors: {entry!r}, expected a registered name, or a pair of one and its parameters; write "
                '("FrameStackAgentConnector", {"num_frames": 4})'
            )
        pipeline.append(get_connector(pair[0], ctx, pair[1]))  # type: ignore[arg-type]
    pipeline.append(StateBufferConnector(ctx))
    pipeline.append(ViewRequirementAgentConnector(ctx))
    return pipeline


def action_pipeline(ctx: ConnectorContext, *, normalize: bool, clip: bool) -> ActionConnectorPipeline:
    """Return the default action connectors."""
    steps: list[ActionConnector] = [ConvertToNumpyConnector(ctx)]
    if normalize:
        steps.append(NormalizeActionsConnector(ctx))
    if clip:
        steps.append(ClipActionsConnector(ctx))
    return ActionConnectorPipeline(ctx, [*steps, ImmutableActionsConnector(ctx)])


def batch_steps(pipeline: AgentConnectorPipeline) -> list[AgentConnector]:
    """Return the connectors that change whole batches during sampling, in order."""
    return [connector for connector in pipeline.connectors if type(connector) not in _NOTHING_TO_DO]


def action_plan(pipeline: ActionConnectorPipeline) -> ActionPlan:
    """Return how a pipeline runs: as much as possible on whole batches."""
    kinds = [type(connector) for connector in pipeline.connectors]
    places = [_ACTION_ORDER.index(kind) if kind in _ACTION_ORDER else -1 for kind in kinds]
    count = 0
    while count < len(places) and places[count] > (places[count - 1] if count else -1):
        count += 1
    done, rest = kinds[:count], tuple(pipeline.connectors[count:])
    return ActionPlan(NormalizeActionsConnector in done, ClipActionsConnector in done, rest)


@dataclass(frozen=True, slots=True)
class PolicyConnectors:
    """The two pipelines of one policy: `agent` for its observations, `action` for its actions."""

    agent: AgentConnectorPipeline
    action: ActionConnectorPipeline

    def rows_of(self, space: gym.Space[Any]) -> tuple[int, np.dtype[Any]]:
        """Return width F and dtype (float32, or uint8 for images of bytes) of the network's input rows."""
        behind, width = self.agent.space(space, 0)
        return width, ObsPreprocessor(behind).dtype

    def output(self, action_space: gym.Space[Any]) -> ActionOutput:
        """Return the action connectors on whole batches."""
        plan = action_plan(self.action)
        return ActionOutput(action_space, normalize=plan.normalize, clip=plan.clip)

    @property
    def version(self) -> int:
        """Grows with each change."""
        return self.agent.version + self.action.version

    def restore(self, agent: Any, action: Any) -> None:
        """Replace all connectors by the connectors of two pipeline states; an unknown name is an UnknownNameError."""
        self.agent.restore(agent)
        self.action.restore(action)

    def for_evaluation(self) -> Self:
        """Return copies that share statistics and change none; ContractError if one cannot be copied."""
        return type(self)(_copied(self.agent), _copied(self.action))

    def frozen(self) -> Self:
        """Return independent copies, statistics included; ContractError if one cannot be copied."""
        copied = self.for_evaluation()
        leaves = copied.agent.connectors
        leaves[:] = [
            leaf.copy() if isinstance(leaf, MeanStdObservationFilterAgentConnector) else leaf
            for leaf in leaves
        ]
        return copied


def _copied(pipeline: P) -> P:
    """Return a copy of a pipeline for evaluation; ContractError if a connector cannot be copied."""
    copied = copy.copy(pipeline)
    copied.connectors, memo = [], dict[int, Any]()
    for connector in pipeline.connectors:
        try:
            copied.connectors.append(copy.deepcopy(connector, memo))
        except Exception as error:  # whatever a user's __deepcopy__ raises
            raise ContractError(
                f"{connector.name}: cannot be copied ({in_words(error)}), expected a connector that "
                "copy.deepcopy can copy, because evaluations use copies; define __deepcopy__ in your class"
            ) from error
    copied.in_eval()
    return copied


def carry_frames(before: AgentConnectorPipeline, after: AgentConnectorPipeline) -> None:
    """Copy the frames of running agent episodes from one pipeline to another one."""
    stacks = (
        [leaf for leaf in own.connectors if isinstance(leaf, FrameStackAgentConnector)]
        for own in (before, after)
    )
    for old, new in zip(*stacks, strict=False):
        new.continue_from(old)
