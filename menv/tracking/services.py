"""Results in Weights & Biases and in MLflow, by their packages wandb and mlflow; the tags are as in TensorBoard."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from menv.errors import ConfigError, MissingExtraError
from menv.tracking.tensorboard import grouped_numbers
from menv.tracking.tracker import NewVideos, Tracker


class _Service(Tracker):
    """Begins a run of a service once; see the subclasses.

    Args:
        name: The name of the project or experiment.
        videos: A folder of recorded episodes.
    """

    _package: str

    def __init__(self, name: str, videos: str | PathLike[str] | None = None) -> None:
        self._name, self._videos = name, NewVideos(videos)
        self._run: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # Workers receive callbacks, but no run.
        return {**vars(self), "_run": None, "_client": None}

    def begin(self, algorithm: Any) -> None:
        """Begin the run, unless it has begun.

        Raises:
            ConfigError: The service cannot begin a run.
            MissingExtraError: Its package is not installed.
        """
        name = self._package
        try:
            if self._run is None:
                self._client = import_module(name)
                self._run = self._start(algorithm.hyperparameters)
        except ImportError as error:
            raise MissingExtraError(
                f"--{name}: the package {name} is not installed, expected it; run: pip install {name}"
            ) from error
        except Exception as error:
            why = str(error).partition("\n")[0].strip(" .")
            raise ConfigError(
                f"--{name}: {type(error).__name__}: {why:.120}, expected a service that accepts runs; see the settings "
                f"of {name}, or leave --{name} out"
            ) from error

    @abstractmethod
    def _start(self, settings: dict[str, Any]) -> Any: ...


class WeightsAndBiases(_Service):
    """Logs settings, the numbers of each result, new videos and checkpoints to a new run of the project `name`."""

    _package = "wandb"

    def _start(self, settings: dict[str, Any]) -> Any:
        return self._client.init(project=self._name, config=settings)

    def result(self, result: Mapping[str, Any]) -> None:
        """Log a result at its env steps."""
        videos = {f"videos/{path.stem}": self._client.Video(str(path)) for path in self._videos.look()}
        self._run.log({**grouped_numbers(result), **videos}, step=result["num_env_steps_sampled"])

    def saved(self, folder: Path) -> None:
        """Log a checkpoint as a version of the run's artifact."""
        name = f"checkpoint-{self._run.id}"
        self._run.log_artifact(str(folder), name=name, type="model", aliases=["latest", folder.name])

    def end(self, reason: str) -> None:
        """Finish the run; `begin` begins another."""
        self._run.finish()
        self._run = None


class MLflow(_Service):
    """Logs settings, the numbers of each result, new videos and checkpoints to a new run of the experiment `name`."""

    _package = "mlflow"

    def _start(self, settings: dict[str, Any]) -> Any:
        self._client.set_experiment(self._name)
        run = self._client.start_run()
        self._client.log_params({key: str(value)[:5000] for key, value in settings.items()})
        return run

    def result(self, result: Mapping[str, Any]) -> None:
        """Log a result at its env steps."""
        # MLflow allows no other characters in the name of a metric.
        numbers = {re.sub(r"[^\w\-. /]", "_", tag): value for tag, value in grouped_numbers(result).items()}
        self._client.log_metrics(numbers, step=result["num_env_steps_sampled"])
        for path in self._videos.look():
            self._client.log_artifact(str(path), "videos")

    def saved(self, folder: Path) -> None:
        """Log a checkpoint as an artifact."""
        self._client.log_artifacts(str(folder), f"checkpoints/{folder.name}")

    def end(self, reason: str) -> None:
        """End the run; `begin` begins another."""
        self._client.end_run()
        self._run = None
