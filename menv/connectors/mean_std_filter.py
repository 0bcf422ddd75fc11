"""MeanStdObservationFilterAgentConnector: observations normalized by their running mean and standard deviation.

The statistics grow with what agents observe in training. New rows are added when a fragment closes, and before that
each time the rows have doubled: within a fragment equal observations give equal rows, whichever agents wait together.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any, Self

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.connectors.connector import (
    AgentConnector,
    AgentConnectorDataType,
    AgentRows,
    ConnectorContext,
    columns_of,
    is_final,
    keywords,
)
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError
from menv.sample_batch import SampleBatch
from menv.spaces import OutsideSpaceError

Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class RunningMean:
    """Count, mean [F] and sums of squared deviations from the mean [F] of columns, in float64.

    The mean has any length while there are no rows.
    """

    count: int = 0
    mean: Floats = field(default_factory=lambda: np.zeros(0))
    squares: Floats = field(default_factory=lambda: np.zeros(0))

    def merge(self, other: RunningMean) -> None:
        """Add the rows of another one."""
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
        """Return a copy."""
        return type(self)(self.count, self.mean.copy(), self.squares.copy())

    @property
    def variance(self) -> Floats:
        """[F], unbiased; zeros for fewer than two rows."""
        return self.squares / max(self.count - 1, 1)

    def to_state(self) -> dict[str, Any]:
        """Return a JSON value that keeps every bit."""
        return {"count": self.count, "mean": self.mean.tolist(), "squares": self.squares.tolist()}

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Return the object whose state this is; ConfigError if it is not a state."""
        try:
            count, mean, squares = (np.array(state[key], np.float64) for key in ("count", "mean", "squares"))
        except (TypeError, KeyError, ValueError, OverflowError):
            count = mean = squares = np.full(1, np.nan)
        fits = count.shape == () and count >= 0 and count % 1 == 0 and mean.ndim == 1
        finite = np.isfinite(mean).all() and np.isfinite(squares).all()
        if not (fits and mean.shape == squares.shape and finite and (squares >= 0).all()) or (
            count and not mean.size
        ):
            raise ConfigError(
                "statistics: expected a count of at least 0, finite means and as many sums of squares, none of them "
                "negative; pass what to_state returned"
            )
        return cls(int(count), mean, squares)


Rows = npt.NDArray[Any]
_CONSTANT = 1e-12
_ARGUMENTS = ("demean", "destd", "clip")


class FilterStatistics:
    """Statistics in use, of pending rows, and of rows since the last sync.

    Attributes:
        running: In use.
        buffer: Of the rows since `reset_state`, for other filters.
        shift: [F] the mean, float32.
        scale: [F] one over the standard deviation; 1 where a column has not varied.
        pending: Number of pending rows.
        total: [F] sums of their deviations from `shift`.
        squares: [F] sums of the squares of these.
    """

    def __init__(self, running: RunningMean, buffer: RunningMean) -> None:
        self.running = running
        self.buffer = buffer
        self.pending = 0
        self.apply()

    def apply(self) -> None:
        """Compute `shift` and `scale`, and drop the pending rows."""
        variance = self.running.variance
        varied = variance > _CONSTANT
        self.shift = self.running.mean.astype(np.float32)
        self.scale = (1.0 / np.where(varied, np.sqrt(np.where(varied, variance, 1.0)), 1.0)).astype(
            np.float32
        )
        self.total, self.squares = np.zeros(len(self.shift)), np.zeros(len(self.shift))

    def settle(self) -> None:
        """Add the pending rows."""
        count = self.pending
        if not count:
            return
        around = self.total / count
        spread = np.maximum(self.squares - self.total * around, 0.0)
        block = RunningMean(count, self.shift + around, spread)
        self.running.merge(block)
        self.buffer.merge(block)
        self.pending = 0
        self.apply()


