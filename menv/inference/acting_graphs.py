"""Where the acting graphs of a network come from: built on demand, or stored in a policy folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self, TypeAlias

from menv.errors import ConfigError

GraphKind: TypeAlias = Literal["act", "greedy", "evaluate", "values"]


class ActingGraphs(Protocol):
    """Builds the serialised graphs of one architecture.

    Inputs are called obs (float32, or uint8 where rows hold images of bytes), mask, noise, actions, state (of
    recurrent networks) and, in stacked graphs, pick (which result each row wants) and which; every other input is a
    weight, by its name. In stacked graphs a weight has a leading axis P and may have axes of length 1 after it; obs
    and state lie in lanes [P, D, *], or in one for everybody, [1, D, *]; see `Lanes`.
    """

    @property
    def stacks(self) -> bool:
        """Whether there are stacked graphs; otherwise policies are answered one after the other."""

    def build(self, kind: GraphKind, stacked: bool = False, masked: bool = False) -> bytes:
        """Return the model of one kind.

        Args:
            kind: "act" (obs, mask, noise -> action), "greedy" (obs, mask -> action), both -> dist_inputs too if
                `head.returns_dist_inputs` and state_after if recurrent; "evaluate" (obs, mask, actions -> dist_inputs,
                logp) or "values" (obs -> values).
            stacked: For P policies at once; "act" and "greedy" only.
            masked: Whether the graph has the input `mask`.
        """


_KINDS: tuple[GraphKind, ...] = ("act", "greedy", "evaluate", "values")


@dataclass(frozen=True, slots=True)
class StoredGraphs:
    """The `ActingGraphs` of one policy, as they lay in a folder.

    Attributes:
        models: Serialised models by kind; each has a mask if the observations have one.
    """

    models: Mapping[GraphKind, bytes]

    @property
    def stacks(self) -> bool:
        """Whether several policies can share a graph: never, there is one."""
        return False

    def build(self, kind: GraphKind, stacked: bool = False, masked: bool = False) -> bytes:
        """Return a serialised model.

        Raises:
            ConfigError: There is none of this kind, as policies on disk only act.
        """
        if kind not in self.models:
            raise ConfigError(
                f"policy on disk: has no graph of {kind}, expected one of {sorted(self.models)}; ask the algorithm "
                "that trained it"
            )
        return self.models[kind]


@dataclass(frozen=True, slots=True)
class PrebuiltGraphs:
    """The graphs of one architecture as bytes; an `ActingGraphs`.

    Attributes:
        stacks: Whether there are stacked graphs.
        models: By kind, whether stacked, and whether masked.
    """

    stacks: bool
    models: Mapping[tuple[GraphKind, bool, bool], bytes]

    @classmethod
    def of(cls, graphs: ActingGraphs, *, masks: bool) -> Self:
        """Return all graphs that there are, masked ones where there are `masks`; milliseconds for a stock network."""
        forms = [(kind, False) for kind in _KINDS]
        if graphs.stacks:
            forms += [("act", True), ("greedy", True)]
        models = {
            (kind, stacked, masked): graphs.build(kind, stacked, masked)
            for kind, stacked in forms
            for masked in ((False, True) if masks else (False,))
        }
        return cls(graphs.stacks, models)

    def build(self, kind: GraphKind, stacked: bool = False, masked: bool = False) -> bytes:
        """Return a model; see `ActingGraphs.build`."""
        return self.models[kind, stacked, masked]


def built(graphs: ActingGraphs, *, masks: bool) -> PrebuiltGraphs | StoredGraphs:
    """Return graphs as they travel: those that are built already as they are."""
    return (
        graphs
        if isinstance(graphs, PrebuiltGraphs | StoredGraphs)
        else PrebuiltGraphs.of(graphs, masks=masks)
    )
