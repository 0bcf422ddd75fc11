"""StockSpec: the built-in networks, policy and value heads or Q-values on convolutions, dense layers and a cell.

`torch_stock` and `stock_graphs` build the same network from a `StockSpec`; learners and acting back-ends share its
weights by name. Weights are [in, out] (`x @ W + b`). Needs neither torch nor onnx.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from menv.algorithms.networks.network_spec import NetworkSpec
from menv.errors import ConfigError
from menv.inference.acting_graphs import ActingGraphs
from menv.inference.heads.head import ActionHead

if TYPE_CHECKING:
    from menv.algorithms.networks.network_spec import TorchNetwork


MOST_SIZE = 2**31 - 1
"""Maximum size of a layer, the array limit of all libraries."""
LEAST_SIDE = 24
"""Minimum height and width of images that get convolutions by default."""

_LARGE_SIDE = 64
_LAST_SIDE = 11


@dataclass(frozen=True)
class StockSpec(NetworkSpec):
    """A policy and a value network of fully connected layers.

    Attributes:
        obs_size: F, the size of a flat observation.
        dueling: Whether Q-values are V + A - mean A (Wang et al. 2016, eq. 9), on shared hidden layers; otherwise
            Q-networks have no value head.
        cell: A recurrent layer after the hidden layers of each head, or None. That of a centralized critic has a state
            that acting never sees, of the same size.
        critic_size: Size of the input of a centralized critic; 0 if the value network reads observations.
        conv: Convolutions before the hidden layers, or None.
        pixels: Whether observations are bytes, which convolutions scale to [0, 1].
    """

    obs_size: int
    head: ActionHead
    hiddens: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    vf_share_layers: bool = False
    dueling: bool = False
    cell: Cell | None = None
    critic_size: int = 0
    conv: ConvStack | None = None
    pixels: bool = False

    def __post_init__(self) -> None:
        if min((self.obs_size, *self.hiddens)) < 1:
            raise ConfigError(
                f"StockSpec: obs_size {self.obs_size} and hiddens {self.hiddens}, expected positive numbers; "
                "check the observation space and model.fcnet_hiddens"
            )

    @property
    def scales_bytes(self) -> bool:
        """Whether bytes are scaled to [0, 1], as convolutions do."""
        return self.conv is not None

    def inputs_of(self, role: Role) -> int:
        """Return the input size of the network of a role."""
        return (self.critic_size or self.obs_size) if role == "value" else self.obs_size

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return self.cell.state_sizes * len(self.acting_trunks) if self.cell else ()

    def trunk_name(self, role: Role) -> str:
        """Return the name of the layers below a head."""
        return "shared" if self.vf_share_layers or self.dueling else role

    @property
    def trunks(self) -> tuple[str, ...]:
        """Names of the layers below the heads, each once, in the order of the recurrent states."""
        return tuple(dict.fromkeys(self.trunk_name(role) for role in self.roles))

    @property
    def acting_trunks(self) -> tuple[str, ...]:
        """Trunks with a cell whose states acting keeps: without that of a centralized critic, whose input it lacks."""
        if not self.cell:
            return ()
        return ("policy",) if self.critic_size else self.trunks

    @property
    def cell_inputs(self) -> dict[str, int]:
        """The input size of the cell of each trunk that has one."""
        if not self.cell:
            return {}
        return {self.trunk_name(role): self.hidden_features(role) for role in self.roles}

    def features(self, role: Role) -> int:
        """Return the input size of a head."""
        return self.cell.size if self.cell else self.hidden_features(role)

    def hidden_features(self, role: Role) -> int:
        """Return the output size of the hidden layers."""
        return (self._first_width(role), *self.hiddens)[-1]

    @property
    def roles(self) -> tuple[Role, ...]:
        """The heads of the network."""
        return ROLES if self.dueling or not self.head.is_value_based else ("policy",)

    def conv_layers(self, role: Role) -> tuple[ConvLayer, ...]:
        """Return the convolutions below the hidden layers of a role, first to last."""
        if self.conv is None or (role == "value" and self.critic_size):
            return ()
        return self.conv.layers(self.trunk_name(role))

    def hidden_layers(self, role: Role) -> tuple[Layer, ...]:
        """Return the hidden layers below the policy or the value head, first to last."""
        widths = (self._first_width(role), *self.hiddens)
        trunk = self.trunk_name(role)
        return tuple(
            Layer(f"{trunk}.{i}", widths[i], widths[i + 1], _HIDDEN_GAIN) for i in range(len(self.hiddens))
        )

    def out_layer(self, role: Role) -> Layer:
        """Return the last layer of the policy or of the value network."""
        if role == "policy":
            return Layer("policy.out", self.features(role), self.head.outputs, _POLICY_GAIN)
        return Layer(VALUE_OUT, self.features(role), 1, _VALUE_GAIN)

    def layers(self) -> tuple[Layer, ...]:
        """Return every layer once: policy, then value."""
        both = [layer for role in self.roles for layer in (*self.hidden_layers(role), self.out_layer(role))]
        return tuple(dict.fromkeys(both))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for conv in self._convolutions():
            shapes[f"{conv.name}.weight"] = conv.weight_shape
            shapes[f"{conv.name}.bias"] = (conv.outputs,)
        for layer in self.layers():
            shapes[f"{layer.name}.weight"] = (layer.inputs, layer.outputs)
            shapes[f"{layer.name}.bias"] = (layer.outputs,)
        if self.cell:
            for trunk, inputs in self.cell_inputs.items():
                shapes.update(self.cell.weight_shapes(trunk, inputs))
        shapes.update({name: first.shape for name, first in self.head.weights.items()})
        return shapes

    def trunk(self) -> Trunk:
        """Return all layers below the heads, which policies with different heads may share."""
        hidden = [layer for role in self.roles for layer in self.hidden_layers(role)]
        names = [f"{layer.name}.{part}" for layer in dict.fromkeys(hidden) for part in ("weight", "bias")]
        names.extend(f"{conv.name}.{part}" for conv in self._convolutions() for part in ("weight", "bias"))
        if self.cell:
            for trunk, inputs in self.cell_inputs.items():
                names.extend(self.cell.weight_shapes(trunk, inputs))
        shapes = self.weight_shapes()
        return Trunk(tuple((name, shapes[name]) for name in names), self.activation, self.conv)

    def first_weights(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return first weights: orthogonal matrices (Saxe et al. 2014), zero biases and log_std, epsilon 1.

        Gains are sqrt(2) for hidden layers, 0.01 for the last policy layer (so that the initial policy is close to
        uniform) and 1 for the value layer. Biases of Q-networks are random, up to 1 / sqrt(inputs of the layer), with
        which DQN needs fewer steps. The same seed gives the same weights.
        """
        weights = {name: np.zeros(shape, np.float32) for name, shape in self.weight_shapes().items()}
        weights.update(self.head.weights)
        rng = np.random.default_rng(seed)
        for layer in self.layers():
            matrix = orthogonal(rng, layer.inputs, layer.outputs)
            weights[f"{layer.name}.weight"] = (layer.gain * matrix).astype(np.float32)
        if self.cell:
            for trunk, inputs in self.cell_inputs.items():
                weights.update(self.cell.first_weights(trunk, inputs, rng))
        rng = np.random.default_rng((seed, 1))
        for conv in self._convolutions():
            matrix = _HIDDEN_GAIN * orthogonal(rng, math.prod(conv.weight_shape[1:]), conv.outputs)
            weights[f"{conv.name}.weight"] = matrix.T.reshape(conv.weight_shape).astype(np.float32)
        if self.head.is_value_based:
            rng = np.random.default_rng((seed, 2))
            for layer in self.layers():
                most = 1.0 / math.sqrt(layer.inputs)
                bias = rng.uniform(-most, most, layer.outputs)
                weights[f"{layer.name}.bias"] = bias.astype(np.float32)
        return weights

    def unit_weights(self) -> UnitWeights:
        of_q_values = self.head.is_value_based
        roles = [role for role in self.roles if of_q_values or role == "value"]
        layers = [self.out_layer(role).name for role in roles]
        powers = {f"{layer}.{part}": 1 for layer in layers for part in ("weight", "bias")}
        return UnitWeights(powers, None if of_q_values else f"{VALUE_OUT}.bias")

    def torch_network(self, params: Mapping[str, Any]) -> TorchNetwork:
        from menv.algorithms.networks.torch_stock import TorchStock

        return TorchStock(self, params)

    def graphs(self, defaults: Mapping[str, npt.NDArray[np.float32]]) -> ActingGraphs:
        from menv.algorithms.networks.stock_graphs import StockGraphs

        return StockGraphs(self, defaults)

    def _first_width(self, role: Role) -> int:
        return (
            self.conv.features if self.conv is not None and self.conv_layers(role) else self.inputs_of(role)
        )

    def _convolutions(self) -> tuple[ConvLayer, ...]:
        return tuple(dict.fromkeys(conv for role in self.roles for conv in self.conv_layers(role)))


