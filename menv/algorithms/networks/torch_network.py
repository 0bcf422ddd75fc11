"""What a learner and the torch acting back-end ask of a network, whatever its layers are."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class TorchNetwork(Protocol):
    """A policy and a value function over the same parameters, as plain functions of tensors.

    Observations are float32, or uint8 where they are images of bytes.
    """

    @property
    def obs_size(self) -> int:
        """F, numbers in a flat observation."""

    def dist_inputs(self, obs: Tensor, mask: Tensor | None) -> Tensor:
        """Return [N, D] distribution inputs after masking, from obs [N, F] and mask [N, M]."""

    def values(self, obs: Tensor) -> Tensor:
        """Return [N] state values."""

    def both(self, obs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return distribution inputs and values in one pass."""
