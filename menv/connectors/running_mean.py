"""Running means and variances of columns, merged from blocks of rows in any order.

`menv.connectors.mean_std_filter` keeps them. Everything is summed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError

Floats = npt.NDArray[np.float64]
_KEYS = {"count", "mean", "squares"}


class RunningMean:
    """Count, mean and sum of squared deviations of F columns.

    Attributes:
        count: Rows so far.
        mean: [F], of any length while there are no rows.
        squares: [F] sums of squared deviations from the mean.
    """

    def __init__(self, count: int = 0, mean: Floats | None = None, squares: Floats | None = None) -> None:
        self.count = count
        self.mean: Floats = np.zeros(0) if mean is None else mean
        self.squares: Floats = np.zeros(0) if squares is None else squares

    def merge(self, other: RunningMean) -> None:
        """Take in the rows of another one, as if they had come here."""
        if not other.count:
            return
        if not self.count:
            self.count, self.mean, self.squares = other.count, other.mean.copy(), other.squares.copy()
            return
        count = self.count + other.count
        apart = other.mean - self.mean
        self.mean = self.mean + apart * (other.count / count)
        self.squares = self.squares + other.squares + apart * apart * (self.count * other.count / count)
        self.count = count

    def copy(self) -> Self:
        """Return one of its own."""
        return type(self)(self.count, self.mean.copy(), self.squares.copy())

    @property
    def variance(self) -> Floats:
        """[F], without bias; zeros of less than two rows."""
        return self.squares / max(self.count - 1, 1)

    def to_state(self) -> dict[str, Any]:
        """Return what JSON can hold; to the last bit, for it writes floats in full."""
        return {"count": self.count, "mean": self.mean.tolist(), "squares": self.squares.tolist()}

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Return what `to_state` was called on.

        Raises:
            ConfigError: It is no such state.
        """
        if not isinstance(state, Mapping) or state.keys() != _KEYS:
            raise ConfigError(
                f"statistics: expected a dict with {sorted(_KEYS)}; pass what to_state returned"
            )
        count, mean, squares = state["count"], state["mean"], state["squares"]
        columns_fit = _numbers(mean) and _numbers(squares) and len(mean) == len(squares)
        whole = isinstance(count, int) and not isinstance(count, bool) and count >= 0
        if not whole or not columns_fit or any(square < 0 for square in squares) or (count and not mean):
            raise ConfigError(
                "statistics: expected a count of at least 0, finite means and as many sums of squares, none of them "
                "negative; pass what to_state returned"
            )
        return cls(count, np.array(mean, np.float64), np.array(squares, np.float64))


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    )
