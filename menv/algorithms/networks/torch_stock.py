"""TorchStock: the stock network as torch operations on parameters that the caller owns.

Learners pass views of their flat parameter tensor, the torch back-end its stored weights. There is no `nn.Module`,
whose bookkeeping costs more than the arithmetic at 64 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from menv.algorithms.networks.stock_spec import (
    INPUT,
    LOG_STD,
    STATE,
    VALUE_OUT,
    Activation,
    Cell,
    Role,
    StockSpec,
)
from menv.algorithms.torch_distributions import masked
from menv.algorithms.torch_runtime import constant


class TorchStock:
    """The network of `spec` over `params`, whose current values every call reads.

    Attributes:
        obs_size: F, numbers in a flat observation.
    """

    def __init__(self, spec: StockSpec, params: Mapping[str, Tensor]) -> None:
        self.obs_size = spec.obs_size
        self._trunks = {role: spec.trunk_name(role) for role in spec.roles}
        self._cells: dict[str, tuple[TorchCell, slice]] = {}
        if spec.cell:
            size = sum(spec.cell.state_sizes)
            for number, trunk in enumerate(spec.recurrent_trunks):
                part = slice(number * size, (number + 1) * size)
                self._cells[trunk] = TorchCell(spec.cell, trunk, params), part
        self._one_trunk = len(spec.trunks) == 1
        self._activation = _ACTIVATIONS.get(spec.activation)
        self._hidden = {
            role: [_weight_and_bias(params, layer.name) for layer in spec.hidden_layers(role)]
            for role in spec.roles
        }
        self._conv = spec.conv
        self._conv_activation = None if spec.conv is None else _ACTIVATIONS.get(spec.conv.activation)
        self._convolutions = {
            role: [(layer, *_weight_and_bias(params, layer.name)) for layer in spec.conv_layers(role)]
            for role in spec.roles
        }
        self._pixels = spec.pixels
        self._policy_out = _weight_and_bias(params, "policy.out")
        self._value_out = _weight_and_bias(params, VALUE_OUT) if "value" in spec.roles else None
        self._dueling = spec.dueling
        self._of_q_values = spec.head.kind == "q_values"
        self._log_std = params.get(LOG_STD)

    def dist_inputs(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> Tensor:
        """Return [N, D] distribution inputs after masking, from obs [N, F] and mask [N, M]."""
        return self._policy_head(self._features("policy", obs, state), mask)

    def values(self, obs: Tensor, state: Tensor | None = None) -> Tensor:
        """Return [N] state values; of Q-values the highest of each row."""
        if self._of_q_values:
            return self.dist_inputs(obs, None, state).amax(-1)
        return self._value_head(self._features("value", obs, state))

    def both(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return distribution inputs and values; shared layers are computed once."""
        if self._of_q_values:
            q_values = self.dist_inputs(obs, None, state)
            return masked(q_values, mask), q_values.amax(-1)
        features = self._features("policy", obs, state)
        value_features = features if self._one_trunk else self._features("value", obs, state)
        return self._policy_head(features, mask), self._value_head(value_features)

    def step(self, obs: Tensor, mask: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return distribution inputs and the state after them."""
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for role, trunk in self._trunks.items():
            if trunk in self._cells and trunk not in found:
                cell, part = self._cells[trunk]
                found[trunk] = cell(self._hidden_features(role, obs), state[:, part])
        after = torch.cat([own for _, own in found.values()], 1)
        return self._policy_head(found[self._trunks["policy"]][0], mask), after

    def _features(self, role: Role, obs: Tensor, state: Tensor | None) -> Tensor:
        features = self._hidden_features(role, obs)
        if self._trunks[role] not in self._cells:
            return features
        assert state is not None, "a recurrent network needs its state"
        cell, part = self._cells[self._trunks[role]]
        return cell(features, state[:, part])[0]

    def _hidden_features(self, role: Role, x: Tensor) -> Tensor:
        if self._conv is not None and self._convolutions[role]:
            x = self._convolved(role, self._conv.shape, x)
        elif self._pixels:
            x = x.float()
        for weight, bias in self._hidden[role]:
            x = torch.addmm(bias, x, weight)
            if self._activation is not None:
                x = self._activation(x)
        return x

    def _convolved(self, role: Role, shape: tuple[int, ...], rows: Tensor) -> Tensor:
        """Return features [N, D], channels first, from images as rows [N, F]."""
        if self._pixels:
            # Multiplying bytes by a float32 converts them in the same pass.
            rows = rows * constant(1.0 / 255.0, rows.device)
        x = rows.view(-1, *shape).permute(0, 3, 1, 2)
        for layer, weight, bias in self._convolutions[role]:
            top, left, bottom, right = layer.pads
            if (top, left) != (bottom, right):
                x = functional.pad(x, (left, right, top, bottom))
                top = left = 0
            x = functional.conv2d(x, weight, bias, layer.stride, (top, left))
            if self._conv_activation is not None:
                x = self._conv_activation(x)
        return x.flatten(1)

    def _policy_head(self, features: Tensor, mask: Tensor | None) -> Tensor:
        weight, bias = self._policy_out
        outputs = torch.addmm(bias, features, weight)
        if self._log_std is not None:
            outputs = torch.cat((outputs, self._log_std.expand(len(outputs), -1)), 1)
        if self._dueling:
            outputs = outputs - outputs.mean(-1, keepdim=True) + self._value_head(features)[:, None]
        return masked(outputs, mask)

    def _value_head(self, features: Tensor) -> Tensor:
        assert self._value_out is not None, "Q-values without dueling have no value head"
        weight, bias = self._value_out
        return torch.addmm(bias, features, weight).squeeze(1)


class TorchCell:
    """The cell of a trunk over `params`, whose current values every call reads."""

    def __init__(self, cell: Cell, trunk: str, params: Mapping[str, Tensor]) -> None:
        of_input, of_state = INPUT.format(trunk), STATE.format(trunk)
        self._cell = cell
        bias = params[f"{of_input}.bias"]
        # torch adds two biases; an LSTM needs only one.
        state_bias = params.get(f"{of_state}.bias", torch.zeros_like(bias, requires_grad=False))
        self._matrices = params[f"{of_input}.weight"], params[f"{of_state}.weight"]
        self._biases = bias, state_bias

    def __call__(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of every row [B * T, H] and the state after each sequence [B, S].

        Args:
            x: [B * T, X], T rows of each sequence one after the other.
            state: [B, S] before the first rows.

        Returns:
            [B * T, H] and [B, S].
        """
        cell, batch = self._cell, len(state)
        sequences = x.view(batch, -1, x.shape[-1])
        # Transposed at every call: a view from before an in-place optimizer step has no gradient.
        weights = [matrix.t() for matrix in self._matrices] + list(self._biases)
        if cell.kind == "lstm":
            before = state[None, :, : cell.size].contiguous(), state[None, :, cell.size :].contiguous()
            out, h, c = torch.lstm(sequences, before, weights, True, 1, 0.0, True, False, True)
            after = torch.cat((h[0], c[0]), 1)
        else:
            out, h = torch.gru(sequences, state[None].contiguous(), weights, True, 1, 0.0, True, False, True)
            after = h[0]
        return out.reshape(len(x), cell.size), after


_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "elu": torch.nn.functional.elu,
}


def _weight_and_bias(params: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return params[f"{name}.weight"], params[f"{name}.bias"]
