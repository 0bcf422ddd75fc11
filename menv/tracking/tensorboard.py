"""Results as curves in TensorBoard: each number of a result is a scalar, at the step that it was reached.

Name `TensorBoardCallbacks("folder")` as `callbacks`, or write results yourself with a `TensorBoardWriter`. Needs the
package tensorboard, when the first result is written. Run folders use the tracker `TensorBoard`.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from menv.errors import MissingExtraError
from menv.plain_files import path_given, read, writing
from menv.tracking.run_folder import append, json_text, scalars
from menv.tracking.tracker import NewVideos, Tracker

_FILES = itertools.count()
"""Numbers of the event files of this process, which keep their names apart."""


class TensorBoardWriter(AbstractContextManager["TensorBoardWriter", None]):
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
        value = tensorboard_classes()[1].Value
        self.add([value(tag=tag, simple_value=number) for tag, number in scalars(result)], step)

    def add(self, values: Sequence[Any], step: int) -> None:
        """Write the `Summary.Value`s of tensorboard; see `write`."""
        self._append(step, summary=tensorboard_classes()[1](value=values))

    def restart(self, step: int) -> None:
        """Let TensorBoard hide what is in the folder from `step` on, because a resumed run writes it again."""
        # 1 is START.
        self._append(step, session_log={"status": 1})

    def _append(self, step: int, **content: Any) -> None:
        event, _, record_writer = tensorboard_classes()
        path, records = self._path, io.BytesIO()
        if path is None:
            record_writer(records).write(event(file_version="brain.Event:2").SerializeToString())
            # Containers may have the same name and process id.
            own = (os.getpid(), next(_FILES), secrets.token_hex(4))
            parts = (int(time.time()), socket.gethostname(), *own)
            path = self._logdir / ".".join(map(str, ("events.out.tfevents", *parts)))
        entry = event(wall_time=time.time(), step=step, **content)
        record_writer(records).write(entry.SerializeToString())
        with writing("TensorBoardWriter", f"the event file in {self._logdir}"):
            self._logdir.mkdir(parents=True, exist_ok=True)
            append(path, records.getvalue())
        self._path = path

    def close(self) -> None:
        """End the file; what is written later goes into a new one."""
        self._path = None

    def __exit__(self, *error: object) -> None:
        self.close()


class TensorBoardCallbacks(Tracker):
    """Writes the numbers of each result over env steps, with the keys of the result as tags; `callbacks` of a config.

    Other callbacks before it in the list may add to the result: `callbacks=[Mine, TensorBoardCallbacks("runs/first")]`.

    Args:
        logdir: A folder for this run; TensorBoard treats each folder below its `--logdir` as a run.
    """

    holds_signals = True

    def __init__(self, logdir: str | PathLike[str]) -> None:
        self.writer = TensorBoardWriter(logdir)
        self._follows = False

    def result(self, result: Mapping[str, Any]) -> None:
        """Write a result."""
        if not self._follows:
            steps = result["num_env_steps_sampled"] - result["num_env_steps_sampled_this_iter"]
            self.writer.restart(steps + 1)
            self._follows = True
        self._write(result, result["num_env_steps_sampled"])

    def _write(self, result: Mapping[str, Any], steps: int) -> None:
        self.writer.write(result, steps)

    def end(self, reason: str) -> None:
        """Close the file."""
        self.writer.close()
        self._follows = False


class TensorBoard(TensorBoardCallbacks):
    """Writes settings, the numbers of each result over env steps and new GIFs; tags are in groups such as `return/`.

    Args:
        logdir: A folder for this run.
        videos: A folder of recorded episodes.
    """

    def __init__(self, logdir: str | PathLike[str], videos: str | PathLike[str] | None = None) -> None:
        super().__init__(logdir)
        self._videos = NewVideos(videos)

    def begin(self, algorithm: Any) -> None:
        """Write the settings."""
        tensorboard_classes()
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # type: ignore[import-untyped]

        settings = {
            key: value if isinstance(value, str | int | float) else json_text(value)
            for key, value in algorithm.hyperparameters.items()
        }
        self.writer.add(hparams_pb(settings).value, 0)

    def _write(self, result: Mapping[str, Any], steps: int) -> None:
        summary = tensorboard_classes()[1]
        values = [summary.Value(tag=tag, simple_value=one) for tag, one in grouped_numbers(result).items()]
        for path in self._videos.look():
            picture = summary.Image(encoded_image_string=read(path))
            values.append(summary.Value(tag=f"videos/{path.stem}", image=picture))
        self.writer.add(values, steps)


_GROUPS = (
    (r"info/learner/(.+)/learner_stats/(.+)", r"learner/\1/\2"),
    (r"info/learner/(.+)", r"learner/\1"),
    (r"(evaluation/)?episode_reward_(mean|min|max)", r"\1return/\2"),
    (r"(evaluation/)?(policy|agent|group)_reward_(mean|min|max)/(.*)", r"\1return/\2/\4/\3"),
    (r"(evaluation/)?episode_len_mean", r"\1return/episode_length"),
    (r"(?:sampler_perf/|time_)(.+)", r"time/\1"),
    (r"(num_.+|.*episodes.*|training_iteration|.*timesteps_total)", r"counts/\1"),
)


def grouped_numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a result by tag, such as `return/policy/cars/mean` for `policy_reward_mean/cars`."""
    return {_grouped_tag(key): value for key, value in scalars(result)}


@lru_cache(maxsize=4096)
def _grouped_tag(key: str) -> str:
    for pattern, tag in _GROUPS:
        if found := re.fullmatch(pattern, key, re.DOTALL):
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
