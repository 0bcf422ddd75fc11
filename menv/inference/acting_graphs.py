"""ActingGraphs: the serialised ONNX graphs of a network: built on demand, stored in a policy folder, or prebuilt.

Without onnxruntime, so that networks and learners can describe graphs without importing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self, TypeAlias

from menv.errors import ConfigError

GraphKind: TypeAlias = Literal["act", "greedy", "evaluate", "values"]


class ActingGraphs(Protocol):
    """Builds the serialised ONNX graphs of one architecture; networks and policies on disk implement it.

    Inputs are called obs (float32, or uint8 for images of bytes), mask, noise, actions, state (of recurrent networks)
    and, in stacked graphs, pick (which result each row wants) and which; every other input is a weight, by its name. In
    stacked graphs a weight has a leading axis P and may have axes of length 1 after it; obs and state are [1, D, *],
    which every policy computes.
    """

    @property
    def stacks(self) -> bool:
        """Whether there are stacked graphs; otherwise policies run one after the other."""

    def build(self, kind: GraphKind, stacked: bool = False, masked: bool = False) -> bytes:
        """Return the serialised model of one kind.

        Kinds: "act" (obs, mask, noise -> action), "greedy" (obs, mask -> action), "evaluate" (obs, mask, actions ->
        dist_inputs, logp) and "values" (obs -> values). The first two also return dist_inputs if
        `head.returns_dist_inputs`, and state_after if recurrent, as "values" of a centralized critic does; only the
        first two have `stacked` forms, for P policies at once. `masked` graphs have the input `mask`.
        """


@dataclass(frozen=True, slots=True)
class StoredGraphs:
    """Built `ActingGraphs`, by (kind, stacked, masked): of a policy from disk, or in a pickled back-end.

    Attributes:
        bounded: Whether they come from a file, so that they run in an arena of limited memory.
    """

    stacks: bool
    models: Mapping[tuple[GraphKind, bool, bool], bytes]
    bounded: bool = False

    @classmethod
    def of(cls, graphs: ActingGraphs, *, masks: bool) -> Self:
        """Return all graphs that there are, masked ones where there are `masks`; milliseconds for a stock network."""
        kinds: tuple[GraphKind, ...] = ("act", "greedy", "evaluate", "values")
        forms = [(kind, False) for kind in kinds]
        if graphs.stacks:
            forms += [("act", True), ("greedy", True)]
        models = {
            (kind, stacked, masked): graphs.build(kind, stacked, masked)
            for kind, stacked in forms
            for masked in ((False, True) if masks else (False,))
        }
        return cls(graphs.stacks, models)

    def build(self, kind: GraphKind, stacked: bool = False, masked: bool = False) -> bytes:
        """Return a serialised model; policies on disk only act, so there may be none of a kind."""
        if (kind, stacked, masked) not in self.models:
            raise ConfigError(
                f"policy on disk: has no graph of {kind}, expected one of {sorted({one for one, *_ in self.models})}; "
                "ask the algorithm that trained it"
            )
        return self.models[kind, stacked, masked]
