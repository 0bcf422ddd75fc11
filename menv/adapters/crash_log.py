"""How often each sub-environment raised without making progress, and when that is too often.

`local_envs` notes every exception of a sub-environment here before it makes a new one. It keeps the first cause of a
series, which is what the error that ends the run is raised from.
"""

from __future__ import annotations

import traceback
from typing import NamedTuple

from menv.errors import EnvCrashError, WorkerLostError

TOLERATED = 2
"""How many crashes of one sub-environment in a row, none with progress in between, do not end the run by default."""
PROGRESS = 10
"""An episode of so many env steps is progress, also if it ends with a crash."""
PAUSES = (0.0, 0.05, 0.25)
"""Seconds to wait before each attempt to make a replacement; when all have failed the run ends."""
# Causes whose tracebacks are kept as they are; those of more sub-environments at once become text.
_LIVE = 8


class _Series(NamedTuple):
    """Crashes of one sub-environment without progress in between: the first one, and how many."""

    text: str
    error: BaseException
    times: int


class CrashLog:
    """The crashes of the sub-environments of one adapter."""

    def __init__(self, *, tolerated: int | None, creator: bool) -> None:
        """Begin without crashes.

        Args:
            tolerated: Crashes in a row without progress that do not end the run; None replaces no sub-environment.
            creator: Whether there is something to make the replacement with.
        """
        self._tolerated = tolerated
        self._creator = creator
        self._series: dict[int, _Series] = {}

    def note(self, index: int, text: str, error: BaseException, steps: int) -> None:
        """Note a crash.

        Args:
            index: The sub-environment.
            text: Begins the message: where it was, and what was raised.
            error: What was raised.
            steps: Env steps of the episode that it ended, 0 in a reset.

        Raises:
            EnvCrashError: It is not to be replaced, cannot be, or has been too often; the first cause is its own.
        """
        progress = steps >= PROGRESS
        before = None if progress else self._series.get(index)
        new = _Series(text, error, 0 if progress else 1)
        series = new if before is None else before._replace(times=before.times + 1)
        if before is None and len(self._series) >= _LIVE:
            _write_down(error)
        self._series[index] = series
        if self._tolerated is None:
            raise self.error(index, "")
        if not self._creator:
            raise self.error(index, "", " (without make_env no other can be made)")
        if series.times > self._tolerated:
            raise self.error(
                index,
                f", the first of {series.times} crashes in a row in reset or in the first {PROGRESS} env steps, "
                f"expected {self._tolerated} at most (num_consecutive_env_failures_tolerance)",
            )

    def finished(self, index: int) -> None:
        """Note that a sub-environment finished an episode."""
        if self._series:
            self._series.pop(index, None)

    def no_other(self, index: int, last: BaseException) -> EnvCrashError:
        """Return the error for a sub-environment whose replacements fail, `last` the latest of them."""
        return self.error(
            index,
            f", and {len(PAUSES)} replacements could not be made or reset, the last because of "
            f"{type(last).__name__}: {last}",
        )

    def error(self, index: int, more: str, hint: str = "") -> EnvCrashError:
        """Return the error that ends the run, with the first cause of the series as its own."""
        series = self._series[index]
        lost = isinstance(series.error, WorkerLostError)
        above = "what is known of its process" if lost else "the environment's own traceback"
        error = EnvCrashError(f"{series.text}{more}; {above} is above{hint}")
        error.__cause__ = series.error
        return error


def _write_down(error: BaseException) -> None:
    """Turn an error's traceback into a note, because its frames keep alive what their callers hold, whole batches."""
    error.add_note("".join(traceback.format_exception(error)))
    error.__traceback__ = error.__cause__ = error.__context__ = None
