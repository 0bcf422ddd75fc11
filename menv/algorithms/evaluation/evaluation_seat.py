"""A worker of evaluations: what plays its share of the episodes in another process.

`menv.algorithms.evaluation.evaluation_workers` lets an engine create it. It imports no torch, unless a policy acts
with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.evaluation.evaluation import Evaluation
from menv.algorithms.rollouts.company import News
from menv.algorithms.rollouts.experience import make_evaluation_experience
from menv.algorithms.rollouts.fragment import Plan
from menv.algorithms.rollouts.rollout_worker import Seat, heard, opened
from menv.base_env import BaseEnv
from menv.callbacks import read_callbacks
from menv.metrics import Taken
from menv.scale.same_spaces import check_worker
from menv.scale.watchdog import Watchdog, creation_limit, limited


class Played(NamedTuple):
    """What a worker has played.

    Attributes:
        metrics: Episodes.
        env_steps: Of all of them, and of those that others had to wait for.
        agent_steps: Likewise.
        warnings: What is to be warned of.
    """

    metrics: Taken
    env_steps: int
    agent_steps: int
    warnings: Sequence[str]


class EvaluationWorker:
    """Plays the share that its place says.

    Args:
        plan: All that it needs to know.
    """

    def __init__(self, plan: Plan) -> None:
        config = opened(plan)
        self._place, self._company, self._declared = plan.place, plan.company, plan.declared
        # Environments in processes of their own are watched from here.
        self._seconds = None if config.remote_worker_envs else config.env_timeout
        self._evaluation = Evaluation(
            config, plan.company, self._make_envs, read_callbacks(config["callbacks"]), plan.seed, plan.place
        )
        self._evaluation.guard = Watchdog(self._seconds, lambda: self._evaluation.progress)

    def play(self, news: News) -> Played:
        """Play with the policies as they are by now.

        Args:
            news: What has changed of them.
        """
        # Nobody is in the midst of an episode.
        self._company.take(news, ())
        with heard() as faults:
            steps = self._evaluation.play()
        return Played(self._evaluation.metrics.take(), *steps, faults)

    def state(self) -> Any:
        """Return where the sampler stands; see `Evaluation.state`."""
        state = self._evaluation.state()
        return state and state["sampler"]

    def resume(self, tree: Mapping[str, Any]) -> None:
        """Go on from its share of what `state` of all workers, or of another number of them, returned."""
        self._evaluation.resume(tree)

    def stop(self) -> None:
        """Close the environments."""
        self._evaluation.stop()

    def _make_envs(self, config: AlgorithmConfig) -> BaseEnv:
        with limited(creation_limit(self._seconds)):
            first, base_env = make_evaluation_experience(config, None, self._place)
        check_worker(f"evaluation worker {self._place.worker_index}", base_env, first, self._declared)
        return base_env


class EvaluationSeat(Seat):
    """A place for one that plays."""

    def _made(self, plan: Plan) -> EvaluationWorker:
        return EvaluationWorker(plan)
