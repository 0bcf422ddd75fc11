"""What a learner and the torch acting back-end ask of a network, whatever its layers are."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from menv.acting.action_head import ILLEGAL


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


def masked(inputs: Tensor, mask: Tensor | None) -> Tensor:
    """Return distribution inputs [N, D] without the choices that mask [N, M] forbids; numbers lie behind choices."""
    if mask is None:
        return inputs
    choices = mask.shape[1]
    if choices == inputs.shape[1]:
        return torch.where(mask, inputs, ILLEGAL)
    return torch.cat((torch.where(mask, inputs[:, :choices], ILLEGAL), inputs[:, choices:]), 1)
