"""How often each sub-environment raised since its last finished episode, and when that is too often.

`local_envs` notes every exception of a sub-environment here before it makes a new one. It keeps the first cause of a
series, which is what the error that ends the run is raised from.
"""

from __future__ import annotations

import traceback
from typing import NamedTuple

from menv.errors import EnvCrashError, WorkerLostError

MOST = 3
"""So many crashes of one sub-environment without a finished episode, or failed replacements in a row, end the run."""
PAUSES = (0.0, 0.05, 0.25)
"""Seconds to wait before each attempt to make a replacement."""
# Causes whose tracebacks are kept as they are; those of more sub-environments at once become text.
_LIVE = 8


class _Series(NamedTuple):
    """Crashes of one sub-environment without a finished episode in between: the first one, and how many."""

    text: str
    error: BaseException
    times: int


class CrashLog:
    """The crashes of the sub-environments of one adapter."""

    def __init__(self, *, restarts: bool, creator: bool) -> None:
        """Begin without crashes.

        Args:
            restarts: Whether sub-environments that raise are to be replaced.
            creator: Whether there is something to make the replacement with.
        """
        self._restarts = restarts
        self._creator = creator
        self._series: dict[int, _Series] = {}

    def note(self, index: int, text: str, error: BaseException) -> None:
        """Note a crash.

        Args:
            index: The sub-environment.
            text: Begins the message: where it was, and what was raised.
            error: What was raised.

        Raises:
            EnvCrashError: It is not to be replaced, cannot be, or has been too often; the first cause is its own.
        """
        before = self._series.get(index)
        series = _Series(text, error, 1) if before is None else before._replace(times=before.times + 1)
        if before is None and len(self._series) >= _LIVE:
            _write_down(error)
        self._series[index] = series
        if not self._restarts:
            raise self.error(index, "")
        if not self._creator:
            raise self.error(index, "", " (without make_env no other can be made)")
        if series.times >= MOST:
            raise self.error(
                index,
                f", the first of {series.times} times without a finished episode in between, expected fewer than "
                f"{MOST}",
            )

    def finished(self, index: int) -> None:
        """Note that a sub-environment finished an episode."""
        if self._series:
            self._series.pop(index, None)

    def no_other(self, index: int, last: BaseException) -> EnvCrashError:
        """Return the error for a sub-environment whose replacements fail, `last` the latest of them."""
        return self.error(
            index,
            f", and {MOST} replacements could not be made or reset, the last because of {type(last).__name__}: {last}",
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
