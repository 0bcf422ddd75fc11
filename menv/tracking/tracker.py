"""`Tracker`: follows a run of `Algorithm.learn`. The run folder, the progress table and TensorBoard are trackers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from menv.callbacks import DefaultCallbacks
from menv.errors import ConfigError, MissingExtraError
from menv.serialization import path_given

_log = logging.getLogger("menv.tracking")


class Tracker(DefaultCallbacks):
    """Follows a run; each method does nothing, so override what you need.

        class Printer(Tracker):
            def result(self, result):
                print(result["episode_reward_mean"])

        PPO(env="CartPole-v1").learn(50_000, trackers=[Printer()])

    An exception of a tracker does not end the training. The first one is logged as a warning. `begin` may refuse the
    run with a `ConfigError` or a `MissingExtraError`.

    If you call `train()` yourself, name trackers as `callbacks=[Printer()]`. They follow each iteration, but no
    checkpoint and no end, and their exceptions end the training.
    """

    def begin(self, algorithm: Any) -> None:
        """Called before the first iteration."""

    def result(self, result: Mapping[str, Any]) -> None:
        """Called with the result of each iteration."""

    def saved(self, folder: Path) -> None:
        """Called when a checkpoint was written."""

    def end(self, reason: str) -> None:
        """Called once at the end; `reason` is a sentence, such as "num_env_steps_sampled reached 50,000"."""

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        """Begin, as callbacks of a config."""
        self.begin(algorithm)

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """Follow an iteration, as callbacks of a config."""
        self.result(result)


class NewVideos:
    """Finds recorded episodes that were written to a folder since the last look.

    Args:
        folder: The folder, None for no videos.
    """

    def __init__(self, folder: str | PathLike[str] | None) -> None:
        self._folder = None if folder is None else path_given("videos", folder)
        self._seen = set(self._videos())

    def look(self) -> list[Path]:
        """Return the new videos, the oldest first."""
        found = [path for path in self._videos() if path not in self._seen]
        self._seen.update(found)
        return found

    def _videos(self) -> list[Path]:
        if self._folder is None:
            return []
        # A file that is being written is hidden, or empty.
        files = [path for kind in (".gif", ".mp4", ".webm") for path in self._folder.glob(f"[!.]*{kind}")]
        return sorted((path for path in files if path.stat().st_size), key=lambda path: path.stat().st_mtime)


class Trackers(Tracker):
    """Calls several trackers; logs the first exception of each one, but a full disk once in all, and carries on."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers
        self._warned: set[Any] = set()

    def begin(self, algorithm: Any) -> None:
        """Call `begin` of each tracker; a service that cannot begin a run stops the training before it starts."""
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
                if method == "begin" and isinstance(error, ConfigError | MissingExtraError):
                    raise
                self.warn(f"{type(tracker).__name__}.{method}", error)
