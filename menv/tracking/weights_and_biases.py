"""Results as curves in Weights & Biases, by its package wandb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from menv.errors import MissingExtraError
from menv.tracking.run_folder import scalars
from menv.tracking.tensorboard import grouped_tag
from menv.tracking.tracker import Tracker


class WeightsAndBiases(Tracker):
    """Logs the numbers of each result to a new run of a project, with the tags of TensorBoard.

    Args:
        project: Its name.
        config: What the run's page shows as its settings.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, project: str, config: Mapping[str, Any] | None = None) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError(
                "WeightsAndBiases: the package wandb is not installed, expected it; run: pip install wandb"
            ) from error
        self._run: Any = wandb.init(project=project, config=dict(config or {}))

    def result(self, result: Mapping[str, Any]) -> None:
        """Log a result at its env steps."""
        numbers = {grouped_tag(key): value for key, value in scalars(result)}
        self._run.log(numbers, step=result["num_env_steps_sampled"])

    def end(self, reason: str) -> None:
        """Finish the run."""
        self._run.finish()
