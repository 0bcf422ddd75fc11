"""Scaling of learning targets: `ReturnNormalizer` for value targets (PPO), `RewardScale` for rewards (DQN, QMIX).

A fresh network outputs numbers of about 1, while returns may have any size. Learners scale the last layers, so that
a task is learned equally well with rewards of 0.01 or 10,000. Outside the learners, weights always give values in the
environment's unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from menv.algorithms.config.setting import LEARNERS, check_stored
from menv.errors import ConfigError

_DECAY = 0.99
_LEAST_SHARE = 1e-4
"""The least unit as a share of the mean, which float32 resolves."""
_FARTHEST = 4.0
"""Errors are of no more units than this, in the root of their mean square."""
_FARTHEST_EXPONENT = 64
"""Weights of more than 2**64 would soon be infinite."""
_MOST = float(np.finfo(np.float32).max)


class ReturnNormalizer:
    """Running mean and standard deviation of value targets; the last layer keeps its outputs when they move.

    The method is Pop-Art (van Hasselt et al. 2016, arXiv:1602.07714, section 2). Mean and square are averages over
    train batches, each batch weighing 0.99 of the next one, without the weight of a beginning that never was (as in
    Kingma & Ba 2015, section 3).

    Args:
        weights: The weights that the values are proportional to; they are written. Without any, `learning` changes
            nothing.
        bias: [1] the one among them that is added to every value; None if there is none. Without it targets are
            divided by the unit, and their mean stays.

    Attributes:
        mean: Of the targets so far; 0 before any.
        unit: Their standard deviation, unless values are further off; 1 before any.
    """

    def __init__(self, weights: Sequence[Tensor], bias: Tensor | None) -> None:
        self._weights, self._bias = weights, bias
        self._batches = 0
        self.mean, self.unit, self._variance = 0.0, 1.0, 0.0

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
        # As long as all targets and values are 0, any unit is right.
        self.unit = max(_LEAST_SHARE * abs(self.mean), math.sqrt(self._variance), off / _FARTHEST) or 1.0

    @property
    def shift(self) -> float:
        """The number that is subtracted from values before they are divided by the unit."""
        return 0.0 if self._bias is None else self.mean

    @np.errstate(over="ignore")
    def scaled(self, targets: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return what values in this unit are to be learned from, shape [N]."""
        return np.asarray((np.asarray(targets, np.float64) - self.shift) / self.unit, np.float32)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Let the network give values in this unit in here, and in the environment's own one again afterwards."""
        with torch.no_grad():
            if self._bias is not None:
                self._bias.sub_(self.mean)
            for weight in self._weights:
                weight.div_(self.unit)
        try:
            yield
        finally:
            with torch.no_grad():
                for weight in self._weights:
                    weight.mul_(self.unit)
                if self._bias is not None:
                    self._bias.add_(self.mean)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what the next update depends on: batches, mean, variance and unit, as an array [4]."""
        return {"value_scale": np.array([self._batches, self.mean, self._variance, self.unit], np.float64)}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state`, if it has this entry."""
        if "value_scale" not in state:
            return
        numbers = np.asarray(state["value_scale"], np.float64).tolist()
        self._batches = int(numbers[0])
        self.mean, self._variance, self.unit = numbers[1:]


class RewardScale:
    """The unit in which Q-values are learned: a power of two near the root mean square of n-step returns other than 0.

    Multiplying by a power of two is exact: weights are bit-identical after they have changed to another unit and back,
    and a run whose rewards are all multiplied by 2**k takes the same actions.

    Attributes:
        unit: The power of two in use; 1 before one is chosen.
    """

    def __init__(self) -> None:
        self.unit = 1.0
        self._is_chosen = False
        self._count = 0
        self._square = self._least = self._most = 0.0

    @property
    def span(self) -> float:
        """From the least to the largest return so far, 0 included, in this unit; 1 before any."""
        return (self._most - self._least) / self.unit if self._count else 1.0

    def follow(self, returns: npt.NDArray[Any], capacity: int) -> None:
        """Take n-step returns [N] into account; older ones count less once there are more than `capacity`."""
        paid = np.asarray(returns, np.float64)
        paid = paid[(paid != 0.0) & (np.abs(paid) < _MOST)]
        if len(paid):
            self._count = min(self._count + len(paid), max(capacity, len(paid)))
            self._square += (float(np.mean(paid * paid)) - self._square) * len(paid) / self._count
            self._least, self._most = min(self._least, float(paid.min())), max(self._most, float(paid.max()))

    def renew(self) -> bool:
        """Choose a unit once there are returns, and another one where they are beyond twice or half of it."""
        size = math.sqrt(self._square)
        if not size or (self._is_chosen and 0.5 <= size / self.unit <= 2.0):
            return False
        fraction, exponent = math.frexp(size)
        exponent -= fraction < math.sqrt(0.5)
        self.unit = math.ldexp(1.0, max(-_FARTHEST_EXPONENT, min(exponent, _FARTHEST_EXPONENT)))
        self._is_chosen = True
        return True

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the unit, 0 before one is chosen; returns counted, their mean square, least and most: an array [5]."""
        numbers = [self.unit * self._is_chosen, self._count, self._square, self._least, self._most]
        return {"reward_unit": np.array(numbers, np.float64)}

    def check_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Refuse what no run can have reached."""
        numbers = np.asarray(state["reward_unit"], np.float64).ravel()
        check_stored(LEARNERS, "reward_unit", numbers[1:3], "f", 0, _MOST**2)
        check_stored(LEARNERS, "reward_unit", numbers[3:], "f", -_MOST, _MOST)
        unit = float(numbers[0]) if len(numbers) == 5 else math.nan
        if unit != 0.0 and (math.frexp(unit)[0] != 0.5 or abs(math.log2(unit)) > _FARTHEST_EXPONENT):
            raise ConfigError(
                f"{LEARNERS}: reward_unit is {numbers.tolist()}, expected a power of two and four more numbers; load "
                "another checkpoint"
            )

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state`."""
        unit, count, self._square, self._least, self._most = state["reward_unit"].tolist()
        self.unit, self._is_chosen, self._count = unit or 1.0, bool(unit), int(count)


def _mean_square(targets: npt.NDArray[Any], values: npt.NDArray[Any]) -> float:
    return float(np.mean(np.square(np.subtract(targets, values, dtype=np.float64))))
