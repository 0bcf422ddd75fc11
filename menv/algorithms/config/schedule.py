"""Settings that change over the env steps of a run, and `lr_schedule`, which every algorithm of menv has.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.field_checks import FASTEST, LARGEST, shown
from menv.errors import ConfigError

Schedule: TypeAlias = Sequence[Sequence[float]]
"""`[env_steps, value]` pairs in ascending order, interpolated linearly and constant outside."""


@dataclass(frozen=True, kw_only=True)
class LearningConfig(AlgorithmConfig):
    """Settings of an algorithm whose learning rate `lr` may follow a schedule."""

    if TYPE_CHECKING:
        lr: float

    lr_schedule: Schedule | None = None
    """Learning rate over env steps: pairs such as [[0, 1e-3], [100000, 1e-4]], interpolated linearly and constant
    outside. None keeps `lr`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_schedule(self._where, "lr_schedule", self.lr_schedule, most=FASTEST)

    def lr_at(self, env_steps: int) -> float:
        """Return the learning rate after `env_steps` env steps of the run."""
        return value_at(self.lr_schedule, self.lr, env_steps)


def value_at(schedule: Schedule | None, constant: float, env_steps: int) -> float:
    """Return the value of a schedule after `env_steps` env steps, `constant` without one."""
    if schedule is None:
        return float(constant)
    return float(np.interp(env_steps, [point[0] for point in schedule], [point[1] for point in schedule]))


def check_schedule(
    where: str, name: str, schedule: Schedule | None, *, least: float = 0.0, most: float = LARGEST
) -> None:
    """Refuse what is not a schedule of values from `least` to `most`; `where` begins the message."""
    if schedule is None:
        return
    try:
        points = np.asarray(schedule)
    except ValueError:
        points = np.empty(0)
    pairs = points.ndim == 2 and points.shape[1] == 2 and len(points) > 0 and points.dtype.kind in "iuf"
    fits = pairs and (np.abs(points) <= (LARGEST, most)).all() and (np.diff(points[:, 0]) > 0.0).all()
    if not fits or points[:, 1].min() < least:
        values = "values" if least else "values of at least 0"
        raise ConfigError(
            f"{where}: {name} is {shown(schedule)}, expected [env_steps, value] pairs with rising env_steps and "
            f"{values} up to {most:g}; for example [[0, 1e-3], [100000, 1e-4]]"
        )
