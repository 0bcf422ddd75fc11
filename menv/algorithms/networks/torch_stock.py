"""The stock network as bare torch operations on parameters that somebody else owns.

The learner hands in views of its flat parameter tensor, the torch back-end its stored weights. There is no
`nn.Module`: at 64 rows its bookkeeping would cost more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from menv.acting.action_head import ILLEGAL
from menv.algorithms.networks.stock import LOG_STD, Activation, Role, StockSpec
from menv.algorithms.networks.torch_conv import TorchConv

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "elu": torch.nn.functional.elu,
}


class TorchStock:
    """The network of `spec` over `params`, whose current values every call reads.

    Args:
        spec: The layers.
        params: A tensor for each name in `spec.weight_shapes()`.

    Attributes:
        obs_size: F, numbers in a flat observation.
    """

    def __init__(self, spec: StockSpec, params: Mapping[str, Tensor]) -> None:
        self.obs_size = spec.obs_size
        self._shared = spec.vf_share_layers
        self._activation = _ACTIVATIONS.get(spec.activation)
        self._hidden = {
            role: [_weight_and_bias(params, layer.name) for layer in spec.hidden_layers(role)]
            for role in spec.roles
        }
        self._convolved = {
            role: TorchConv(
                spec.conv.shape,
                spec.conv_layers(role),
                params,
                _ACTIVATIONS.get(spec.conv.activation),
                spec.pixels,
            )
            for role in spec.roles
            if spec.conv is not None
        }
        self._pixels = spec.pixels
        self._policy_out = _weight_and_bias(params, "policy.out")
        self._value_out = _weight_and_bias(params, "value.out") if "value" in spec.roles else None
        self._dueling = spec.dueling
        self._of_q_values = spec.head.kind == "q_values"
        self._log_std = params.get(LOG_STD)

    def dist_inputs(self, obs: Tensor, mask: Tensor | None) -> Tensor:
        """Return [N, D] distribution inputs after masking, from obs [N, F] and mask [N, M]."""
        return self._policy_head(self._features("policy", obs), mask)

    def values(self, obs: Tensor) -> Tensor:
        """Return [N] state values; of Q-values the highest of each row."""
        if self._of_q_values:
            return self.dist_inputs(obs, None).amax(-1)
        return self._value_head(self._features("value", obs))

    def both(self, obs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return distribution inputs and values; shared layers are computed once."""
        if self._of_q_values:
            q_values = self.dist_inputs(obs, None)
            return q_values if mask is None else torch.where(mask, q_values, ILLEGAL), q_values.amax(-1)
        features = self._features("policy", obs)
        value_features = features if self._shared else self._features("value", obs)
        return self._policy_head(features, mask), self._value_head(value_features)

    def _features(self, role: Role, x: Tensor) -> Tensor:
        if self._convolved:
            x = self._convolved[role](x)
        elif self._pixels:
            x = x.float()
        for weight, bias in self._hidden[role]:
            x = torch.addmm(bias, x, weight)
            if self._activation is not None:
                x = self._activation(x)
        return x

    def _policy_head(self, features: Tensor, mask: Tensor | None) -> Tensor:
        weight, bias = self._policy_out
        outputs = torch.addmm(bias, features, weight)
        if self._log_std is not None:
            return torch.cat((outputs, self._log_std.expand_as(outputs)), 1)
        if self._dueling:
            outputs = outputs - outputs.mean(-1, keepdim=True) + self._value_head(features)[:, None]
        return outputs if mask is None else torch.where(mask, outputs, ILLEGAL)

    def _value_head(self, features: Tensor) -> Tensor:
        assert self._value_out is not None, "Q-values without dueling have no value head"
        weight, bias = self._value_out
        return torch.addmm(bias, features, weight)[:, 0]


def _weight_and_bias(params: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return params[f"{name}.weight"], params[f"{name}.bias"]
