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


class Counting(gym.Env[Any, Any]):
    """An episode of ten steps; what it shows depends on its seed. Settings say what else happens.

    Settings: `sleep`, seconds a step; `killed_in`, the step of its life in which sub-environment 1 ends its process,
    for the first time only; `marker`, a file that says so.
    """

    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, context: EnvContext) -> None:
        self.context = context
        self.level = 0
        self.steps = self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.context.get("sleep", 0.0))
        self.steps += 1
        self.t += 1
        if self.context.vector_index == 1 and self.steps == self.context.get("killed_in"):
            marker = Path(self.context["marker"])
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return self._seen(), float(action), self.t == 10, False, {}

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

    def _seen(self) -> Any:
        return self.np_random.random(3).astype(np.float32)


class Stuck(Counting):
    """Cannot be closed where it has played, but for sub-environment 0."""

    def close(self) -> None:
        if self.context.vector_index == 1 and self.steps:
            raise RuntimeError("the door is stuck")