class Trunk(NamedTuple):
    """The layers below the heads: names and shapes of their weights, activation and convolutions."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    activation: str
    conv: ConvStack | None = None


class Layer(NamedTuple):
    """One affine layer: weights are called `<name>.weight` and `<name>.bias`."""

    name: str
    inputs: int
    outputs: int
    gain: float


class UnitWeights(NamedTuple):
    """The weights that scale with the unit of rewards, while the rest of the policy stays unchanged.

    Attributes:
        powers: By weight: if rewards are multiplied by x, multiply the weight by x to this power.
        shift: The weight [1] that is added to every value, or None.
    """

    powers: Mapping[str, int]
    shift: str | None = None


@dataclass(frozen=True)
class Cell:
    """A recurrent layer of H units.

    An LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000) has the gates input,
    forget, candidate, output, and the state h, c. A GRU (Cho et al. 2014, its reset gate applied after the product
    as in torch) has reset, update, candidate, and the state h.
    """

    kind: CellKind
    size: int

    @property
    def gates(self) -> int:
        """Number of gates, so that each affine layer has gates * H outputs."""
        return 4 if self.kind == "lstm" else 3

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Numbers in each part of the state: h, and c of an LSTM."""
        return (self.size, self.size) if self.kind == "lstm" else (self.size,)

    def weight_shapes(self, trunk: str, inputs: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight by name."""
        of_input, of_state = INPUT.format(trunk), STATE.format(trunk)
        width = self.gates * self.size
        shapes: dict[str, tuple[int, ...]] = {
            f"{of_input}.weight": (inputs, width),
            f"{of_input}.bias": (width,),
            f"{of_state}.weight": (self.size, width),
        }
        if self.kind == "gru":
            # The reset gate applies to the product with the state, including its bias.
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


@dataclass(frozen=True)
class ConvStack:
    """Convolutions one after the other, over an image of a fixed size.

    All but the last are zero-padded so that the output size is the input size divided by the stride, rounded up; the
    last one is not padded, as in RLlib. `shape` is (height, width, channels), the order of the image in a row.
    """

    shape: tuple[int, int, int]
    filters: tuple[ConvFilter, ...]
    activation: Activation = "relu"

    def __str__(self) -> str:
        filters = ", ".join(map(str, self.filters))
        return f"[{filters}] over {_by(self.shape)} with {self.activation!r}"

    def __post_init__(self) -> None:
        last = self.layers("")[-1]
        if min(last.size) < 1:
            sizes = [self.shape[:2], *(layer.size for layer in self.layers("")[:-1])]
            raise ConfigError(
                f"model: conv_filters: the last kernel is {_by(last.kernel)} and meets {_by(sizes[-1])} (an image of "
                f"{' -> '.join(map(_by, sizes))}), expected at most that; use smaller kernels or strides, and images "
                "of shape (height, width, channels)"
            )

    @property
    def features(self) -> int:
        """Number of output features per row, flattened with channels first."""
        last = self.layers("")[-1]
        return last.outputs * math.prod(last.size)

    def layers(self, trunk: str) -> tuple[ConvLayer, ...]:
        """Return the layers, first to last, their weights named for `trunk`."""
        size, channels = self.shape[:2], self.shape[2]
        found: list[ConvLayer] = []
        for index, (outputs, kernel, stride) in enumerate(self.filters):
            padded = index < len(self.filters) - 1
            (height, top, bottom), (width, left, right) = (
                _along(*sides, padded) for sides in zip(size, kernel, stride, strict=True)
            )
            size = (height, width)
            pads = (top, left, bottom, right)
            found.append(ConvLayer(f"{trunk}.conv{index}", channels, outputs, kernel, stride, pads, size))
            channels = outputs
        return tuple(found)


class ConvLayer(NamedTuple):
    """One convolution: weights are called `<name>.weight` [outputs, inputs, height, width] and `<name>.bias`.

    Inputs and outputs are channels, `pads` zeros (top, left, bottom, right), `size` the output's (height, width).
    """

    name: str
    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]
    size: tuple[int, int]

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Shape of its kernels."""
        return (self.outputs, self.inputs, *self.kernel)


class ConvFilter(NamedTuple):
    """One entry of `conv_filters`: output channels, kernel (height, width) and stride (height, width)."""

    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]

    def __str__(self) -> str:
        return f"[{self.outputs}, {list(self.kernel)}, {list(self.stride)}]"


