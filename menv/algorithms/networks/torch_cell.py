"""A recurrent layer as torch operations on parameters that somebody else owns, over sequences of equal length.

`torch_stock` puts it between hidden layers and heads. Weights are [in, out], the transpose of torch's own form.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from menv.algorithms.networks.cell import INPUT, STATE, Cell


class TorchCell:
    """The cell of a trunk over `params`, whose current values every call reads."""

    def __init__(self, cell: Cell, trunk: str, params: Mapping[str, Tensor]) -> None:
        of_input, of_state = INPUT.format(trunk), STATE.format(trunk)
        self._cell = cell
        bias = params[f"{of_input}.bias"]
        # torch adds two biases; that of an LSTM's state would be one too many.
        state_bias = params.get(f"{of_state}.bias", torch.zeros_like(bias, requires_grad=False))
        self._matrices = params[f"{of_input}.weight"], params[f"{of_state}.weight"]
        self._biases = bias, state_bias

    def __call__(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of every row and the state after each sequence.

        Args:
            x: [B * T, X], T rows of each sequence one after the other.
            state: [B, S] before the first rows.

        Returns:
            [B * T, H] and [B, S].
        """
        cell, batch = self._cell, len(state)
        sequences = x.view(batch, -1, x.shape[-1])
        # Turned round at every call: a view from before an optimizer's step in place has no gradient any more.
        weights = [matrix.t() for matrix in self._matrices] + list(self._biases)
        if cell.kind == "lstm":
            before = state[None, :, : cell.size].contiguous(), state[None, :, cell.size :].contiguous()
            out, h, c = torch.lstm(sequences, before, weights, True, 1, 0.0, True, False, True)
            after = torch.cat((h[0], c[0]), 1)
        else:
            out, h = torch.gru(sequences, state[None].contiguous(), weights, True, 1, 0.0, True, False, True)
            after = h[0]
        return out.reshape(len(x), cell.size), after
