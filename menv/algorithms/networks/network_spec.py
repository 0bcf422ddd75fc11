"""NetworkSpec and TorchNetwork: the interfaces of a network description and of its torch form.

The recipe of an algorithm creates a spec for each policy; acting back-ends and learners are built from it. Specs are
equal if their networks differ only in weights. Creating a spec needs neither torch nor onnx; its methods import them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError
from menv.inference.acting_graphs import ActingGraphs
from menv.inference.heads.head import ActionHead

if TYPE_CHECKING:
    from torch import Tensor

    from menv.algorithms.networks.stock_spec import Trunk, UnitWeights


def obs_column(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return observations [N, F] as networks read them: uint8 stays uint8, everything else becomes float32."""
    return column if column.dtype == np.uint8 else np.asarray(column, np.float32)


class NetworkSpec(Protocol):
    """The architecture that the policies of a group share; specs inherit what is usual."""

    if TYPE_CHECKING:
        # At runtime a property would hide the field of a dataclass.
        @property
        def obs_size(self) -> int:
            """F, numbers in a flat observation."""

        @property
        def head(self) -> ActionHead:
            """What the policy's outputs mean."""

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Numbers in each part of the recurrent state, () for a network without one."""

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight by name, in a fixed order."""

    def first_weights(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return the initial weights; the same seed gives the same weights."""

    def unit_weights(self) -> UnitWeights:
        """Return the weights that scale with the unit of rewards."""

    def torch_network(self, params: Mapping[str, Any]) -> TorchNetwork:
        """Return the network over `params`, a tensor for each name, whose current values every call reads."""

    def graphs(self, defaults: Mapping[str, npt.NDArray[np.float32]]) -> ActingGraphs | None:
        """Return what builds its acting graphs, None if only torch can run it."""

    def stored_graphs(self) -> ActingGraphs | None:
        """Return what builds the graphs of a policy on disk."""
        return self.graphs({})

    @property
    def member(self) -> NetworkSpec | None:
        """The network of each agent if this one acts for a group of agents, else None."""
        return None

    def trunk(self) -> Trunk | None:
        """Return the layers that policies with other heads may share, None if they cannot."""
        return None

    @property
    def critic_size(self) -> int:
        """Size of the input of a centralized critic; 0 if the value network reads observations."""
        return 0

    @property
    def scales_bytes(self) -> bool:
        """Whether bytes of images may be scaled to [0, 1]; otherwise 255 is a large number to it."""
        return True

    @property
    def most_weights(self) -> int:
        """Maximum number of weights; a graph is limited to 2 GiB."""
        return 2**29 - 2**18


class TorchNetwork(Protocol):
    """A policy and a value function over the same parameters, as plain functions of tensors.

    A recurrent network gets the `state` [B, S] before B sequences of N / B rows each; B = N is one step of every row.
    Without a state the rows are independent of each other. Observations are float32, or uint8 for byte images.
    """

    @property
    def obs_size(self) -> int:
        """F, numbers in a flat observation."""

    def dist_inputs(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> Tensor:
        """Return [N, D] distribution inputs after masking, from obs [N, F] and mask [N, M]."""

    def values(self, obs: Tensor, state: Tensor | None = None) -> Tensor:
        """Return [N] state values."""

    def both(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return distribution inputs and values in one pass."""


_BYTES = 16
"""Bytes per trained weight: the weight, its gradient, and two moments of Adam."""
UNKNOWN = 2**40
"""Assumed bytes of memory if the system does not report it."""
_FEW = 2**22
_most_weights = ContextVar("most_weights", default=math.inf)


@contextmanager
def weights_in_file(count: int) -> Iterator[None]:
    """Refuse, in this context, networks of many more weights than the `count` in a checkpoint."""
    before = _most_weights.set(count + _FEW)
    try:
        yield
    finally:
        _most_weights.reset(before)


def check_size(network: NetworkSpec) -> None:
    """Refuse a network that is too large to train on this machine."""
    shapes, most = network.weight_shapes(), min(_memory() // _BYTES, network.most_weights)
    if sum(map(math.prod, shapes.values())) > _most_weights.get():
        raise _refusal(shapes, f"about as many as the checkpoint holds, {_most_weights.get() - _FEW:,}")
    if sum(map(math.prod, shapes.values())) > most:
        raise _refusal(shapes, f"{most:,} at most, which this machine's memory and graphs hold")


@contextmanager
def memory_for(policy_id: str, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[None]:
    """Refuse a policy whose network exceeds the memory that other networks leave."""
    try:
        yield
    except MemoryError as error:
        refusal = _refusal(shapes, "fewer, because memory ends")
        raise ConfigError(f"policies[{policy_id!r}], {refusal}") from error


def _refusal(shapes: Mapping[str, tuple[int, ...]], rule: str) -> ConfigError:
    largest = max(shapes, key=lambda name: math.prod(shapes[name]))
    weights = sum(map(math.prod, shapes.values()))
    return ConfigError(
        f"model: a network of {weights:,} weights, {largest!r} {list(shapes[largest])} among them, expected {rule}; "
        "lower fcnet_hiddens, lstm_cell_size, conv_filters or mixing_embed_dim, or use smaller observations"
    )


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return UNKNOWN
