"""The recurrent layer of a stock network: an LSTM or a GRU between the hidden layers and the heads.

`stock` describes it, `torch_cell` runs it over sequences to learn, `graph_builder` adds one step of it to an acting
graph. Its state is one row of numbers, the parts one after the other. Needs neither torch nor onnx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from menv.algorithms.networks.orthogonal import orthogonal
from menv.errors import ConfigError

CellKind: TypeAlias = Literal["lstm", "gru"]

INPUT, STATE = "{}.cell.input", "{}.cell.state"
"""Names of the two affine layers of the cell of a trunk, of its input and of its state; gates lie side by side."""

_FORGET_BIAS = 1.0


@dataclass(frozen=True)
class Cell:
    """A recurrent layer of H units.

    An LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000) has the gates input,
    forget, candidate, output, and the state h, c. A GRU (Cho et al. 2014, its reset gate applied after the product
    as in torch) has reset, update, candidate, and the state h.

    Attributes:
        kind: "lstm" or "gru".
        size: H.
    """

    kind: CellKind
    size: int

    def __post_init__(self) -> None:
        if self.kind not in ("lstm", "gru") or self.size < 1:
            raise ConfigError(
                f"Cell: {self.kind!r} of {self.size} units, expected 'lstm' or 'gru' of at least 1; "
                "correct model.lstm_cell_size"
            )

    @property
    def gates(self) -> int:
        """How many times H outputs each affine layer has."""
        return 4 if self.kind == "lstm" else 3

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Numbers in each part of the state: h, and c of an LSTM."""
        return (self.size, self.size) if self.kind == "lstm" else (self.size,)

    def weight_shapes(self, trunk: str, inputs: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight by name, for `inputs` numbers a row."""
        of_input, of_state = INPUT.format(trunk), STATE.format(trunk)
        width = self.gates * self.size
        shapes: dict[str, tuple[int, ...]] = {
            f"{of_input}.weight": (inputs, width),
            f"{of_input}.bias": (width,),
            f"{of_state}.weight": (self.size, width),
        }
        if self.kind == "gru":
            # Its candidate gates the product with the state, bias included.
            shapes[f"{of_state}.bias"] = (width,)
        return shapes

    def first_weights(
        self, trunk: str, inputs: int, rng: np.random.Generator
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Return first weights: each gate's matrices orthogonal, biases zero but for an LSTM's forget gate.

        That bias is 1, so that a new cell remembers (Jozefowicz et al. 2015).
        """
        shapes = self.weight_shapes(trunk, inputs)
        weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        for name, rows in ((INPUT.format(trunk), inputs), (STATE.format(trunk), self.size)):
            gates = [orthogonal(rng, rows, self.size) for _ in range(self.gates)]
            weights[f"{name}.weight"] = np.concatenate(gates, 1).astype(np.float32)
        if self.kind == "lstm":
            weights[f"{INPUT.format(trunk)}.bias"][self.size : 2 * self.size] = _FORGET_BIAS
        return weights