def read_filters(value: Any) -> tuple[ConvFilter, ...]:
    """Return the setting `conv_filters` as filters."""
    filters = [_filter(entry) for entry in value] if _is_list(value) else [None]
    if None in filters:
        raise ConfigError(
            f"model: conv_filters is {value!r}, expected a list of [out_channels, kernel, stride], positive integers; "
            "for example [[16, [8, 8], 4], [32, 4, 2]]"
        )
    return tuple(one for one in filters if one is not None)


def default_filters(shape: tuple[int, int, int]) -> tuple[ConvFilter, ...]:
    """Return filters that reduce an image to about 10 x 10."""
    size: Sequence[int] = shape[:2]
    first = ConvFilter(16, (8, 8), (4, 4)) if max(size) >= _LARGE_SIDE else ConvFilter(16, (4, 4), (2, 2))
    filters = [first]
    size = [-(-side // first.stride[0]) for side in size]
    while max(size) > _LAST_SIDE:
        filters.append(ConvFilter(32, (4, 4), (2, 2)))
        size = [-(-side // 2) for side in size]
    # A long and narrow image may now be narrower than the kernel.
    return (*filters, ConvFilter(32, (min(3, size[0]), min(3, size[1])), (1, 1)))


def _filter(entry: Any) -> ConvFilter | None:
    if not _is_list(entry) or len(entry) != 3 or not is_count(entry[0]):
        return None
    kernel, stride = _pair(entry[1]), _pair(entry[2])
    return None if kernel is None or stride is None else ConvFilter(int(entry[0]), kernel, stride)


def _pair(value: Any) -> tuple[int, int] | None:
    pair = list(value) if _is_list(value) else [value, value]
    return (int(pair[0]), int(pair[1])) if len(pair) == 2 and all(map(is_count, pair)) else None


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def is_count(value: object) -> bool:
    """Return whether a setting is a positive integer, Python's or numpy's, that layers can have for a size."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 < int(value) <= MOST_SIZE


def _along(side: int, kernel: int, stride: int, padded: bool) -> tuple[int, int, int]:
    if not padded:
        return max(0, (side - kernel) // stride + 1), 0, 0
    out = -(-side // stride)
    zeros = max(0, (out - 1) * stride + kernel - side)
    return out, zeros // 2, zeros - zeros // 2


def _by(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


def orthogonal(rng: np.random.Generator, inputs: int, outputs: int) -> npt.NDArray[np.float64]:
    """Return an [inputs, outputs] matrix whose rows or columns, whichever are fewer, are orthonormal.

    Saxe et al. 2014, "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks".
    """
    q, r = np.linalg.qr(rng.standard_normal((max(inputs, outputs), min(inputs, outputs))))
    # The signs of QR depend on LAPACK; a positive diagonal makes the result unique and uniform.
    q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
    matrix: npt.NDArray[np.float64] = np.ascontiguousarray(q if inputs >= outputs else q.T)
    return matrix


CellKind: TypeAlias = Literal["lstm", "gru"]
INPUT, STATE = "{}.cell.input", "{}.cell.state"
"""Names of the affine layers of a trunk's cell, for its input and its state; their outputs are the gates in order."""
_FORGET_BIAS = 1.0
Activation: TypeAlias = Literal["tanh", "relu", "silu", "elu", "linear"]
Role: TypeAlias = Literal["policy", "value"]
ROLES: tuple[Role, ...] = ("policy", "value")
VALUE_OUT = "value.out"
_HIDDEN_GAIN = math.sqrt(2.0)
_POLICY_GAIN = 0.01
_VALUE_GAIN = 1.0
