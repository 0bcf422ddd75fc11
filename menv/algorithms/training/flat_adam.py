"""Adam over one flat parameter tensor whose layers are views.

Learners hold one each. Updating all layers at once takes a handful of operations instead of a handful
a layer, and `torch.optim` is never imported: constructing its Adam pulls in 800 modules, more than a
second at process start. Nothing here knows networks or losses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from menv.algorithms.config.setting import LARGEST, LEARNERS, check_stored
from menv.algorithms.networks.torch_runtime import CPU, array_of
from menv.errors import ConfigError
from menv.interrupts import updates

_BETAS = 0.9, 0.999


class FlatAdam:
    """The parameters of one network and their optimizer (Kingma & Ba 2015, algorithm 1).

    `params` are leaf tensors by name, views of one flat tensor, and so are their gradients. `lr` may be set between
    steps. `grad_clip` limits the gradient's global L2 norm; `skipped` counts gradients that were not finite.
    """

    def __init__(
        self,
        weights: Mapping[str, npt.NDArray[np.float32]],
        lr: float,
        *,
        grad_clip: float | None = None,
        eps: float = 1e-5,
        device: torch.device = CPU,
    ) -> None:
        self.lr = lr
        self.steps = 0
        self.skipped = 0
        self._grad_clip = grad_clip
        self._eps = eps
        total = sum(value.size for value in weights.values())
        self._flat = torch.empty(total, device=device, dtype=torch.float32)
        self._grad = torch.zeros(total, device=device, dtype=torch.float32)
        self._mean = torch.zeros(total, device=device, dtype=torch.float32)
        self._square = torch.zeros(total, device=device, dtype=torch.float32)
        self.params: dict[str, Tensor] = {}
        start = 0
        for name, value in weights.items():
            part = slice(start, start + value.size)
            param = self._flat[part].view(value.shape).requires_grad_()
            param.grad = self._grad[part].view(value.shape)
            self.params[name] = param
            start = part.stop
        self.set_weights(weights)

    @torch.no_grad()
    def step(self, *, sound: bool = True) -> Tensor:
        """Update all parameters from the gradients that `backward` added up, and clear these.

        A gradient that is not finite, as of a reward of 1e38, would spoil the parameters for good: it is dropped and
        counted in `skipped`.
        """
        grad = self._grad
        if updates.due:
            # The steps before this one are complete, with all that belongs to them.
            grad.zero_()
            updates.check()
        norm: Tensor = torch.linalg.vector_norm(grad)
        length = norm.item()
        if not (sound and math.isfinite(length)):
            self.skipped += 1
            grad.zero_()
            return norm
        self.steps += 1
        if self._grad_clip is not None and length + 1e-6 > self._grad_clip:
            grad.mul_(self._grad_clip / (length + 1e-6))
        beta1, beta2 = _BETAS
        self._mean.lerp_(grad, 1.0 - beta1)
        self._square.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
        # The second moment's bias correction is applied to the scalars.
        unbias = math.sqrt(1.0 - beta2**self.steps)
        root = self._square.sqrt().add_(self._eps * unbias)
        self._flat.addcdiv_(self._mean, root, value=-self.lr * unbias / (1.0 - beta1**self.steps))
        grad.zero_()
        return norm

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the parameters by name."""
        return {name: array_of(param.detach()).copy() for name, param in self.params.items()}

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Copy `weights` in; the moments stay."""
        found = {name: tuple(np.shape(value)) for name, value in weights.items()}
        wanted = {name: tuple(param.shape) for name, param in self.params.items()}
        wrong = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        if wrong:
            raise ConfigError(
                f"learner weights: {wrong[0]!r} has shape {found.get(wrong[0])}, expected "
                f"{wanted.get(wrong[0])}; give the weights of the same network"
            )
        self.take(weights)

    @torch.no_grad()
    def take(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Copy the weights of some parameters in; the moments stay."""
        for name, value in weights.items():
            self.params[name].copy_(torch.from_numpy(np.array(value, np.float32)))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the moments [parameters], the number of updates [] and of gradients that were dropped []."""
        return {
            "adam_mean": array_of(self._mean).copy(),
            "adam_square": array_of(self._square).copy(),
            "adam_steps": np.array(self.steps, np.int64),
            "adam_skipped": np.array(self.skipped, np.int64),
        }

    def check_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Refuse a state that `set_state` could not restore; nothing changes."""
        found = np.shape(state["adam_mean"]), np.shape(state["adam_square"])
        wanted = tuple(self._flat.shape)
        if found != (wanted, wanted):
            raise ConfigError(
                f"optimizer state: moments of shapes {found}, expected {wanted}; "
                "load the state of the same network"
            )
        check_stored(LEARNERS, "adam_mean", state["adam_mean"], "f", -LARGEST, LARGEST)
        check_stored(LEARNERS, "adam_square", state["adam_square"], "f", 0, math.inf)
        check_stored(LEARNERS, "adam_steps", state["adam_steps"])
        check_stored(LEARNERS, "adam_skipped", state["adam_skipped"])

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state`."""
        self.check_state(state)
        self._mean.copy_(torch.from_numpy(np.array(state["adam_mean"], np.float32)))
        self._square.copy_(torch.from_numpy(np.array(state["adam_square"], np.float32)))
        self.steps = int(state["adam_steps"])
        self.skipped = int(state["adam_skipped"])
