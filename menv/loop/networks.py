"""Networks: the policies that share an architecture, and all that stands around it.

`NetPolicy` looks at one of them. A `NetCohort` has those that a sampler asks, a bundle those that lay in a folder,
`Departed` one that was removed from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import gymnasium as gym
import numpy as np

from menv.acting.acting_graphs import ActingGraphs
from menv.acting.backend import ActingBackend
from menv.connectors.action_output import ActionOutput
from menv.connectors.default_pipelines import ActionPlan
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.policy_connectors import PolicyConnectors
from menv.loop.noise import Noise


class Networks(Protocol):
    """The policies that share an architecture and everything around it: a `NetCohort`, or what a bundle holds.

    Attributes:
        policy_ids: Their ids, by index.
        observation_space: Of each of them.
        action_space: Likewise.
        preprocess: Observations to rows.
        backend: Rows to actions of the network.
        output: These to actions of the space.
        noise: Draws for rows.
        state_sizes: Numbers in each part of their recurrent state.
        built: What `output` does of the action connectors.
    """

    policy_ids: list[str]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    preprocess: ObsPreprocessor | None
    backend: ActingBackend
    output: ActionOutput
    noise: Noise
    state_sizes: tuple[int, ...]
    built: ActionPlan

    @property
    def connectors(self) -> Sequence[PolicyConnectors]:
        """The pipelines of each."""

    @property
    def row_width(self) -> int:
        """F, the numbers in a row that the networks take."""

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Their type."""

    def graphs(self) -> ActingGraphs | None:
        """Return what builds their acting graphs, None if only torch runs them."""


@dataclass
class OfOne:
    """The `Networks` of one policy by itself; attributes as there."""

    policy_ids: list[str]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    preprocess: ObsPreprocessor | None
    backend: ActingBackend
    output: ActionOutput
    noise: Noise
    state_sizes: tuple[int, ...]
    connectors: Sequence[PolicyConnectors]
    built: ActionPlan


@dataclass
class Departed(OfOne):
    """Those of a policy that has left others, with weights of its own."""

    row_width: int
    row_dtype: np.dtype[Any]
    graphs: Callable[[], ActingGraphs | None]

    @classmethod
    def of(cls, networks: Networks, index: int) -> Self:
        """Return those of policy number `index`; another one may be given its number from now on."""
        return cls(
            [networks.policy_ids[index]], networks.observation_space, networks.action_space, networks.preprocess,
            networks.backend.alone(index), networks.output, networks.noise, networks.state_sizes,
            [networks.connectors[index]], networks.built, networks.row_width, networks.row_dtype, networks.graphs,
        )  # fmt: skip
