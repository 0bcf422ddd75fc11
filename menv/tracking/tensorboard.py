"""Results as curves in TensorBoard: each number of a result is a scalar, at the step that it was reached.

Name `TensorBoardCallbacks("folder")` as `callbacks`, or write results yourself with a `TensorBoardWriter`. Needs the
package tensorboard, when the first result is written. Run folders use the tracker `TensorBoard`.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Mapping
from functools import lru_cache
from os import PathLike
from types import TracebackType
from typing import Any, Self

from menv.callbacks import DefaultCallbacks
from menv.errors import MissingExtraError
from menv.serialization import path_given, writing
from menv.tracking.run_folder import scalars
from menv.tracking.tracker import Tracker


class TensorBoardWriter:
    """One event file in a folder; a context manager that closes it.

    Args:
        logdir: The folder; created when something is written.

    Raises:
        ConfigError: It is no path.
    """

    def __init__(self, logdir: str | PathLike[str]) -> None:
        self._logdir = str(path_given("TensorBoardWriter", logdir))
        self._writer: Any = None

    def write(self, result: Mapping[str, Any], step: int) -> None:
        """Write the numbers of a result; they are in the file when it returns.

        A number's tag is its keys joined by "/", such as `policy_reward_mean/cars`. Lists, texts and numbers that are
        not finite are left out, and what a result of `train()` says twice is written once.

        Args:
            result: Numbers, nested in dicts.
            step: Where on the axis; results of `train()` have `num_env_steps_sampled`.

        Raises:
            MissingExtraError: tensorboard is not installed.
            NotWrittenError: The folder cannot be made, or has no room.
        """
        event, summary, file_writer = tensorboard_classes()
        values = [summary.Value(tag=tag, simple_value=value) for tag, value in scalars(result)]
        told = event(wall_time=time.time(), step=step, summary=summary(value=values))
        with writing("TensorBoardWriter", f"the event file in {self._logdir}"):
            self._append(told, file_writer)

    def _append(self, event: Any, file_writer: Any) -> None:
        if self._writer is None:
            self._writer = file_writer(self._logdir)
            # Its thread ends with this object, even if it is never closed.
            self._closing = weakref.finalize(self, self._writer.close)
        self._writer.add_event(event)
        # A run that is killed, or never closed, has written what it has reported.
        self._writer.flush()

    def close(self) -> None:
        """Close the file; what is written later goes into a new one."""
        if self._writer is not None:
            self._closing()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TensorBoardCallbacks(DefaultCallbacks):
    """Writes each result of `train()`, over env steps; evaluations are part of the results.

    Combine it with other callbacks as `callbacks=[Mine, TensorBoardCallbacks("runs/first")]`: the others run first, so
    that their additions to the result are written too.

    Args:
        logdir: A folder for this run; TensorBoard treats each folder below its `--logdir` as a run.
    """

    def __init__(self, logdir: str | PathLike[str]) -> None:
        self.writer = TensorBoardWriter(logdir)

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """Write the result."""
        self.writer.write(result, result["num_env_steps_sampled"])


class TensorBoard(Tracker):
    """Writes the numbers of each result over env steps, with tags in groups such as `return/` and `learner/<policy>/`.

    Args:
        logdir: A folder for this run.
    """

    def __init__(self, logdir: str | PathLike[str]) -> None:
        self._writer = TensorBoardWriter(logdir)

    def result(self, result: Mapping[str, Any]) -> None:
        """Write a result."""
        grouped = {grouped_tag(key): value for key, value in scalars(result)}
        self._writer.write(grouped, result["num_env_steps_sampled"])

    def end(self, reason: str) -> None:
        """Close the file."""
        self._writer.close()


_GROUPS = (
    (r"info/learner/(.+)/learner_stats/(.+)", r"learner/\1/\2"),
    (r"info/learner/(.+)", r"learner/\1"),
    (r"(evaluation/)?episode_reward_(mean|min|max)", r"\1return/\2"),
    (r"(evaluation/)?(policy|agent|group)_reward_(mean|min|max)/(.+)", r"\1return/\2/\4/\3"),
    (r"(evaluation/)?episode_len_mean", r"\1return/episode_length"),
    (r"(?:sampler_perf/|time_)(.+)", r"time/\1"),
    (r"(num_.+|.*episodes.*|training_iteration|.*timesteps_total)", r"counts/\1"),
)


@lru_cache(maxsize=4096)
def grouped_tag(key: str) -> str:
    """Return the tag of a result key, such as `return/policy/cars/mean` for `policy_reward_mean/cars`."""
    for pattern, tag in _GROUPS:
        if found := re.fullmatch(pattern, key):
            return found.expand(tag)
    return key


def tensorboard_classes() -> tuple[Any, Any, Any]:
    """Return the classes of tensorboard that write events."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError(
            "TensorBoardWriter: the package tensorboard is not installed, expected it; "
            "run: pip install 'menv-rl[train]', or leave the writer out"
        ) from error
    return Event, Summary, EventFileWriter
