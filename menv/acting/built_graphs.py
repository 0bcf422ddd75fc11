"""Graphs that are built already: what of a network has to travel to a process that shall act with it.

A pickled `OnnxActing` holds one, a policy from a disk has one from the start. Nothing here knows onnx, so that the
other process needs not import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from menv.acting.acting_graphs import ActingGraphs, GraphKind
from menv.errors import ConfigError

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
class BuiltGraphs:
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


def built(graphs: ActingGraphs, *, masks: bool) -> BuiltGraphs | StoredGraphs:
    """Return graphs as they travel: those that are built already as they are."""
    return graphs if isinstance(graphs, BuiltGraphs | StoredGraphs) else BuiltGraphs.of(graphs, masks=masks)
