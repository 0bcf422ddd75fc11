"""`Tracker`: follows a run of `Algorithm.learn`. The run folder, the progress table and TensorBoard are trackers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from menv.callbacks import DefaultCallbacks
from menv.errors import ConfigError, MissingExtraError
from menv.plain_files import path_given, plain_files

_log = logging.getLogger("menv.tracking")


class Tracker(DefaultCallbacks):
    """Follows a run; each method does nothing, so override what you need.

        class Printer(Tracker):
            def result(self, result):
                print(result["episode_reward_mean"])

        PPO(env="CartPole-v1").learn(50_000, trackers=[Printer()])

    An exception of a tracker does not end the training. The first one is logged as a warning. `begin` may refuse the
    run with a `ConfigError` or a `MissingExtraError`. The training waits for a tracker. Ctrl-C ends a `result` that
    takes long, unless `holds_signals` says that a file would be half written.

    If you call `train()` yourself, name trackers as `callbacks=[Printer()]`. They follow each iteration, but no
    checkpoint and no end, and their exceptions end the training.
    """

    holds_signals: ClassVar[bool] = False

    def begin(self, algorithm: Any) -> None:
        """Called before the first iteration; `algorithm.run_dir` is the run folder, None without one."""

    def result(self, result: Mapping[str, Any]) -> None:
        """Called with the result of each iteration."""

    def saved(self, folder: Path) -> None:
        """Called when a checkpoint was written."""

    def raised(self, error: BaseException) -> None:
        """Called before `end` with an exception that ended the run; KeyboardInterrupt stands for a signal too."""

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
        self._seen: set[Path] = set()
        self.look()

    def look(self) -> list[Path]:
        """Return the new videos, the oldest first."""
        # A file that is being written is hidden, or empty.
        files = () if self._folder is None else plain_files(self._folder, "[!.]*.*", (".gif",))
        found = {path for path in files if path.stat().st_size}
        new, self._seen = found - self._seen, self._seen | found
        return sorted(new, key=lambda path: path.stat().st_mtime)


class Trackers:
    """Calls several trackers; logs the first exception of each one, but a full disk once in all, and carries on."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers
        self._warned: set[Any] = set()

    def call(self, method: Callable[..., None], *args: Any, held: bool | None = None) -> None:
        """Call a method of each tracker, or of those whose `holds_signals` is `held`.

        A service that cannot begin a run stops the training before it starts.
        """
        for tracker in self._trackers:
            if held not in (None, tracker.holds_signals):
                continue
            try:
                getattr(tracker, method.__name__)(*args)
            except Exception as error:
                if method is Tracker.begin and isinstance(error, ConfigError | MissingExtraError):
                    raise
                self.warn(f"{type(tracker).__name__}.{method.__name__}", error)

    def warn(self, call: str, error: Exception) -> None:
        """Log the exception of a call; later ones of this call are not, and a full disk is logged once in all."""
        keys = {call, getattr(error, "errno", None) or call}
        if not keys & self._warned:
            _log.warning(
                "%s raised %s: %s; training continues, later errors of it are not logged",
                call, type(error).__name__, error,
            )  # fmt: skip
        self._warned |= keys
