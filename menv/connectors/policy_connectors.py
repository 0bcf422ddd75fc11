"""PolicyConnectors: the two pipelines of one policy."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import gymnasium as gym
import numpy as np

from menv.connectors.action_output import ActionOutput
from menv.connectors.connector import Connector
from menv.connectors.connector_context import ConnectorContext
from menv.connectors.default_pipelines import action_pipeline, action_plan, agent_pipeline, leaf_connectors
from menv.connectors.mean_std_filter import MeanStdObservationFilterAgentConnector
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.pipeline import ActionConnectorPipeline, AgentConnectorPipeline
from menv.errors import ContractError


class RowKind(NamedTuple):
    """What rows a network is shown.

    Attributes:
        row_width: F.
        row_dtype: float32, or uint8 for images of bytes.
    """

    row_width: int
    row_dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class PolicyConnectors:
    """What stands before and behind one policy.

    Attributes:
        agent: Observations go through it.
        action: Answers go through it.
    """

    agent: AgentConnectorPipeline
    action: ActionConnectorPipeline

    @classmethod
    def plain(cls, ctx: ConnectorContext) -> Self:
        """Return those of a policy whose settings are all defaults."""
        return cls(agent_pipeline(ctx), action_pipeline(ctx, normalize=True, clip=False))

    def rows_of(self, space: gym.Space[Any]) -> RowKind:
        """Return what rows a network is shown of observations of a space."""
        behind, width = self.agent.space(space, 0)
        return RowKind(width, ObsPreprocessor(behind).dtype)

    def output(self, action_space: gym.Space[Any]) -> ActionOutput:
        """Return what the action connectors do to whole batches."""
        plan = action_plan(self.action)
        return ActionOutput(action_space, normalize=plan.normalize, clip=plan.clip)

    @property
    def version(self) -> int:
        """Grows with each change."""
        return self.agent.version + self.action.version

    def take(self, agent: Any, action: Any) -> None:
        """Put connectors of these states, as `to_state` of a pipeline has them, into the place of all there are.

        Raises:
            UnknownNameError: One of them is not registered.
        """
        self.agent.restore(agent)
        self.action.restore(action)

    def for_evaluation(self) -> Self:
        """Return connectors of their own, which share statistics and change none.

        Raises:
            ContractError: One of them cannot be copied.
        """
        try:
            agent, action = copy.deepcopy(self.agent), copy.deepcopy(self.action)
        except Exception as error:  # whatever a user's __deepcopy__ raises
            whose = ", ".join(_uncopied([*self.agent.connectors, *self.action.connectors])) or "connectors"
            raise ContractError(
                f"{whose}: cannot be copied ({type(error).__name__}: {error}), expected connectors that copy.deepcopy "
                "can copy, because evaluations have their own; define __deepcopy__ in your class"
            ) from error
        agent.in_eval()
        action.in_eval()
        return type(self)(agent, action)

    def frozen(self) -> Self:
        """Return connectors as they are now; those that go on here change nothing of them.

        Raises:
            ContractError: One of them cannot be copied.
        """
        copied = self.for_evaluation()
        for leaf in leaf_connectors(copied.agent):
            if isinstance(leaf, MeanStdObservationFilterAgentConnector):
                leaf.unshare()
        return copied


def _uncopied(connectors: Iterable[Connector]) -> list[str]:
    names = []
    for connector in connectors:
        try:
            copy.deepcopy(connector)
        except Exception:
            names.append(connector.name)
    return names
