"""The stock network, a policy and a value head, or Q-values, on fully connected layers: description, first weights.

Where observations are images, convolutions lie below these layers.

`torch_stock` and `graphs` build the same network from an `StockSpec`; the learner and the acting
back-ends share its weights by name. Weights are [in, out] (`x @ W + b`). Needs neither torch nor
onnx, so that a process that only acts can create weights too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from menv.acting.acting_graphs import ActingGraphs
from menv.acting.action_head import ActionHead
from menv.algorithms.networks.cell import Cell
from menv.algorithms.networks.conv_stack import ConvLayer, ConvStack
from menv.algorithms.networks.orthogonal import orthogonal
from menv.errors import ConfigError

if TYPE_CHECKING:
    from menv.algorithms.networks.torch_network import TorchNetwork

Activation: TypeAlias = Literal["tanh", "relu", "silu", "elu", "linear"]
ACTIVATIONS: tuple[Activation, ...] = ("tanh", "relu", "silu", "elu", "linear")
Role: TypeAlias = Literal["policy", "value"]
ROLES: tuple[Role, ...] = ("policy", "value")
LOG_STD = "policy.log_std"
VALUE_OUT = "value.out"
EPSILON = "epsilon"
"""The share of random actions of a network of Q-values: published with its weights, never learned."""

_HIDDEN_GAIN = math.sqrt(2.0)
_POLICY_GAIN = 0.01
_VALUE_GAIN = 1.0


class UnitWeights(NamedTuple):
    """The weights that have to change where rewards are paid in another unit, and nothing else of the policy does.

    Attributes:
        powers: By weight: with rewards x times as large, the same values take the weight times x to this power.
        shift: The weight [1] that is added to every value; None if there is none.
    """

    powers: Mapping[str, int]
    shift: str | None = None


class Layer(NamedTuple):
    """One affine layer: weights are called `<name>.weight` and `<name>.bias`."""

    name: str
    inputs: int
    outputs: int
    gain: float


class Trunk(NamedTuple):
    """The layers below the heads.

    Attributes:
        shapes: Name and shape of each of their weights.
        activation: Non-linearity after each hidden layer.
        conv: The convolutions below them; strides and paddings are in no shape.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    activation: str
    conv: ConvStack | None = None


