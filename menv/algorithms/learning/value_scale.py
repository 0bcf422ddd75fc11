"""The mean and the unit in which a value network learns, which follow the value targets of a policy.

Returns may be of any size, and what a value network gives at first is about 1: until its last layer has grown, the
policy learns from advantages that are hardly better than returns, and the value loss outweighs everything else in the
gradient. `ppo_learner` holds one of these where the network is a stock one; outside of `learning`, weights are those
of values in the environment's own unit, and nobody else knows of another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_DECAY = 0.99
_LEAST_UNIT = 1e-4
_FARTHEST = 4.0
"""Errors are of no more units than this, in the root of their mean square."""
_MOST = float(np.finfo(np.float32).max)


class ValueScale:
    """Running mean and standard deviation of value targets; the last layer keeps its outputs when they move.

    The method is Pop-Art (van Hasselt et al. 2016, arXiv:1602.07714, section 2). Mean and square are averages over
    train batches, each batch weighing 0.99 of the next one, without the weight of a beginning that never was (as in
    Kingma & Ba 2015, section 3).

    Args:
        weight: [F, 1] of the layer that gives the values; it is written.
        bias: [1] likewise.

    Attributes:
        mean: Of the targets so far; 0 before any.
        unit: Their standard deviation, unless values are further off; 1 before any.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self._weight, self._bias = weight, bias
        self._batches = 0
        self.mean, self.unit, self._variance = 0.0, 1.0, 1.0

    @np.errstate(over="ignore", invalid="ignore")
    def follow(self, targets: npt.NDArray[Any], values: npt.NDArray[Any] | None) -> None:
        """Take a train batch into account, unless one of its numbers is not finite.

        Args:
            targets: [N] of the values.
            values: [N] what the network gives now, if that is known.
        """
        mean, variance = (float(of(targets, dtype=np.float64)) for of in (np.mean, np.var))
        off = 0.0 if values is None else math.sqrt(_mean_square(targets, values))
        if not (abs(mean) < _MOST and variance < _MOST**2 and off < _MOST):
            return
        self._batches += 1
        # The first one counts in full: nothing was known before it.
        share = (1.0 - _DECAY) / (1.0 - _DECAY**self._batches)
        apart = mean - self.mean if self._batches > 1 else 0.0
        self.mean = mean - (1.0 - share) * apart
        # The variance of both together: that within each, and that between their means.
        self._variance += share * (variance - self._variance) + share * (1.0 - share) * apart**2
        self.unit = max(_LEAST_UNIT, math.sqrt(self._variance), off / _FARTHEST)

    @np.errstate(over="ignore")
    def scaled(self, targets: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return what values in this unit are to be learned from, shape [N]."""
        return np.asarray((np.asarray(targets, np.float64) - self.mean) / self.unit, np.float32)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Let the network give values in this unit in here, and in the environment's own one again afterwards."""
        with torch.no_grad():
            self._weight.div_(self.unit)
            self._bias.sub_(self.mean).div_(self.unit)
        try:
            yield
        finally:
            with torch.no_grad():
                self._weight.mul_(self.unit)
                self._bias.mul_(self.unit).add_(self.mean)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what the next update depends on: batches, mean, variance and unit, as an array [4]."""
        return {"value_scale": np.array([self._batches, self.mean, self._variance, self.unit], np.float64)}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `state` returned, unless it has nothing of this."""
        if "value_scale" not in state:
            return
        numbers = np.asarray(state["value_scale"], np.float64).tolist()
        self._batches = int(numbers[0])
        self.mean, self._variance, self.unit = numbers[1:]


def _mean_square(targets: npt.NDArray[Any], values: npt.NDArray[Any]) -> float:
    """Return that of the errors of [N] values."""
    return float(np.mean(np.square(np.subtract(targets, values, dtype=np.float64))))
