"""TorchStock: the stock network as torch operations on parameters that the caller owns.

Learners pass views of their flat parameter tensor, the torch back-end its stored weights. `stock_layers` has the
layers, `stock_graphs` the same network as an acting graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from menv.algorithms.networks.stock_layers import (
    torch_activation,
    torch_affine,
    torch_cell,
    torch_convolutions,
)
from menv.algorithms.networks.stock_spec import VALUE_OUT, Role, StockSpec
from menv.algorithms.networks.torch_runtime import constant
from menv.inference.heads.head import masked


class TorchStock:
    """The network of `spec` over `params`, whose current values every call reads.

    Attributes:
        obs_size: F, numbers in a flat observation.
    """

    def __init__(self, spec: StockSpec, params: Mapping[str, Tensor]) -> None:
        self.obs_size = spec.obs_size
        self._trunks = {role: spec.trunk_name(role) for role in spec.roles}
        self._cells: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], slice]] = {}
        if spec.cell:
            size, acting = sum(spec.cell.state_sizes), spec.acting_trunks
            for trunk in spec.cell_inputs:
                # The state of a centralized critic is a state of its own.
                number = acting.index(trunk) if trunk in acting else 0
                part = slice(number * size, (number + 1) * size)
                self._cells[trunk] = torch_cell(spec.cell, trunk, params), part
        self._acting_trunks = spec.acting_trunks
        self._one_trunk = len(spec.trunks) == 1
        self._activation = torch_activation(spec.activation)
        self._hidden = {
            role: [torch_affine(params, layer.name) for layer in spec.hidden_layers(role)]
            for role in spec.roles
        }
        self._convolutions = {
            role: torch_convolutions(spec.conv, layers, params)
            for role in spec.roles
            if spec.conv is not None and (layers := spec.conv_layers(role))
        }
        self._pixels = spec.pixels
        self._policy_out = torch_affine(params, "policy.out")
        self._value_out = torch_affine(params, VALUE_OUT) if "value" in spec.roles else None
        self._dueling = spec.dueling
        self._head, self._params = spec.head, params

    def dist_inputs(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> Tensor:
        return self._policy_head(self._features("policy", obs, state), mask)

    def values(self, obs: Tensor, state: Tensor | None = None) -> Tensor:
        """Return [N] state values; of Q-values the highest of each row."""
        if self._head.is_value_based:
            return self.dist_inputs(obs, None, state).amax(-1)
        return self._value_head(self._features("value", obs, state))

    def both(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if self._head.is_value_based:
            q_values = self.dist_inputs(obs, None, state)
            return masked(q_values, mask), q_values.amax(-1)
        features = self._features("policy", obs, state)
        value_features = features if self._one_trunk else self._features("value", obs, state)
        return self._policy_head(features, mask), self._value_head(value_features)

    def step(self, obs: Tensor, mask: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return distribution inputs and the state after them."""
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for role, trunk in self._trunks.items():
            if trunk in self._acting_trunks and trunk not in found:
                cell, part = self._cells[trunk]
                found[trunk] = cell(self._hidden_features(role, obs), state[:, part])
        after = torch.cat([own for _, own in found.values()], 1)
        return self._policy_head(found[self._trunks["policy"]][0], mask), after

    def critic_state(self, obs: Tensor, state: Tensor) -> Tensor:
        """Return the state of a centralized critic after rows."""
        cell, _ = self._cells["value"]
        return cell(self._hidden_features("value", obs), state)[1]

    def _features(self, role: Role, obs: Tensor, state: Tensor | None) -> Tensor:
        features = self._hidden_features(role, obs)
        if self._trunks[role] not in self._cells:
            return features
        assert state is not None, "a recurrent network needs its state"
        cell, part = self._cells[self._trunks[role]]
        return cell(features, state[:, part])[0]

    def _hidden_features(self, role: Role, x: Tensor) -> Tensor:
        if role in self._convolutions:
            # Multiplying bytes by a float32 converts them in the same pass.
            x = self._convolutions[role](x * constant(1.0 / 255.0, x.device) if self._pixels else x)
        elif self._pixels:
            x = x.float()
        for layer in self._hidden[role]:
            x = layer(x)
            if self._activation is not None:
                x = self._activation(x)
        return x

    def _policy_head(self, features: Tensor, mask: Tensor | None) -> Tensor:
        outputs = self._head.completed(self._policy_out(features), self._params)
        if self._dueling:
            outputs = outputs - outputs.mean(-1, keepdim=True) + self._value_head(features)[:, None]
        return masked(outputs, mask)

    def _value_head(self, features: Tensor) -> Tensor:
        assert self._value_out is not None, "Q-values without dueling have no value head"
        return self._value_out(features).squeeze(1)
