"""`Tracker`: follows a run of `Algorithm.learn`. The run folder, the progress table and TensorBoard are trackers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_log = logging.getLogger("menv.tracking")


class Tracker:
    """Follows a run; each method does nothing, so override what you need.

        class Printer(Tracker):
            def result(self, result):
                print(result["episode_reward_mean"])

        PPO(env="CartPole-v1").learn(50_000, trackers=[Printer()])

    An exception of a tracker does not end the training. The first one is logged as a warning.
    """

    def begin(self, algorithm: Any) -> None:
        """Called before the first iteration."""

    def result(self, result: Mapping[str, Any]) -> None:
        """Called with the result of each iteration."""

    def saved(self, folder: Path) -> None:
        """Called when a checkpoint was written."""

    def end(self, reason: str) -> None:
        """Called once at the end; `reason` is a sentence, such as "num_env_steps_sampled reached 50,000"."""


class Trackers(Tracker):
    """Calls several trackers; logs the first exception of each one, but a full disk once in all, and carries on."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers
        self._warned: set[Any] = set()

    def begin(self, algorithm: Any) -> None:
        """Call `begin` of each tracker."""
        self._each("begin", algorithm)

    def result(self, result: Mapping[str, Any]) -> None:
        """Call `result` of each tracker."""
        self._each("result", result)

    def saved(self, folder: Path) -> None:
        """Call `saved` of each tracker."""
        self._each("saved", folder)

    def end(self, reason: str) -> None:
        """Call `end` of each tracker."""
        self._each("end", reason)

    def warn(self, call: str, error: Exception) -> None:
        """Log the exception of a call; later ones of this call are not, and a full disk is logged once in all."""
        keys = {call, getattr(error, "errno", None) or call}
        if not keys & self._warned:
            _log.warning(
                "%s raised %s: %s; training continues, later errors of it are not logged",
                call, type(error).__name__, error,
            )  # fmt: skip
        self._warned |= keys

    def _each(self, method: str, *args: Any) -> None:
        for tracker in self._trackers:
            try:
                getattr(tracker, method)(*args)
            except Exception as error:
                self.warn(f"{type(tracker).__name__}.{method}", error)
