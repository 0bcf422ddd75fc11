"""Results in Weights & Biases and in MLflow, by their packages wandb and mlflow; tags are those of TensorBoard."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from menv.errors import ConfigError, MissingExtraError
from menv.tracking.run_folder import scalars
from menv.tracking.tensorboard import grouped_tag
from menv.tracking.tracker import Tracker


class WeightsAndBiases(Tracker):
    """Logs the numbers of each result to a new run of a project.

    Args:
        project: Its name.
        settings: What the run's page shows as its config.

    Raises:
        ConfigError: wandb cannot begin a run.
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, project: str, settings: Mapping[str, Any] | None = None) -> None:
        with _package("wandb") as wandb:
            self._run = wandb.init(project=project, config=dict(settings or {}))

    def result(self, result: Mapping[str, Any]) -> None:
        """Log a result at its env steps."""
        self._run.log(_numbers(result), step=result["num_env_steps_sampled"])

    def end(self, reason: str) -> None:
        """Finish the run."""
        self._run.finish()


class MLflow(Tracker):
    """Logs the numbers of each result to a new run of an experiment.

    Args:
        experiment: Its name.
        settings: What the run's page shows as its parameters.

    Raises:
        ConfigError: mlflow cannot begin a run.
        MissingExtraError: mlflow is not installed.
    """

    def __init__(self, experiment: str, settings: Mapping[str, Any] | None = None) -> None:
        with _package("mlflow") as self._mlflow:
            self._mlflow.set_experiment(experiment)
            self._mlflow.start_run()
            self._mlflow.log_params({key: str(value)[:5000] for key, value in (settings or {}).items()})

    def result(self, result: Mapping[str, Any]) -> None:
        """Log a result at its env steps."""
        # MLflow allows no other characters in the name of a metric.
        numbers = {re.sub(r"[^\w\-. /]", "_", name): value for name, value in _numbers(result).items()}
        self._mlflow.log_metrics(numbers, step=result["num_env_steps_sampled"])

    def end(self, reason: str) -> None:
        """End the run."""
        self._mlflow.end_run()


def _numbers(result: Mapping[str, Any]) -> dict[str, float]:
    return {grouped_tag(key): value for key, value in scalars(result)}


@contextmanager
def _package(name: str) -> Iterator[Any]:
    """Yield a service's package, to begin a run with."""
    try:
        yield import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"--{name}: the package {name} is not installed, expected it; run: pip install {name}"
        ) from error
    except Exception as error:
        why = str(error).partition("\n")[0].strip(" .")
        raise ConfigError(
            f"--{name}: {type(error).__name__}: {why:.120}, expected a service that accepts runs; see the settings of "
            f"{name}, or leave --{name} out"
        ) from error