@dataclass(frozen=True)
class StockSpec:
    """A policy and a value network of fully connected layers.

    Attributes:
        obs_size: F, numbers in a flat observation.
        head: What the policy's outputs mean.
        hiddens: Width of each hidden layer; may be empty.
        activation: Non-linearity after each hidden layer.
        vf_share_layers: True if both heads stand on the same hidden layers.
        dueling: Of Q-values: True computes them as V + A - mean A (Wang et al. 2016, eq. 9), both on the
            same hidden layers; otherwise there is no value head.
        cell: A recurrent layer behind the hidden layers, one for each head; None for a network without a memory.
        critic_size: Numbers that the value network sees instead of an observation; 0: it sees that.
        conv: Convolutions below the hidden layers, shared where these are; None where there are none.
        pixels: True if observations are rows of bytes; convolutions scale them to [0, 1].
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
        _check_activation(self.activation, "fcnet_activation")
        if self.conv is not None:
            _check_activation(self.conv.activation, "conv_activation")
            if math.prod(self.conv.shape) != self.obs_size:
                raise ConfigError(
                    f"StockSpec: convolutions over an image of shape {self.conv.shape} with obs_size {self.obs_size}, "
                    f"expected {math.prod(self.conv.shape)}; describe the image that the observations hold"
                )
        if min((self.obs_size, *self.hiddens)) < 1:
            raise ConfigError(
                f"StockSpec: obs_size {self.obs_size} and hiddens {self.hiddens}, expected positive numbers; "
                "check the observation space and model.fcnet_hiddens"
            )
        if self.dueling and self.head.kind != "q_values":
            raise ConfigError(
                f"StockSpec: dueling with a head of kind {self.head.kind!r}, expected 'q_values'; leave dueling out"
            )
        if self.critic_size and (self.vf_share_layers or self.head.kind == "q_values"):
            raise ConfigError(
                f"StockSpec: critic_size {self.critic_size} with a value head on the policy's layers, expected a value "
                "network of its own; set model.vf_share_layers to False"
            )

    def inputs_of(self, role: Role) -> int:
        """Return how many numbers the network of a role sees."""
        return (self.critic_size or self.obs_size) if role == "value" else self.obs_size

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Numbers in each part of the recurrent state, () without one."""
        return self.cell.state_sizes * len(self.recurrent_trunks) if self.cell else ()

    def trunk_name(self, role: Role) -> str:
        """Return the name of the layers that a head stands on."""
        return "shared" if self.vf_share_layers or self.dueling else role

    @property
    def trunks(self) -> tuple[str, ...]:
        """The layers that heads stand on, each once; recurrent states lie in this order."""
        return tuple(dict.fromkeys(self.trunk_name(role) for role in self.roles))

    @property
    def recurrent_trunks(self) -> tuple[str, ...]:
        """Those that remember; a critic of its own inputs, which nobody has while acting, does not."""
        if not self.cell:
            return ()
        return ("policy",) if self.critic_size else self.trunks

    def features(self, role: Role) -> int:
        """Return how many numbers a head stands on."""
        if self.cell and self.trunk_name(role) in self.recurrent_trunks:
            return self.cell.size
        return self.hidden_features(role)

    def hidden_features(self, role: Role) -> int:
        """Return how many numbers there are behind the hidden layers."""
        return (self._first_width(role), *self.hiddens)[-1]

    @property
    def roles(self) -> tuple[Role, ...]:
        """The heads that there are."""
        return ROLES if self.head.kind != "q_values" or self.dueling else ("policy",)

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
        """Return the shape of every weight by name, in a fixed order."""
        shapes: dict[str, tuple[int, ...]] = {}
        for conv in self._convolutions():
            shapes[f"{conv.name}.weight"] = conv.weight_shape
            shapes[f"{conv.name}.bias"] = (conv.outputs,)
        for layer in self.layers():
            shapes[f"{layer.name}.weight"] = (layer.inputs, layer.outputs)
            shapes[f"{layer.name}.bias"] = (layer.outputs,)
        if self.cell:
            for trunk in self.recurrent_trunks:
                shapes.update(self.cell.weight_shapes(trunk, self.hidden_features("policy")))
        if self.head.numbers:
            shapes[LOG_STD] = (self.head.numbers,)
        if self.head.kind == "q_values":
            shapes[EPSILON] = (1,)
        return shapes

    def trunk(self) -> Trunk:
        """Return all layers below the heads, which policies may share whatever their heads are."""
        hidden = [layer for role in self.roles for layer in self.hidden_layers(role)]
        names = [f"{layer.name}.{part}" for layer in dict.fromkeys(hidden) for part in ("weight", "bias")]
        names.extend(f"{conv.name}.{part}" for conv in self._convolutions() for part in ("weight", "bias"))
        if self.cell:
            for trunk in self.recurrent_trunks:
                names.extend(self.cell.weight_shapes(trunk, self.hidden_features("policy")))
        shapes = self.weight_shapes()
        return Trunk(tuple((name, shapes[name]) for name in names), self.activation, self.conv)

    def first_weights(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return first weights: orthogonal matrices (Saxe et al. 2014), zero biases and log_std, epsilon 1.

        Gains are sqrt(2) for hidden layers, 0.01 for the last policy layer (so that the first policy is
        close to uniform) and 1 for the value layer. Biases of Q-networks are up to 1 / sqrt(inputs of the layer):
        without them all features bend at the observation of zeros, and DQN takes more steps. The same seed gives
        the same weights.
        """
        weights = {name: np.zeros(shape, np.float32) for name, shape in self.weight_shapes().items()}
        if EPSILON in weights:
            weights[EPSILON][:] = 1.0
        rng = np.random.default_rng(seed)
        for layer in self.layers():
            matrix = orthogonal(rng, layer.inputs, layer.outputs)
            weights[f"{layer.name}.weight"] = (layer.gain * matrix).astype(np.float32)
        if self.cell:
            for trunk in self.recurrent_trunks:
                weights.update(self.cell.first_weights(trunk, self.hidden_features("policy"), rng))
        rng = np.random.default_rng((seed, 1))
        for conv in self._convolutions():
            matrix = _HIDDEN_GAIN * orthogonal(rng, math.prod(conv.weight_shape[1:]), conv.outputs)
            weights[f"{conv.name}.weight"] = matrix.T.reshape(conv.weight_shape).astype(np.float32)
        if self.head.kind == "q_values":
            rng = np.random.default_rng((seed, 2))
            for layer in self.layers():
                most = 1.0 / math.sqrt(layer.inputs)
                bias = rng.uniform(-most, most, layer.outputs)
                weights[f"{layer.name}.bias"] = bias.astype(np.float32)
        return weights

    def unit_weights(self) -> UnitWeights:
        """Return the weights of the last layers of values or Q-values."""
        of_q_values = self.head.kind == "q_values"
        roles = [role for role in self.roles if of_q_values or role == "value"]
        layers = [self.out_layer(role).name for role in roles]
        powers = {f"{layer}.{part}": 1 for layer in layers for part in ("weight", "bias")}
        return UnitWeights(powers, None if of_q_values else f"{VALUE_OUT}.bias")

    def torch_network(self, params: Mapping[str, Any]) -> TorchNetwork:
        """Return the network over `params`; see `NetworkSpec.torch_network`."""
        from menv.algorithms.networks.torch_stock import TorchStock

        return TorchStock(self, params)

    def graphs(self, defaults: Mapping[str, npt.NDArray[np.float32]]) -> ActingGraphs:
        """Return what builds its acting graphs."""
        from menv.algorithms.networks.graphs import StockGraphs

        return StockGraphs(self, defaults)

    def _first_width(self, role: Role) -> int:
        return (
            self.conv.features if self.conv is not None and self.conv_layers(role) else self.inputs_of(role)
        )

    def _convolutions(self) -> tuple[ConvLayer, ...]:
        return tuple(dict.fromkeys(conv for role in self.roles for conv in self.conv_layers(role)))


def _check_activation(activation: str, setting: str) -> None:
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ConfigError(
            f"StockSpec: activation {activation!r}, expected one of {', '.join(ACTIVATIONS)}; "
            f"set model.{setting} to one of them"
        )
