"""Results as metrics in MLflow, by its package mlflow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from menv.errors import MissingExtraError
from menv.tracking.run_folder import scalars
from menv.tracking.tensorboard import grouped_tag
from menv.tracking.tracker import Tracker


class MLflow(Tracker):
    """Logs the numbers of each result to a new run of an experiment, with the tags of TensorBoard.

    Args:
        experiment: Its name.
        config: What the run's page shows as its tags.

    Raises:
        MissingExtraError: mlflow is not installed.
    """

    def __init__(self, experiment: str, config: Mapping[str, Any] | None = None) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise MissingExtraError(
                "MLflow: the package mlflow is not installed, expected it; run: pip install mlflow"
            ) from error
        self._mlflow: Any = mlflow
        mlflow.set_experiment(experiment)
        mlflow.start_run()
        mlflow.set_tags({key: str(value)[:5000] for key, value in (config or {}).items()})

    def result(self, result: Mapping[str, Any]) -> None:
        """Log a result at its env steps."""
        # MLflow allows no other characters in the name of a metric.
        numbers = {re.sub(r"[^\w\-. /]", "_", grouped_tag(key)): value for key, value in scalars(result)}
        self._mlflow.log_metrics(numbers, step=result["num_env_steps_sampled"])

    def end(self, reason: str) -> None:
        """End the run."""
        self._mlflow.end_run()
