"""Weights that tests of acting and learning share: first weights are nearly the same for every row, these are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def lively_weights(spec: Any, seed: int = 0, *, shaken_by: float = 0.3) -> dict[str, npt.NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    weights: dict[str, npt.NDArray[np.float32]] = {
        name: value + np.float32(shaken_by) * rng.standard_normal(value.shape, np.float32)
        for name, value in spec.first_weights(seed).items()
    }
    if "epsilon" in weights:
        weights["epsilon"][:] = 0.2 + 0.2 * (seed % 4)
    return weights
