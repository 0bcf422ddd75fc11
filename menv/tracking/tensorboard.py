"""Results as curves in TensorBoard: each number of a result is a scalar, at the step that it was reached.

Needs the package tensorboard.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
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


class TensorBoard(Tracker):
    """Writes settings, the numbers of each result over env steps and new GIFs; tags are in groups such as `return/`.

    Each result is in the file when `result` returns. A resumed run hides what it writes again.

    Args:
        logdir: A folder for this run, created when something is written; TensorBoard treats each folder below its
            `--logdir` as a run.
        videos: A folder of recorded episodes.

    Raises:
        ConfigError: One of them is not a path.
    """

    holds_signals = True

    def __init__(self, logdir: str | PathLike[str], videos: str | PathLike[str] | None = None) -> None:
        self._logdir, self._videos = path_given("TensorBoard", logdir), NewVideos(videos)
        self._path: Path | None = None
        self._follows = False

    def begin(self, algorithm: Any) -> None:
        """Write the settings."""
        tensorboard_classes()
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # type: ignore[import-untyped]

        settings = {
            key: value if isinstance(value, str | int | float) else json_text(value)
            for key, value in algorithm.hyperparameters.items()
        }
        self._append(0, summary=hparams_pb(settings))

    def result(self, result: Mapping[str, Any]) -> None:
        """Write a result."""
        steps, summary = result["num_env_steps_sampled"], tensorboard_classes()[1]
        if not self._follows:
            # 1 is START: TensorBoard hides what is in the folder from this step on.
            first = steps - result["num_env_steps_sampled_this_iter"] + 1
            self._append(first, session_log={"status": 1})
            self._follows = True
        values = [summary.Value(tag=tag, simple_value=one) for tag, one in grouped_numbers(result).items()]
        for path in self._videos.look():
            picture = summary.Image(encoded_image_string=read(path))
            values.append(summary.Value(tag=f"videos/{path.stem}", image=picture))
        self._append(steps, summary=summary(value=values))

    def end(self, reason: str) -> None:
        """End the file; what is written later goes into a new one."""
        self._path, self._follows = None, False

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
        with writing("TensorBoard", f"the event file in {self._logdir}"):
            self._logdir.mkdir(parents=True, exist_ok=True)
            append(path, records.getvalue())
        self._path = path


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
            "TensorBoard: the package tensorboard is not installed; "
            "run: pip install 'menv-rl[train]', or leave the tracker out"
        ) from error
    return Event, Summary, RecordWriter
