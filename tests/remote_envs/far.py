"""Environments that are trained in other processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from menv.env_context import EnvContext
from tests.worlds import Alone


class Counting(Alone):
    """An episode of ten steps; what it shows depends on its seed. Settings say what else happens.

    Settings: `sleep`, seconds a step; `killed_in`, the step of its life in which sub-environment 1 ends its process,
    for the first time only; `marker`, a file that says so.
    """

    observation_space, length = gym.spaces.Box(0, 1, (3,), np.float32), 10

    def __init__(self, context: EnvContext) -> None:
        super().__init__(context)
        self.context = context
        self.level = self.steps = 0

    def see(self) -> Any:
        return self.np_random.random(3).astype(np.float32)

    def pay(self, action: Any) -> float:
        time.sleep(self.context.get("sleep", 0.0))
        self.steps += 1
        if self.context.vector_index == 1 and self.steps == self.context.get("killed_in"):
            marker = Path(self.context["marker"])
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return float(action)

    def set_level(self, level: int, more: int = 0) -> tuple[int, int]:
        """Change something, and tell where that was."""
        self.level = level + more
        return self.level, self.context.vector_index

    def place(self) -> dict[str, Any]:
        """Tell where this is."""
        return {**vars(self.context), "pid": os.getpid(), "settings": dict(self.context)}

    def fail(self) -> None:
        """Raise."""
        raise LookupError("no such level")


class Stuck(Counting):
    """Cannot be closed where it has played, but for sub-environment 0."""

    def close(self) -> None:
        if self.context.vector_index == 1 and self.steps:
            raise RuntimeError("the door is stuck")
