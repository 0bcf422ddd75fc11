"""The network of a group of agents: one Q-network that all members share, and a mixing network (QMIX).

The shared network alone acts; the mixing network is used only for learning (Rashid et al. 2018, "QMIX: monotonic value
function factorisation", section 4). `GroupSpec` describes it without torch and onnx; `GroupGraphs` builds
its acting graphs, `TorchGroup` is its torch form. A member that is absent, which the last columns of a row say, is all
zeros to both networks, its index included; its Q-values are 0, as if it had one action; and the state has a flag for
each member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock_spec import Activation, Cell, Layer, StockSpec, UnitWeights, orthogonal
from menv.algorithms.off_policy.recipe import instead
from menv.connectors.obs_preprocessor import Leaf, ObsPreprocessor
from menv.errors import ConfigError
from menv.inference.acting_graphs import ActingGraphs
from menv.inference.heads.head import ActionHead, in_a_line
from menv.inference.heads.q_values import MultiQValues, QValues

if TYPE_CHECKING:
    from menv.algorithms.qmix.learner import TorchGroup


STATE_KEY = "state"
"""The entry of a member's Dict observation with the global state, the same for all members."""


class GroupLayout(NamedTuple):
    """The columns of a group's flat observation, and the number of choices per member.

    Attributes:
        members: The columns that each of C members sees.
        state: The columns of the global state: what the group observes behind its members, else the first member's
            `"state"`, else all members' columns.
        choices: Number of choices of each member.
    """

    members: tuple[tuple[int, ...], ...]
    state: tuple[int, ...]
    choices: int


