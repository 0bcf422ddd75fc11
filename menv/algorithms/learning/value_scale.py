"""The mean and the unit of values, which follow the value targets of a policy.

Returns may be of any size, and what a value network gives at first is about 1: until its last layer has grown, the
policy learns from advantages that are hardly better than returns, and the value loss outweighs everything else in the
gradient. `ppo_learner` holds one of these; it knows no networks, only the weight that these read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_DECAY = 0.9
_SETTLED = 1000
_MOST = float(np.finfo(np.float32).max)


class ValueScale:
    """Running mean and standard deviation of value targets (Yu et al. 2022, arXiv:2103.01955, section 5.1).

    Both are averages over train batches, each batch weighing 0.99 of the next one, without the weight of a beginning
    that never was (as in Kingma & Ba 2015, section 3).

    Args:
        weight: [2] the weight `VALUE_SCALE` of a network, which is written.
        least: The smallest unit, for targets that hardly vary.

    Attributes:
        mean: Of the targets so far; 0 before any.
        unit: Their standard deviation; 1 before any.
    """

    def __init__(self, weight: Tensor, least: float) -> None:
        self._weight = weight
        self._least = least
        self._batches = 0
        self.mean, self.unit, self._variance = 0.0, 1.0, 1.0
        self.read()

    def follow(self, targets: npt.NDArray[Any]) -> None:
        """Take the value targets [N] of a train batch into account, unless one is not finite."""
        mean = float(np.mean(targets, dtype=np.float64))
        variance = float(np.var(targets, dtype=np.float64))
        if not (abs(mean) < _MOST and variance < _MOST**2):
            return
        self._batches += 1
        # The first one counts in full: nothing was known before it.
        share = (1.0 - _DECAY) / (1.0 - _DECAY**self._batches)
        apart = mean - self.mean if self._batches > 1 else 0.0
        self.mean = mean - (1.0 - share) * apart
        # The variance of both together: that within each, and that between their means.
        self._variance += share * (variance - self._variance) + share * (1.0 - share) * apart**2
        self.unit = max(self._least, math.sqrt(self._variance))
        with torch.no_grad():
            self._weight.copy_(torch.tensor([self.mean, self.unit]))

    def read(self) -> None:
        """Go on from the weight, which somebody else has written."""
        self.mean, self.unit = (float(number) for number in self._weight.tolist())
        self._variance = self.unit**2
        if (self.mean, self.unit) != (0.0, 1.0):
            # Values that were learned in this unit must not be read in another one all at once.
            self._batches = max(self._batches, _SETTLED)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what the next unit depends on: batches, mean, variance, as an array [3]."""
        return {"value_scale": np.array([self._batches, self.mean, self._variance], np.float64)}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `state` returned."""
        batches, self.mean, self._variance = np.asarray(state["value_scale"], np.float64).tolist()
        self._batches = int(batches)
        self.unit = max(self._least, math.sqrt(self._variance)) if self._batches else 1.0
