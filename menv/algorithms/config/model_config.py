"""What the stock networks look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from menv.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The `model` section."""

    fcnet_hiddens: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    fcnet_activation: Literal["tanh", "relu", "silu", "elu", "linear"] = "relu"
    """Activation after each hidden layer."""
    vf_share_layers: bool = False
    """Whether the value function uses the policy's hidden layers."""

    def __post_init__(self) -> None:
        """Take a list of widths for what it means, and refuse anything else."""
        widths = self.fcnet_hiddens
        if not isinstance(widths, Sequence) or not all(
            isinstance(width, int) and width > 0 for width in widths
        ):
            raise ConfigError(
                f"model: fcnet_hiddens is {widths!r}, expected a list of positive integers; for example [64, 64]"
            )
        object.__setattr__(self, "fcnet_hiddens", tuple(widths))
