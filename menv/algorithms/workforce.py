"""Who samples for an algorithm: this process, or workers.

`Algorithm` inherits it. It knows how many there are and what they run on, not what they do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from menv.adapters.created_envs import CreatedEnvs
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.experience import make_experience
from menv.algorithms.population import Population
from menv.algorithms.rollouts import LocalRollouts, Rollouts
from menv.algorithms.torch_threads import set_torch_threads
from menv.algorithms.training_state import Progress
from menv.base_env import BaseEnv
from menv.callbacks import DefaultCallbacks
from menv.errors import CallOrderError, ConfigError
from menv.metrics import Metrics
from menv.scale.engine import Engine, Peer

if TYPE_CHECKING:
    from menv.algorithms.worker_rollouts import WorkerRollouts


class Workforce:
    """An algorithm, as far as others work for it.

    Attributes:
        config: The settings.
    """

    config: AlgorithmConfig
    _base_env: BaseEnv
    _callbacks: DefaultCallbacks
    _metrics: Metrics
    _population: Population
    _rollouts: Rollouts
    _progress: Progress
    _stopped: bool

    def worker_pids(self) -> list[int | None]:
        """Return the process ids of the workers, [] without workers; None for one that has not answered yet."""
        return [] if self._stopped else list(getattr(self._rollouts, "pids", []))

    def call_envs(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every sub-environment, in this process, in workers, in remote environments.

        A curriculum is one use: `algorithm.call_envs("set_level", 3)` in `on_train_result`. Workers complete what they
        were asked to sample first. Those that evaluations play in are others, and one that takes another's place is
        new: `on_sub_environment_created` is told of both.

        Args:
            method: The method's name.
            args: What it is called with; with workers they are pickled, as results are.

        Returns:
            What it returned, in the order of the sub-environments, those of the first worker first.

        Raises:
            ConfigError: A sub-environment has no such method, or there are none that could be called.
            CallOrderError: The algorithm was stopped.
        """
        if self._stopped:
            raise CallOrderError("call_envs: this algorithm was stopped; build a new one")
        return self._rollouts.call_envs(method, args)

    def _hire(self) -> None:
        """Start the processes of workers, which import what they need while this one does likewise."""
        self._engine: Engine | None = None
        self._seats: list[Peer] = []
        if self.config.num_workers and self.config.input is None:
            from menv.algorithms.rollout_worker import WorkerSeat
            from menv.scale.engines import make_engine

            self._engine = make_engine(self.config.engine)
            self._seats = [
                self._engine.start(WorkerSeat, label=f"worker {number}")
                for number in range(1, self.config.num_workers + 1)
            ]

    def _make_envs(self) -> tuple[Any, BaseEnv]:
        """Create the environments of this process; with workers it is one, which is asked for its spaces only."""
        config = self.config
        if not config.num_workers:
            return make_experience(config)
        if config.input is not None:
            raise ConfigError(
                f"num_workers: {config.num_workers} with an input, expected 0, because one server takes many clients; "
                "leave num_workers out"
            )
        near = replace(config, num_envs_per_worker=1, remote_worker_envs=False, remote_env_batch_wait_ms=0)
        first, base_env = make_experience(near)
        if base_env.external:
            base_env.stop()
            raise ConfigError(
                f"num_workers: {config.num_workers} with a {type(first).__name__}, which calls by itself, expected 0; "
                "leave num_workers out"
            )
        return first, base_env

    def _new_rollouts(self) -> Rollouts:
        """Return what samples, once it is known what runs the networks."""
        config, population = self.config, self._population
        if not (config.num_workers and config.overlap):
            self._prepare_torch()
        if not config.num_workers:
            return LocalRollouts(
                config, self._base_env, population, self._callbacks, self._progress.seed, self._metrics
            )
        rollouts = self._new_workers()
        if config.overlap:
            # Importing torch takes a second; workers that may run ahead have begun by then.
            rollouts.begin()
            if self._prepare_torch():
                rollouts.take_back()
        return rollouts

    def _prepare_torch(self) -> bool:
        """Import torch and check what runs the networks; return whether something else runs some of them now."""
        set_torch_threads(self.config.torch_threads)
        return self._population.settle()

    def _new_workers(self) -> WorkerRollouts:
        """Return workers that do not sample yet."""
        from menv.algorithms.worker_rollouts import WorkerRollouts

        config, base_env = self.config, self._base_env
        assert self._engine is not None
        # A BaseEnv or a vectorised environment brings as many as it has.
        own = 0 if isinstance(base_env, CreatedEnvs) else base_env.num_envs
        return WorkerRollouts(
            config, self._population, self._progress.seed, self._metrics, self._engine,
            own or config.num_envs_per_worker, self._seats,
        )  # fmt: skip

    def _check_travels(self, mapping_fn: Any, to_train: Any) -> None:
        """Refuse functions that workers cannot be told, before anything has changed.

        Raises:
            UnsendableError: One of them cannot be pickled.
        """
        if self.config.num_workers:
            from menv.scale.packing import pack

            pack({"policy_mapping_fn": mapping_fn, "policies_to_train": to_train}, "multiagent")

    def _of_workers(self) -> dict[str, Any]:
        """Return what a result tells of workers; callbacks are told of those that were replaced."""
        if not self.config.num_workers:
            return {}
        from menv.algorithms.worker_rollouts import WorkerRollouts

        rollouts = self._rollouts
        assert isinstance(rollouts, WorkerRollouts)
        if rollouts.recreated:
            numbers, rollouts.recreated = rollouts.recreated, []
            self._callbacks.on_workers_recreated(algorithm=self, worker_ids=numbers, is_evaluation=False)
        told: dict[str, Any] = {"num_worker_restarts": rollouts.lost}
        if self.config.overlap:
            ages = np.concatenate([*rollouts.staleness, np.zeros(0, np.int64)])
            rollouts.staleness.clear()
            told["staleness"] = {
                "mean": float(ages.mean()) if len(ages) else None,
                "max": int(ages.max()) if len(ages) else None,
            }
        return told
