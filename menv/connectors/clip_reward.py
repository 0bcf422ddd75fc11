"""Clipped rewards for learning; metrics keep the environment's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def clip_reward(rewards: npt.NDArray[Any], limit: bool | float) -> npt.NDArray[Any]:
    """Return [N] clipped rewards.

    Args:
        rewards: [N].
        limit: True takes the signs; a number clips to plus and minus it.
    """
    most = float(limit)
    clipped: npt.NDArray[Any] = np.sign(rewards) if limit is True else np.clip(rewards, -most, most)
    return clipped