def group_layout(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> GroupLayout:
    """Return the layout of a group's observations and actions."""
    parts, actions = _parts("observation", observation_space), _parts("action", action_space)
    members, state = parts[: len(actions)], parts[len(actions) :]
    if len(members) != len(actions) or len(state) > 1:
        raise ConfigError(
            f"QMIX: {len(parts)} members observe and {len(actions)} act, expected the same number; group the agents "
            "with env.with_agent_groups"
        )
    _refuse_unlike("observation", members, members)
    # The start of a Discrete space does not matter.
    _refuse_unlike("action", actions, [getattr(space, "n", space) for space in actions])
    if not isinstance(actions[0], gym.spaces.Discrete):
        raise ConfigError(
            f"QMIX: the members' action space is {in_a_line(actions[0])}, expected Discrete; {instead(actions[0])}"
        )
    leaves = ObsPreprocessor(observation_space).leaves
    own = tuple(_columns(leaves, place, state=False) for place in range(len(members)))
    shown = _columns(leaves, len(members), state=False) or _columns(leaves, 0, state=True)
    return GroupLayout(own, shown or sum(own, ()), int(actions[0].n))


def _parts(kind: str, space: gym.Space[Any]) -> tuple[Any, ...]:
    if not isinstance(space, gym.spaces.Tuple) or not space.spaces:
        raise ConfigError(
            f"QMIX: {kind} space {in_a_line(space)}, expected the Tuple of a group of agents; group them with "
            'env.with_agent_groups({"group": ["agent_1", "agent_2"]})'
        )
    return tuple(space.spaces)


def _refuse_unlike(kind: str, spaces: Sequence[Any], forms: Sequence[Any]) -> None:
    for place, (space, form) in enumerate(zip(spaces, forms, strict=True)):
        if form != forms[0] or type(space) is not type(spaces[0]):
            raise ConfigError(
                f"QMIX: the {kind} spaces of members 0 and {place} of the group are {in_a_line(spaces[0])} and "
                f"{in_a_line(space)}, expected equal ones, because the members share one network; pad the smaller one "
                "(action_mask forbids choices), or train this policy with PPO"
            )


def _columns(leaves: list[Leaf], place: int, *, state: bool) -> tuple[int, ...]:
    return tuple(
        column
        for leaf in leaves
        if leaf.keys[0] == place and (leaf.keys[1:2] == (STATE_KEY,)) is state
        for column in range(leaf.start, leaf.start + leaf.width)
    )


Mixer: TypeAlias = Literal["qmix", "vdn"] | None

_POWERS = (-1, 0, 1, 0, 1)
"""Of `mixing_layers`: Q-values are divided by the unit in the hidden layer, and the result is multiplied by it."""

_UNSIGNED = ("mixer.hidden_weight", "mixer.out_weight")
"""Layers whose outputs are used as weights without their signs."""

STATE_SHARE = 0.1
"""These layers read this share of the state: their outputs stay near their biases at first, and change slowly."""


@dataclass(frozen=True)
class GroupSpec(NetworkSpec):
    """The shared Q-network of a group's members and the mixing network.

    `obs_size` is F, the size of the group's flat observation; with `marked`, its last C columns are at least 0 for each
    member that is there and below 0 for others, also after an observation filter. The mixer "qmix" uses non-negative
    weights that depend on the global state, "vdn" adds the Q-values (Sunehag et al. 2018), and None keeps the members
    independent.
    """

    obs_size: int
    layout: GroupLayout
    hiddens: tuple[int, ...] = (64, 64)
    activation: Activation = "relu"
    dueling: bool = False
    mixer: Mixer = "qmix"
    embed_dim: int = 32
    marked: bool = False
    cell: Cell | None = None

    @property
    def marks(self) -> int:
        """Number of columns that mark members."""
        return len(self.layout.members) * self.marked

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The member that each column before the marks belongs to; C for no member, such as for the global state."""
        of = {column: place for place, own in enumerate(self.layout.members) for column in own}
        return tuple(of.get(column, len(self.layout.members)) for column in range(self.obs_size - self.marks))

    @cached_property
    def state(self) -> tuple[int, ...]:
        """The columns of the global state, followed by the flags of the members."""
        return self.layout.state + tuple(range(self.obs_size - self.marks, self.obs_size))

    @cached_property
    def member(self) -> StockSpec:
        """The shared network; it reads a member's observation and the one-hot index of the member."""
        size = len(self.layout.members[0]) + len(self.layout.members)
        head = QValues((self.layout.choices,))
        return StockSpec(size, head, self.hiddens, self.activation, dueling=self.dueling, cell=self.cell)

    @cached_property
    def head(self) -> ActionHead:
        """One action of each member."""
        return MultiQValues((self.layout.choices,) * len(self.layout.members))

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """[C * member.obs_size] columns of the members' inputs in a row that is followed by a 0 and a 1."""
        zero, places = self.obs_size, range(len(self.layout.members))
        ones = [self.obs_size - self.marks + place if self.marked else zero + 1 for place in places]
        return tuple(
            column
            for place, own in enumerate(self.layout.members)
            for column in (*own, *(ones[place] if other == place else zero for other in places))
        )

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """One part with the states of all members, [h, c] of an LSTM."""
        return (len(self.layout.members) * sum(self.cell.state_sizes),) if self.cell else ()

    def mixing_layers(self) -> tuple[Layer, ...]:
        """Return the layers that compute the mixing network's weights from the state; none without "qmix".

        In this order: weights and bias of the hidden layer, weights of the last layer, and two layers for its bias.
        """
        if self.mixer != "qmix":
            return ()
        state, width, members = len(self.state), self.embed_dim, len(self.layout.members)
        return (
            Layer("mixer.hidden_weight", state, members * width, gain=1.0),
            Layer("mixer.hidden_bias", state, width, gain=1.0),
            Layer("mixer.out_weight", state, width, gain=1.0),
            Layer("mixer.out_bias.0", state, width, gain=1.0),
            Layer("mixer.out_bias.1", width, 1, gain=1.0),
        )

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight by name: the shared network's, epsilon, the mixing network's."""
        shapes = self.member.weight_shapes()
        for layer in self.mixing_layers():
            shapes[f"{layer.name}.weight"] = (layer.inputs, layer.outputs)
            shapes[f"{layer.name}.bias"] = (layer.outputs,)
        return shapes

    def first_weights(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return first weights: orthogonal matrices, and biases of 0 or 1; the same seed gives the same.

        Layers that compute unsigned mixing weights have biases of 1, so that a new group is worth about the sum of its
        members plus a small value of the state. With weights near 0, that value alone would explain the returns, and
        the members would hardly learn which actions are better.
        """
        weights = self.member.first_weights(seed)
        rng = np.random.default_rng((seed, len(weights)))
        for layer in self.mixing_layers():
            matrix = layer.gain * orthogonal(rng, layer.inputs, layer.outputs)
            weights[f"{layer.name}.weight"] = matrix.astype(np.float32)
            first = 1.0 if layer.name in _UNSIGNED else 0.0
            weights[f"{layer.name}.bias"] = np.full(layer.outputs, first, np.float32)
        return weights

    def unit_weights(self) -> UnitWeights:
        powers = {f"{layer.name}.{part}": power for layer, power in zip(self.mixing_layers(), _POWERS, strict=False)
                  if power for part in ("weight", "bias")}  # fmt: skip
        return UnitWeights({**self.member.unit_weights().powers, **powers})

    def torch_network(self, params: Mapping[str, Any]) -> TorchGroup:
        from menv.algorithms.qmix.learner import TorchGroup

        return TorchGroup(self, params)

    def graphs(self, defaults: Mapping[str, npt.NDArray[np.float32]]) -> ActingGraphs:
        from menv.algorithms.qmix.graphs import GroupGraphs

        return GroupGraphs(self, defaults)
