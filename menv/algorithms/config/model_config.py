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
    shared_layers: str | None = None
    """Name of a group of policies that stand on one set of hidden layers, each with heads of its own; None shares
    nothing. Each makes its own gradient steps, and what they change holds for all: so all of a group learn, or none."""

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
        if self.shared_layers is not None and (
            not isinstance(self.shared_layers, str) or not self.shared_layers
        ):
            raise ConfigError(
                f"model: shared_layers is {self.shared_layers!r}, expected the name of a group of policies, or None; "
                'for example "trunk"'
            )
