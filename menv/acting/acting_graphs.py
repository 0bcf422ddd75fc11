"""Where the graphs that `OnnxActing` runs come from.

The networks under `menv.algorithms` implement it; a policy loaded from disk does too. Nothing here
knows onnx: a graph is bytes.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

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
                `head.told` and state_after if recurrent; "evaluate" (obs, mask, actions -> dist_inputs, logp)
                or "values" (obs -> values).
            stacked: For P policies at once; "act" and "greedy" only.
            masked: Whether the graph has the input `mask`.
        """
