"""Rule-based baselines of the traffic environment: lights that switch after a fixed time, and drivers that can stop."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from menv.envs.traffic import AGE_LIMIT, MAX_SPEED, SIGHT

BRAKE, KEEP, ACCELERATE = 0, 1, 2


def fixed_cycle(observation: npt.NDArray[np.float32], green_steps: int = 8) -> int:
    """Return the action of a light that switches after a fixed time.

    Args:
        observation: float32 [9] of a light.
        green_steps: Steps of green for either direction, at most `AGE_LIMIT`.
    """
    green = int(observation[2] + observation[3] > 0)
    age = float(observation[4]) * AGE_LIMIT
    return green if age < green_steps else 1 - green


def careful_driver(observation: npt.NDArray[np.float32]) -> int:
    """Return the action of a car that is always slow enough to stop in time.

    It never runs into the car ahead and never enters a crossing at red.

    Args:
        observation: float32 [8] of a car.
    """
    speed = round(float(observation[0]) * MAX_SPEED)
    free = _cells_before(observation[6])
    if observation[4] or observation[5]:
        before_crossing = _cells_before(observation[2])
        # Too fast to stop at amber means near enough to pass in time.
        if observation[5] or before_crossing >= _braking_cells(speed - 1):
            free = min(free, before_crossing)
    for action in (ACCELERATE, KEEP):
        if _braking_cells(min(MAX_SPEED, speed + action - 1)) <= free:
            return action
    return BRAKE


def _cells_before(distance: float) -> int:
    return round(float(distance) * SIGHT) - 1


def _braking_cells(speed: int) -> int:
    """Return the cells driven at `speed` now and then with the brake on until the car stands."""
    return max(0, speed) * (max(0, speed) + 1) // 2
