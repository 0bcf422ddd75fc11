"""Results as curves in TensorBoard: each number of a result is a scalar, at the step that it was reached.

Name `TensorBoardCallbacks("folder")` as `callbacks`, or write results yourself with a `TensorBoardWriter`. Needs the
package tensorboard, when the first result is written. Run folders use the tracker `TensorBoard`.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import socket
import time
from collections.abc import Mapping
from functools import lru_cache
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from menv.callbacks import DefaultCallbacks
from menv.errors import MissingExtraError
from menv.serialization import path_given, writing
from menv.tracking.run_folder import append, scalars
from menv.tracking.tracker import Tracker

_FILES = itertools.count()
"""Numbers of the event files of this process, which keep their names apart."""


class TensorBoardWriter:
    """One event file in a folder; a context manager that closes it.

    Args:
        logdir: The folder; created when something is written.

    Raises:
        ConfigError: It is no path.
    """

    def __init__(self, logdir: str | PathLike[str]) -> None:
        self._logdir = path_given("TensorBoardWriter", logdir)
        self._path: Path | None = None

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
        self._write_numbers(dict(scalars(result)), step)

    def _write_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        """Write finite numbers by tag; see `write`."""
        event, summary, record_writer = tensorboard_classes()
        values = [summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        path, records = self._path, io.BytesIO()
        if path is None:
            record_writer(records).write(event(file_version="brain.Event:2").SerializeToString())
            parts = (int(time.time()), socket.gethostname(), os.getpid(), next(_FILES))
            path = self._logdir / ".".join(map(str, ("events.out.tfevents", *parts)))
        told = event(wall_time=time.time(), step=step, summary=summary(value=values))
        record_writer(records).write(told.SerializeToString())
        with writing("TensorBoardWriter", f"the event file in {self._logdir}"):
            self._logdir.mkdir(parents=True, exist_ok=True)
            append(path, records.getvalue())
        self._path = path

    def close(self) -> None:
        """End the file; what is written later goes into a new one."""
        self._path = None

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
        self._writer._write_numbers(grouped, result["num_env_steps_sampled"])

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
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError(
            "TensorBoardWriter: the package tensorboard is not installed, expected it; "
            "run: pip install 'menv-rl[train]', or leave the writer out"
        ) from error
    return Event, Summary, RecordWriter
