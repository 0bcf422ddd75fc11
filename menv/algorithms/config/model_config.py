"""What the stock networks look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from menv.algorithms.networks.cell import Cell
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
    use_lstm: bool = False
    """Whether an LSTM follows the hidden layers; the value function has its own, unless it shares them."""
    use_gru: bool = False
    """Whether a GRU does instead."""
    lstm_cell_size: int = 64
    """Units of the LSTM or GRU."""
    max_seq_len: int = 20
    """Rows through which a recurrent policy learns at a time; longer pieces of trajectories are cut."""
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
        if self.use_lstm and self.use_gru:
            raise ConfigError("model: use_lstm and use_gru are both set, expected one of them; leave one out")
        for name in ("lstm_cell_size", "max_seq_len"):
            _check_positive(name, getattr(self, name))

    @property
    def cell(self) -> Cell | None:
        """The recurrent layer, None without one."""
        if not self.use_lstm and not self.use_gru:
            return None
        return Cell("lstm" if self.use_lstm else "gru", self.lstm_cell_size)


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"model: {name} is {value!r}, expected a positive integer; for example {name}=20")
