"""What the networks look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from menv.algorithms.config.keys import section_named
from menv.algorithms.config.numbers import MOST_ROWS, check_count, shown
from menv.algorithms.networks.cell import Cell
from menv.algorithms.networks.conv_stack import MOST_SIZE, ConvFilter, is_count, read_filters
from menv.errors import ConfigError

_ACTIVATIONS = ("tanh", "relu", "silu", "elu", "linear")
_MOST_LAYERS = 256
_FLAGS = ("vf_share_layers", "use_lstm", "use_gru")


@section_named("model")
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The `model` section; `docs/settings.md` explains each key."""

    fcnet_hiddens: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, which lie above the convolutions where there are any."""
    fcnet_activation: Literal["tanh", "relu", "silu", "elu", "linear"] = "relu"
    """Activation after each hidden layer: "relu", "tanh", "silu", "elu" or "linear"."""
    vf_share_layers: bool = False
    """Whether the value function uses the policy's hidden layers and convolutions. Sharing nearly halves the work of
    learning from images, but a value error of large returns then drowns what the policy learns."""
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
    conv_filters: tuple[ConvFilter, ...] | None = None
    """Convolutions over images, Boxes of shape (height, width, channels): a list of [out_channels, kernel, stride],
    such as [[16, [8, 8], 4], [32, 4, 2]]. All but the last are padded with zeros. None takes defaults for images of
    at least 24 x 24; [] means none. Images of bytes stay bytes in batches; convolutions divide by 255. An image beside
    other parts of a Dict or Tuple, but for an `action_mask`, gets none and is read as the numbers that it holds; a
    `custom_model` may convolve it."""
    conv_activation: Literal["tanh", "relu", "silu", "elu", "linear"] = "relu"
    """Activation after each convolution, one of the same."""
    custom_model: Callable[..., Any] | None = None
    """A network of your own: a `torch.nn.Module` class, or a function that returns a module; it takes the place of all
    layers above. `menv.algorithms.networks.custom_model` says what it gets and has to give."""
    custom_model_config: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for it."""

    def __post_init__(self) -> None:
        widths = self.fcnet_hiddens
        if (
            not isinstance(widths, Sequence)
            or isinstance(widths, str | bytes)
            or len(widths) > _MOST_LAYERS
            or not all(map(is_count, widths))
        ):
            raise ConfigError(
                f"model: fcnet_hiddens is {shown(widths)}, expected a list of at most {_MOST_LAYERS} positive integers "
                "below 2**31; for example [64, 64]"
            )
        object.__setattr__(self, "fcnet_hiddens", tuple(map(int, widths)))
        for name in ("fcnet_activation", "conv_activation"):
            _check_activation(name, getattr(self, name))
        for name in _FLAGS:
            object.__setattr__(self, name, _flag(name, getattr(self, name)))
        if self.shared_layers is not None and (
            not isinstance(self.shared_layers, str) or not self.shared_layers
        ):
            raise ConfigError(
                f"model: shared_layers is {shown(self.shared_layers)}, expected the name of a group of policies, or "
                'None; for example "trunk"'
            )
        if self.conv_filters is not None:
            object.__setattr__(self, "conv_filters", read_filters(self.conv_filters))
        self._check_custom_model()
        if self.use_lstm and self.use_gru:
            raise ConfigError("model: use_lstm and use_gru are both set, expected one of them; leave one out")
        check_count("model", "lstm_cell_size", self.lstm_cell_size, most=MOST_SIZE)
        check_count("model", "max_seq_len", self.max_seq_len, most=MOST_ROWS)

    @property
    def cell(self) -> Cell | None:
        """The recurrent layer, None without one."""
        if not self.use_lstm and not self.use_gru:
            return None
        return Cell("lstm" if self.use_lstm else "gru", self.lstm_cell_size)

    def _check_custom_model(self) -> None:
        model, settings = self.custom_model, self.custom_model_config
        instance = hasattr(model, "named_parameters") and not isinstance(model, type)
        if model is not None and (instance or not callable(model)):
            given = f"an instance of {type(model).__name__}" if instance else shown(model)
            raise ConfigError(
                f"model: custom_model is {given}, expected a torch.nn.Module class or a function that returns a "
                "module, because every policy gets one of its own; pass that and put arguments into custom_model_config"
            )
        if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
            raise ConfigError(
                f"model: custom_model_config is {type(settings).__name__}, expected a dict of keyword arguments; "
                'write {"width": 64}'
            )
        if (model is None and settings) or (model is not None and self.conv_filters):
            stray = "custom_model_config without" if model is None else "conv_filters beside"
            raise ConfigError(f"model: {stray} custom_model, expected one or the other way; leave it out")


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"model: {name} is {shown(value)}, expected True or False; choose one")
    return bool(value)


def _check_activation(name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise ConfigError(
            f"model: {name} {value!r:.60}, expected one of {', '.join(_ACTIVATIONS)}; choose one of these"
        )
