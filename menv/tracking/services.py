"""Results in Weights & Biases and in MLflow, by their packages wandb and mlflow; the tags are as in TensorBoard.

A separate thread calls the service, so training does not wait for a service that does not answer. The run
folder remembers the run of a service, and a resumed run continues it.
"""

from __future__ import annotations

import atexit
import logging
import re
import secrets
import sys
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib import import_module
from os import PathLike
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from menv.errors import ConfigError, MissingExtraError, message_of
from menv.redaction import LEFT_OUT
from menv.tracking.run_folder import VIDEOS, command_line, known_services, remember_service
from menv.tracking.tensorboard import grouped_numbers
from menv.tracking.tracker import NewVideos, Tracker

_log = logging.getLogger("menv.tracking")

_MOST_CALLS = 1000
"""Calls that wait for a service; further calls are left out."""
_PAUSE_S = 30.0
"""Seconds without a call after an error."""
_LAST_S, _HURRY_S = 60.0, 5.0
"""Seconds that the end of a run waits for one call, and after an error or Ctrl-C for all of them."""
_ILLEGAL, _LONGEST = re.compile(r"[^\w\-. /]|^_"), 250
"""What services refuse in a name, and its bytes."""
_STEPS = "counts/num_env_steps_sampled"


class _Calls:
    """Makes calls in a thread, in order; one that raises is made once more after a pause."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: SimpleQueue[tuple[str, Callable[[], object]] | None] = SimpleQueue()
        self._closing, self._ended = Event(), Event()
        self._added: Counter[str] = Counter()
        self._made: Counter[str] = Counter()
        self._since = 0.0
        self._error: Exception | None = None
        self._warned = False
        # Python does not wait for this thread when it exits.
        Thread(target=self._work, name=f"menv {name}", daemon=True).start()

    def add(self, what: str, call: Callable[[], object]) -> None:
        """Let the thread make a call; `what` names it if it is not made."""
        self._added[what] += 1
        if self._waiting.qsize() < _MOST_CALLS:
            self._waiting.put((what, call))

    def close(self, *, hurried: bool) -> bool:
        """Wait as long as calls succeed, log which ones were not made, and return whether all were."""
        self._closing.set()
        self._waiting.put(None)
        hurried = hurried or self._error is not None
        try:
            while not (self._ended.wait(_HURRY_S) or hurried or time.monotonic() > self._since + _LAST_S):
                pass
        finally:
            self._ended.set()
            missing = self._added - self._made
            if missing:
                _log.warning(
                    "%s: not sent: %s (%s), expected a service that responds; see its logs", self._name,
                    ", ".join(f"{count} {what}{'s' * (count > 1)}" for what, count in missing.items()),
                    _in_words(self._error),
                )  # fmt: skip
        return not missing

    def _work(self) -> None:
        while (entry := self._waiting.get()) is not None and not self._ended.is_set():
            what, call = entry
            self._make(call)
            if self._error is not None and not self._ended.is_set():
                self._closing.wait(_PAUSE_S)
                self._make(call)
            self._made[what] += self._error is None
            if self._error is not None and self._closing.is_set():
                break
        self._ended.set()

    def _make(self, call: Callable[[], object]) -> None:
        self._since = time.monotonic()
        try:
            call()
            self._error = None
        except Exception as error:
            self._error = error
            if not self._warned and not self._closing.is_set():
                _log.warning("%s: %s; training continues without it for now", self._name, _in_words(error))
            self._warned = True


def _in_words(error: Exception | None) -> str:
    if error is None:
        return "no answer"
    return f"{type(error).__name__}: {message_of(error).partition(chr(10))[0].strip(' .'):.120}"


class _Service(Tracker):
    """Logs a run; the methods of subclasses that begin with `_` are called in the thread.

    Args:
        name: The name of the project or experiment.
        videos: A folder of recorded episodes.

    Attributes:
        run_id: The service's name of the run, "" before it began.
    """

    holds_signals = True
    package: str

    def __init__(self, name: str, videos: str | PathLike[str] | None = None) -> None:
        self._name, self._videos, self.run_id = name, NewVideos(videos), ""
        self._calls: _Calls | None = None
        self._error: BaseException | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Workers receive callbacks, but no run.
        return {"_name": self._name, "_videos": self._videos, "_calls": None}

    def begin(self, algorithm: Any) -> None:
        """Begin a run and wait until the service accepts it, or continue the one of the run folder.

        Raises:
            ConfigError: The service cannot begin a run.
            MissingExtraError: Its package is not installed.
        """
        folder: Path | None = algorithm.run_dir
        if self._calls is None:
            settings = {legal_name(key): value for key, value in algorithm.hyperparameters.items()}
            own = f"{settings['env']:.80}-{settings['algorithm']}-{secrets.token_hex(4)}"
            known, run_id = known_services(folder).get(self.package, ("", ""))
            self.run_id = run_id if known == self._name else ""
            self._starting: Any = (settings, own if folder is None else folder.resolve().name[:128])
            self._error, self._calls = None, _Calls(self.package)
            atexit.register(self._exit)
            if not self.run_id:
                self._wait_for_start(self._calls)
        remember_service(folder, self.package, self._name, self.run_id)

    def _wait_for_start(self, calls: _Calls) -> None:
        answer: Future[None] = Future()
        calls.add("start", partial(_answer, answer, self._call))
        try:
            answer.result()
        except BaseException as error:
            self._calls, name = None, self.package
            atexit.unregister(self._exit)
            if isinstance(error, ImportError):
                raise MissingExtraError(
                    f"--{name}: the package {name} is not installed; run: pip install {name}"
                ) from error
            if isinstance(error, Exception):
                raise ConfigError(
                    f"--{name}: {_in_words(error)}, expected a service that accepts runs; see the settings of {name}, "
                    f"or leave --{name} out"
                ) from error
            raise

    def result(self, result: Mapping[str, Any]) -> None:
        """Log a result."""
        numbers = {legal_name(tag): value for tag, value in grouped_numbers(result).items()}
        self._send("result", self._log, numbers, self._videos.look(), result["num_env_steps_sampled"])

    def saved(self, folder: Path) -> None:
        """Log a checkpoint without secrets, unless it is removed before its turn comes."""

        def log() -> None:
            # Commands that read runs need no ONNX Runtime.
            from menv.inference.checkpoint_folder import without_secrets_in

            if folder.is_dir():
                with without_secrets_in(folder) as shown:
                    self._log_checkpoint(shown)

        self._send("checkpoint", log)

    def raised(self, error: BaseException) -> None:
        """Let the service know at the end."""
        self._error = error

    def end(self, reason: str) -> None:
        """End the run, and wait as long as the service answers."""
        self._send("end", lambda: self._finish(self._error))
        calls, self._calls = self._calls, None
        atexit.unregister(self._exit)
        if calls is not None and not calls.close(hurried=isinstance(self._error, KeyboardInterrupt)):
            self._give_up()

    def _exit(self) -> None:
        # What is named as `callbacks` has no other end.
        self._error = getattr(sys, "last_value", None)
        self.end("")

    def _send(self, what: str, call: Callable[..., object], *args: Any) -> None:
        if self._calls is not None:
            self._calls.add(what, partial(self._call, call, *args))

    def _call(self, call: Callable[..., object] = lambda: None, *args: Any) -> None:
        if self._starting is not None:
            self.run_id, self._starting = self._start(*self._starting), None
        call(*args)

    def _give_up(self) -> None:
        """Let the process end without the service."""

    @abstractmethod
    def _start(self, settings: dict[str, Any], name: str) -> str:
        """Begin a run, or continue the run `run_id`, and return its id."""

    @abstractmethod
    def _log(self, numbers: dict[str, float], videos: Sequence[Path], steps: int) -> None: ...

    @abstractmethod
    def _log_checkpoint(self, folder: Path) -> None: ...

    @abstractmethod
    def _finish(self, error: BaseException | None) -> None: ...


def _answer(future: Future[None], call: Callable[[], None]) -> None:
    try:
        call()
        future.set_result(None)
    except Exception as error:
        future.set_exception(error)


def legal_name(name: str) -> str:
    """Return a name that services accept: always the same one for a name, and different ones for different names."""
    parts = ["_" if part in ("", ".", "..") else part for part in _ILLEGAL.sub("_", name).split("/")]
    legal, given = "/".join(parts).encode(), name.encode("utf-8", "backslashreplace")
    if legal == given and len(legal) <= _LONGEST:
        return name
    if len(legal) > _LONGEST - 9:
        # What a number is stands at the end of its name.
        legal = legal[:160] + b"_" + legal[-80:]
    return f"{legal.decode(errors='ignore')}-{sha256(given).hexdigest()[:8]}"


class WeightsAndBiases(_Service):
    """Logs settings, the numbers of each result, new videos and checkpoints to a run of the project `name`.

    Checkpoints are versions of the run's artifact; the axis of curves is `counts/num_env_steps_sampled`.
    """

    package = "wandb"

    def _start(self, settings: dict[str, Any], name: str) -> str:
        self._client = import_module("wandb")
        known: dict[str, Any] = {"id": self.run_id, "resume": "allow"} if self.run_id else {}
        if LEFT_OUT in command_line():
            # W&B would log the command line.
            known["settings"] = {"x_disable_meta": True}
        self._run = self._client.init(project=self._name, name=name, **known)
        self._run.config.update(settings, allow_val_change=True)
        # W&B drops values that are logged at an earlier step of its axis, such as the first steps of a resumed run.
        self._run.define_metric(_STEPS)
        self._run.define_metric("*", step_metric=_STEPS)
        return str(self._run.id)

    def _log(self, numbers: dict[str, float], videos: Sequence[Path], steps: int) -> None:
        shown = {f"videos/{path.stem}": self._client.Video(str(path)) for path in videos}
        self._run.log({**numbers, **shown, _STEPS: steps})

    def _log_checkpoint(self, folder: Path) -> None:
        name = f"checkpoint-{self.run_id}"
        self._run.log_artifact(str(folder), name=name, type="model", aliases=["latest", folder.name])

    def _finish(self, error: BaseException | None) -> None:
        self._run.finish(exit_code=0 if error is None else 1)

    def _give_up(self) -> None:
        # W&B waits at the exit for its own process, which outlives this one. It has no switch for that.
        with suppress(Exception):
            self._client.setup()._connection._proc = None


class MLflow(_Service):
    """Logs settings, the numbers of each result, new videos and checkpoints to a run of the experiment `name`.

    It is no active run of your threads: `mlflow.log_metric(..., run_id=tracker.run_id)` adds to it.
    """

    package = "mlflow"

    def _start(self, settings: dict[str, Any], name: str) -> str:
        self._client = import_module("mlflow")
        self._client.set_experiment(self._name)
        # A call that is made again finds the run that it began.
        run = self._client.active_run() or self._client.start_run(self.run_id or None, run_name=name)
        # Params of a run cannot change.
        new = {key: str(value)[:5000] for key, value in settings.items() if key not in run.data.params}
        self._client.log_params(new)
        return str(run.info.run_id)

    def _log(self, numbers: dict[str, float], videos: Sequence[Path], steps: int) -> None:
        self._client.log_metrics(numbers, step=steps)
        for path in videos:
            self._client.log_artifact(str(path), "videos")

    def _log_checkpoint(self, folder: Path) -> None:
        self._client.log_artifacts(str(folder), f"checkpoints/{folder.name}")

    def _finish(self, error: BaseException | None) -> None:
        status = (
            "FINISHED" if error is None else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        )
        self._client.end_run(status)


def services_of(
    folder: Path | None, names: Mapping[str, str | None], given: Iterable[Tracker] = ()
) -> list[Tracker]:
    """Return the services of a run that have one of the `names` or that its folder remembers, and are not `given`."""
    asked = {package: name for package, name in names.items() if name is not None}
    wanted = {**{package: name for package, (name, _) in known_services(folder).items()}, **asked}
    present = {type(one) for one in given}
    videos = None if folder is None else folder / VIDEOS
    kinds = [kind for kind in (WeightsAndBiases, MLflow) if kind.package in wanted and kind not in present]
    return [kind(wanted[kind.package], videos) for kind in kinds]
