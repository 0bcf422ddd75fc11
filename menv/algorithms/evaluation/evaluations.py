"""The evaluations of one run: what plays them, made when the first one begins, and what the latest told.

`menv.algorithms.algorithm` has one. How episodes are played is in `menv.algorithms.evaluation.evaluation`, and by whom
in `menv.algorithms.evaluation.evaluation_workers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.evaluation.evaluation import Evaluation
from menv.algorithms.evaluation.evaluation_settings import evaluation_settings
from menv.algorithms.evaluation.players import Players
from menv.algorithms.population import Population
from menv.algorithms.rollouts.experience import make_evaluation_experience
from menv.algorithms.underway import Underway
from menv.base_env import BaseEnv
from menv.callbacks import DefaultCallbacks, read_callbacks
from menv.errors import CallOrderError, ConfigError, ContractError, EnvCrashError
from menv.loop.convert import check_number
from menv.migration_hints import Result
from menv.plain_data import is_plain
from menv.scale.same_spaces import declared

if TYPE_CHECKING:
    from menv.algorithms.evaluation.evaluation_workers import EvaluationWorkers
    from menv.scale.packing import Sealed

_SEED = 10_000
_OWN = {"env", "env_config", "multiagent"}
"""Settings of evaluations that decide who plays in what."""
_NEAR: dict[str, Any] = {"remote_worker_envs": False, "remote_env_batch_wait_ms": 0, "env_timeout": None}


class Evaluations:
    """Those of one run.

    Args:
        config: The training run's settings.
        population: The policies.
        training_env: That which is trained in, if there is one.
        callbacks: Told about evaluations and their episodes.
        seed: Of the training run.

    Attributes:
        latest: What the latest evaluation told, {} before the first.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        population: Population,
        training_env: Any,
        callbacks: DefaultCallbacks,
        seed: int,
    ) -> None:
        self.latest: dict[str, Any] = {}
        self._config = config
        self._population = population
        self._training_env = training_env
        self._callbacks = callbacks
        self._seed = seed
        self._evaluation: Evaluation | EvaluationWorkers | None = None
        # What workers are told of the settings, from before callbacks were shown the algorithm and kept it.
        self._first: Sealed | None = None
        self._declared = declared(training_env)
        self._playing = False

    def rehearse(self) -> None:
        """Keep the settings for workers, and try out who plays in what, where evaluations have their own of that.

        It is found out at once then what is wrong, and not when the first of them is due.

        Raises:
            ConfigError: The environment cannot be played in by the policies, or is none.
            ContractError: An agent maps to no policy.
            EnvCrashError: The environment could not be created.
        """
        config = self._config
        if config.evaluation_num_workers:
            from menv.algorithms.evaluation.evaluation_workers import sealed
            from menv.scale.engines import check_system

            check_system()
            self._first = sealed(evaluation_settings(config))
        if config.evaluation_interval is not None:
            self._try_out()

    def _try_out(self) -> None:
        if not self._config.evaluation_config:
            return
        settings = evaluation_settings(self._config)
        with _told_where():
            if not self._have_own:
                check_number(self._training_env, settings.num_envs_per_worker)
                return
            near = replace(settings, num_envs_per_worker=1, **_NEAR)
            env, base_env = make_evaluation_experience(near, self._training_env)
            try:
                self._check_plays(env, base_env, settings)
            finally:
                base_env.stop()
        self._declared = declared(env)

    @property
    def _have_own(self) -> bool:
        return bool(_OWN & set(self._config.evaluation_config or ()))

    def _check_plays(self, env: Any, base_env: BaseEnv, settings: AlgorithmConfig) -> None:
        check_number(env, settings.num_envs_per_worker)
        if not base_env.external:
            self._players(settings).check_plays(base_env, env, settings)

    def _make_envs(self, settings: AlgorithmConfig) -> BaseEnv:
        env, base_env = make_evaluation_experience(settings, self._training_env)
        try:
            if self._have_own:
                with _told_where():
                    self._check_plays(env, base_env, settings)
        except BaseException:
            base_env.stop()
            raise
        return base_env

    def run(self, algorithm: Any, underway: Underway) -> dict[str, Any]:
        """Play, and return what it told; `algorithm` is what callbacks are shown.

        It is half done until `on_evaluate_end` is called, so that the run may be saved there.

        Raises:
            CallOrderError: Somebody calls it whom an evaluation has called.
        """
        if self._playing:
            raise CallOrderError(
                "evaluate: an evaluation is going on, expected to stand between two; its own hooks cannot begin another"
            )
        try:
            self._playing = True
            with underway.half("an evaluation is going on"):
                self._play(algorithm)
            self._callbacks.on_evaluate_end(algorithm=algorithm, evaluation_metrics=self.latest)
        finally:
            self._playing = False
        return self.latest

    def _play(self, algorithm: Any) -> None:
        evaluation = self._ready()
        if not evaluation.begun:
            self._callbacks.on_evaluate_start(algorithm=algorithm)
        self.latest = Result({"evaluation": evaluation.run()})
        numbers = evaluation.recreated()
        if numbers:
            self._callbacks.on_workers_recreated(
                algorithm=algorithm, worker_ids=list(numbers), is_evaluation=True
            )

    def begin(self, algorithm: Any, iteration: int) -> None:
        """Let workers play what an iteration ends with while it trains, where they shall."""
        if self._config.evaluation_parallel_to_training and self.due(iteration):
            self._callbacks.on_evaluate_start(algorithm=algorithm)
            self._ready().begin()

    def due(self, iteration: int) -> bool:
        """Return whether an iteration ends with an evaluation."""
        interval = self._config.evaluation_interval
        return interval is not None and iteration % interval == 0

    def begin_again(self, seed: int) -> None:
        """Forget what plays, for a run with this seed."""
        self.stop()
        self._evaluation, self._seed = None, seed

    def state(self) -> dict[str, Any]:
        """Return what the next evaluation depends on, and what the latest told as far as a file can hold it."""
        return {
            "evaluation": None if self._evaluation is None else self._evaluation.state(),
            "evaluated": self.latest if is_plain(self.latest) else {},
        }

    def set_state(self, tree: Mapping[str, Any]) -> None:
        """Go on from what `state` of another run returned."""
        self.latest = tree["evaluated"]
        if tree["evaluation"] is not None:
            self._ready().set_state(tree["evaluation"])

    def stop(self) -> None:
        """Close the environments."""
        if self._evaluation is not None:
            self._evaluation.stop()

    def _ready(self) -> Evaluation | EvaluationWorkers:
        if self._evaluation is None:
            self._evaluation = self._new_evaluation()
        return self._evaluation

    def _new_evaluation(self) -> Evaluation | EvaluationWorkers:
        config, first, seed = self._config, self._training_env, self._seed + _SEED
        settings = evaluation_settings(config)
        players = self._players(settings)
        if config.evaluation_num_workers:
            from menv.algorithms.evaluation.evaluation_workers import EvaluationWorkers

            if config.evaluation_interval is None:
                self._try_out()
            return EvaluationWorkers(settings, players, first, seed, self._first, self._declared)
        own = settings["callbacks"]
        callbacks = self._callbacks if own is config["callbacks"] else read_callbacks(own)
        return Evaluation(settings, players, self._make_envs, callbacks, seed)

    def _players(self, settings: AlgorithmConfig) -> Players:
        mapped = "policy_mapping_fn" in ((self._config.evaluation_config or {}).get("multiagent") or {})
        return Players(self._population, settings.multiagent.policy_mapping_fn if mapped else None)


@contextmanager
def _told_where() -> Iterator[None]:
    """Let messages about what is wrong begin with the setting."""
    try:
        yield
    except (ConfigError, ContractError, EnvCrashError) as error:
        raise type(error)(f"evaluation_config: {error}") from (error.__cause__ or error)
