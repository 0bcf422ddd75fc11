"""What the stock networks look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The `model` section."""

    fcnet_hiddens: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    fcnet_activation: Literal["tanh", "relu", "silu", "elu", "linear"] = "relu"
    """Activation after each hidden layer."""
    vf_share_layers: bool = False
    """Whether the value function uses the policy's hidden layers."""