class MeanStdObservationFilterAgentConnector(AgentConnector):
    """Subtracts the running mean and divides by the running standard deviation.

    Statistics grow only in training, and of trained policies; in evaluation they are frozen. A copy for evaluation
    shares them.

    Args:
        ctx: The context.
        demean: Whether to subtract the mean.
        destd: Whether to divide by the standard deviation; a column that has not varied is unchanged.
        clip: The largest absolute value of the result; None for no limit.
    """

    at_ends = False

    def __init__(
        self,
        ctx: ConnectorContext | None = None,
        demean: bool = True,
        destd: bool = True,
        clip: float | None = 10.0,
    ) -> None:
        super().__init__(ctx)
        if clip is not None and not clip > 0:
            raise ConfigError(f"{self.name}: clip={clip}, expected a positive number or None; choose one")
        self.demean, self.destd = demean, destd
        self.clip = None if clip is None else float(clip)
        self._applied = FilterStatistics(RunningMean(), RunningMean())

    @property
    def statistics(self) -> RunningMean:
        """The statistics in use."""
        return self._applied.running

    @property
    def applied(self) -> tuple[Rows, Rows]:
        """[F] the subtracted mean and [F] the factor after it, float32; [0] before the first rows.

        Pending rows are not in them. Without `demean` the mean is 0, without `destd` the factor is 1.
        """
        shift, scale = self._applied.shift, self._applied.scale
        return shift if self.demean else np.zeros_like(shift), scale if self.destd else np.ones_like(scale)

    @property
    def buffer(self) -> RunningMean:
        """The rows since `reset_state`."""
        return self._applied.buffer

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with its observation filtered; the statistics grow in training."""
        data = columns_of(self, ac_data)
        obs = np.asarray(data[SampleBatch.NEXT_OBS], np.float32)
        rows = AgentRows(obs.reshape(1, -1), terminated=is_final(data), learning=True)
        self.over_rows(rows)
        data = {**data, SampleBatch.NEXT_OBS: rows.obs.reshape(obs.shape)}
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, data)

    def over_rows(self, rows: AgentRows) -> None:
        """Filter a whole batch; last observations are not counted. OutsideSpaceError for an infinite number or NaN."""
        obs = rows.array()
        applied = self._fit(obs)
        counts = rows.learning and self.is_training and not rows.final
        if counts and not applied.running.count:
            # Deviations from 0 would lose the digits in which large numbers differ; this block is added at once.
            applied.shift = obs[0].astype(np.float32)
        apart = obs - applied.shift
        if counts:
            taken = apart if rows.over is None else apart[~rows.over]
            wide = taken.astype(np.float64)
            # A product with ones is the quickest sum over rows.
            ones = np.ones(len(wide))
            squares = ones @ (wide * wide)
            if not math.isfinite(squares @ squares):
                row = int(np.argmin(np.isfinite(obs).all(1)))
                if not applied.running.count:
                    applied.apply()
                raise OutsideSpaceError(
                    row, "obs: expected finite numbers for the filter of means; bound them"
                )
            # Not in place: arrays that come from Ray are read-only.
            applied.total = applied.total + ones @ wide
            applied.squares = applied.squares + squares
            applied.pending += len(taken)
            if applied.pending >= applied.running.count:
                applied.settle()
                apart = obs - applied.shift
        out = apart if self.demean else obs
        if self.destd:
            out = out * applied.scale
        if self.clip is not None:
            out = np.minimum(np.maximum(out, np.float32(-self.clip)), np.float32(self.clip))
        rows.obs = out

    def space(self, space: gym.Space[Any], width: int) -> tuple[gym.Space[Any], int]:
        """Return both unchanged; ConfigError for images of bytes, which networks scale."""
        if ObsPreprocessor(space).dtype == np.uint8:
            raise ConfigError(
                f"{self.name}: observations are images of bytes, which the network scales; leave the filter out"
            )
        return space, width

    def _fit(self, obs: Rows) -> FilterStatistics:
        applied, width = self._applied, obs.shape[1]
        if len(applied.shift) != width:
            if applied.running.count or applied.pending:
                raise OutsideSpaceError(
                    0, f"obs: expected {len(applied.shift)} numbers for the filter of means, got {width}"
                )
            for part in (applied.running, applied.buffer):
                part.mean, part.squares = np.zeros(width), np.zeros(width)
            applied.apply()
        return applied

    def settle(self) -> None:
        if self.is_training:
            self._applied.settle()

    def apply_changes(self, other: Any) -> None:
        """Add the rows of another filter since its `reset_state`."""
        other._applied.settle()
        self._applied.settle()
        self._applied.running.merge(other.buffer)
        self._applied.apply()

    def copy(self) -> Self:
        """Return an independent copy."""
        copied = copy.deepcopy(self)
        copied._applied = FilterStatistics(RunningMean(), RunningMean())
        copied.sync(self)
        return copied

    def sync(self, other: Any) -> None:
        """Copy another filter's statistics and buffer; pending rows are dropped."""
        other._applied.settle()
        mine = self._applied
        mine.running, mine.buffer, mine.pending = other.statistics.copy(), other.buffer.copy(), 0
        mine.apply()

    def reset_state(self) -> None:
        """Clear the rows since the last call; the statistics stay."""
        self._applied.settle()
        self._applied.buffer = RunningMean()

    def __deepcopy__(self, memo: Any) -> Self:
        """Return a copy that shares the statistics."""
        copied = type(self)(self.ctx, self.demean, self.destd, self.clip)
        copied.is_training = self.is_training
        copied._applied = self._applied
        return copied

    def to_state(self) -> tuple[str, Any]:
        self._applied.settle()
        return "MeanStdObservationFilterAgentConnector", {
            **{name: getattr(self, name) for name in _ARGUMENTS},
            "statistics": self.statistics.to_state(),
            "buffer": self.buffer.to_state(),
        }

    @classmethod
    def from_state(cls, ctx: ConnectorContext, params: Any) -> Self:
        """Return a filter with these statistics; ConfigError if they are invalid."""
        values = keywords(cls.__name__, params, (*_ARGUMENTS, "statistics", "buffer"))
        found = [RunningMean.from_state(values.pop(key)) if key in values else RunningMean()
                 for key in ("statistics", "buffer")]  # fmt: skip
        made = cls(ctx, **values)
        made._applied = FilterStatistics(*found)
        return made
