"""Graphs that are built already: what of a network has to travel to a process that shall act with it.

A pickled `OnnxActing` holds one. Nothing here knows onnx, so that the other process needs not import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from menv.acting.acting_graphs import ActingGraphs, GraphKind

_KINDS: tuple[GraphKind, ...] = ("act", "greedy", "evaluate", "values")


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
