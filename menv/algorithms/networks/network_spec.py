"""What the algorithms ask of the description of a network, whatever its layers are.

A recipe makes one for each policy; `menv.algorithms.network_groups` builds the acting back-ends from it and a learner
the network that it trains. Specs compare equal if their networks differ in nothing but weights. A spec is made
without torch and without onnx; its methods import what they need.
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
from menv.inference.action_heads import ActionHead

if TYPE_CHECKING:
    from torch import Tensor

    from menv.algorithms.networks.stock_spec import UnitWeights


def obs_column(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return observations [N, F] as networks read them: bytes stay bytes, all else is float32."""
    return column if column.dtype == np.uint8 else np.asarray(column, np.float32)


class NetworkSpec(Protocol):
    """The architecture that the policies of a cohort share."""

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
        """Return weights to begin with; the same seed gives the same."""

    def unit_weights(self) -> UnitWeights:
        """Return the weights that follow the unit in which rewards are paid."""

    def torch_network(self, params: Mapping[str, Any]) -> TorchNetwork:
        """Return the network over `params`, a tensor for each name, whose current values every call reads."""

    def graphs(self, defaults: Mapping[str, npt.NDArray[np.float32]]) -> ActingGraphs | None:
        """Return what builds its acting graphs, None if only torch can run it.

        Args:
            defaults: Weights that a graph of a single policy holds unless it is fed others.
        """


# SEAM menv.algorithms.networks.torch_network
# What a learner and the torch acting back-end ask of a network, whatever its layers are.


class TorchNetwork(Protocol):
    """A policy and a value function over the same parameters, as plain functions of tensors.

    A recurrent network is told the `state` [B, S] before B sequences, which the rows are, one after the other and all
    of N / B rows; B = N is one step of each row. Without a state the rows are independent of each other.
    Observations are float32, or uint8 where they are images of bytes.
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


class RecurrentNetwork(TorchNetwork, Protocol):
    """A network that remembers."""

    def step(self, obs: Tensor, mask: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return distribution inputs and the state [B, S] after the sequences."""


# SEAM menv.algorithms.networks.network_size
# How much memory a network takes, before any of it is taken.
#
# `menv.algorithms.network_groups` asks for every policy. It knows shapes, and nothing of what they mean.


_BYTES = 16
"""Of each weight while it is learned: itself, its gradient, and Adam's two moments."""
_OF_A_GRAPH = 2**29 - 2**18
"""Weights: a graph ends at 2 GiB, and Python with one that is larger."""
_UNKNOWN = 2**40
"""Bytes of memory where the system does not tell, so that what no machine could hold is refused there too."""
_FEW = 2**22
_most_weights = ContextVar("most_weights", default=math.inf)


@contextmanager
def weights_in_file(count: int) -> Iterator[None]:
    """Refuse, in here, networks of many more weights than a checkpoint holds: its settings do not belong to them."""
    before = _most_weights.set(count + _FEW)
    try:
        yield
    finally:
        _most_weights.reset(before)


def check_size(shapes: Mapping[str, tuple[int, ...]], *, stock: bool = True) -> None:
    """Refuse a network that cannot be learned on this machine.

    Args:
        shapes: Those of its weights, by name.
        stock: Whether it is written as a graph with all of its weights.

    Raises:
        ConfigError: It takes more memory than there is, or than a graph can have.
    """
    most = min(_memory() // _BYTES, _OF_A_GRAPH if stock else _UNKNOWN)
    if sum(map(math.prod, shapes.values())) > _most_weights.get():
        raise _refusal(shapes, f"about as many as the checkpoint holds, {_most_weights.get() - _FEW:,}")
    if sum(map(math.prod, shapes.values())) > most:
        raise _refusal(shapes, f"{most:,} at most, which this machine's memory and graphs hold")


@contextmanager
def memory_for(policy_id: str, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[None]:
    """Let it be told of a policy's network where memory ends that others have taken.

    Raises:
        ConfigError: There was not enough of it.
    """
    try:
        yield
    except MemoryError as error:
        told = _refusal(shapes, "fewer, because memory ends")
        raise ConfigError(f"policies[{policy_id!r}], {told}") from error


def _refusal(shapes: Mapping[str, tuple[int, ...]], rule: str) -> ConfigError:
    largest = max(shapes, key=lambda name: math.prod(shapes[name]))
    weights = sum(map(math.prod, shapes.values()))
    return ConfigError(
        f"model: a network of {weights:,} weights, {largest!r} {list(shapes[largest])} among them, expected {rule}; "
        "lower fcnet_hiddens, lstm_cell_size, conv_filters or mixing_embed_dim, or take smaller observations"
    )


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return _UNKNOWN
