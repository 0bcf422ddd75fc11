"""The evaluations of one run: when they are due, in which environments, and the workers that run them in parallel.

`menv.algorithms.rollouts.evaluation` runs the episodes, in this process or in each worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from menv.adapters.adapter import Adapter
from menv.adapters.convert import check_number
from menv.adapters.validation import Declared, declared
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.read_config import evaluation_settings
from menv.algorithms.rollouts.environments import check_evaluable, create_evaluation_envs
from menv.algorithms.rollouts.evaluation import Evaluation, EvaluationShare, check_env
from menv.algorithms.rollouts.rollout_worker import RolloutWorker
from menv.algorithms.rollouts.worker_group import WorkerGroup, sealed_settings
from menv.algorithms.rollouts.worker_messages import (
    PolicyUpdate,
    PolicyView,
    WorkerSettings,
)
from menv.algorithms.training.operation_guard import OperationGuard
from menv.algorithms.training.policy_set import PolicySet
from menv.callbacks import DefaultCallbacks, read_callbacks
from menv.errors import CallOrderError, ConfigError, ContractError, EnvCrashError
from menv.metrics import Metrics, MetricsState
from menv.migration_hints import Result
from menv.policy_map import PolicyMap
from menv.sampling.sampler import Count
from menv.workers.engines import check_system, make_engine
from menv.workers.messages import UnsendableError

if TYPE_CHECKING:
    from menv.algorithms.algorithm import Algorithm

_SEED = 10_000
_OWN = {"env", "env_config", "multiagent"}
"""Evaluation settings that change environments or policies."""
_NEAR: dict[str, Any] = {"remote_worker_envs": False, "remote_env_batch_wait_ms": 0, "env_timeout": None}


class EvaluationRunner:
    """The evaluations of one run; environments and workers are created when the first one begins.

    `latest` is the latest result, {} before the first.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        policy_set: PolicySet,
        training_env: Any,
        callbacks: DefaultCallbacks,
        seed: int,
    ) -> None:
        self.latest: dict[str, Any] = {}
        self._in_hook = False
        self._config = config
        self._policy_set = policy_set
        # The policies under the mapping of evaluations, and the run's map when they were mapped.
        self._policy_view: PolicyView = policy_set
        self._mapped_from = policy_set.policy_map
        self._training_env = training_env
        self._callbacks = callbacks
        self._seed = seed
        self._evaluation: Evaluation | RemoteEvaluation | None = None
        # Evaluations so far.
        self._count = 0
        self._metrics = Metrics(0)
        # Settings for workers from before callbacks received the algorithm and kept it.
        self._first: WorkerSettings | None = None
        self._declared = declared(training_env)

    def check_settings(self) -> None:
        """Check separate evaluation settings at once, because the first evaluation may be hours away.

        Keep the settings for workers, pickled before callbacks receive the algorithm.
        """
        config = self._config
        if config.evaluation_num_workers:
            check_system()
            self._first = sealed(evaluation_settings(config))
        if config.evaluation_interval is not None:
            self._try_out()

    def _try_out(self) -> None:
        if not self._config.evaluation_config:
            return
        settings = evaluation_settings(self._config)
        with _prefixed_errors():
            if not self._have_own:
                check_number(self._training_env, settings.num_envs_per_worker)
                return
            near = replace(settings, num_envs_per_worker=1, **_NEAR)
            env, base_env = create_evaluation_envs(near, self._training_env)
            try:
                self._check_env(env, base_env, settings)
            finally:
                base_env.stop()
        self._declared = declared(env)

    @property
    def _have_own(self) -> bool:
        return bool(_OWN & set(self._config.evaluation_config or ()))

    def _check_env(self, env: object, base_env: Adapter, settings: AlgorithmConfig) -> None:
        check_number(env, settings.num_envs_per_worker)
        if not base_env.external:
            check_env(self._mapped(settings), base_env, env, settings)

    def _make_envs(self, settings: AlgorithmConfig) -> Adapter:
        env, base_env = create_evaluation_envs(settings, self._training_env)
        try:
            if self._have_own:
                with _prefixed_errors():
                    self._check_env(env, base_env, settings)
        except BaseException:
            base_env.stop()
            raise
        return base_env

    def run(self, algorithm: Algorithm, operation_guard: OperationGuard) -> dict[str, Any]:
        """Evaluate and return the result; `algorithm` is passed to callbacks.

        Once `on_evaluate_end` is called nothing is half done, so that the run may be saved there.
        """
        if self._in_hook:
            raise CallOrderError(
                "evaluate: called by on_evaluate_end, expected after it; call it after evaluate() or train()"
            )
        with operation_guard.in_progress("an evaluation is running"):
            evaluation = self._ready()
            if isinstance(evaluation, RemoteEvaluation):
                shares = evaluation.play(self._count)
            else:
                shares = [evaluation.play(self._count)]
            for share in shares:
                self._metrics.absorb(share.metrics)
            self._count += 1
            summary = self._metrics.summary()
            found = {
                **summary,
                "sampler_results": summary,
                "num_env_steps_sampled_this_iter": sum(share.env_steps for share in shares),
                "num_agent_steps_sampled_this_iter": sum(share.agent_steps for share in shares),
            }
            self.latest = Result({"evaluation": found})
        self._in_hook = True
        try:
            self._callbacks.on_evaluate_end(algorithm=algorithm, evaluation_metrics=self.latest)
        finally:
            self._in_hook = False
        return self.latest

    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        """Call a method of the sub-environments of evaluations, which are created now if there are none."""
        return self._ready().call_envs(method, args)

    def take_faults(self) -> list[dict[str, Any]]:
        """Return the faults of environments since the last call; see `Metrics.faults`."""
        return self._metrics.take_faults()

    def begin(self, iteration: int) -> None:
        """Start the workers on the evaluation that ends this iteration, if it runs parallel to training."""
        if self._config.evaluation_parallel_to_training and self.due(iteration):
            evaluation = self._ready()
            assert isinstance(evaluation, RemoteEvaluation)
            evaluation.begin(self._count)

    def break_off(self) -> None:
        """End an evaluation that workers are running."""
        if isinstance(self._evaluation, RemoteEvaluation):
            self._evaluation.break_off()

    def due(self, iteration: int) -> bool:
        """Return whether an iteration ends with an evaluation."""
        interval = self._config.evaluation_interval
        return interval is not None and iteration % interval == 0

    def restart(self, seed: int) -> None:
        """Discard environments and workers, for a run with this seed."""
        self.stop()
        self._evaluation, self._seed = None, seed

    def state(self) -> EvaluationState:
        """Return what the next evaluation depends on."""
        return EvaluationState(self._count, self._metrics.state())

    def set_state(self, state: EvaluationState) -> None:
        """Restore `state`."""
        self._count = state.count
        self._metrics.set_state(state.metrics)

    def stop(self) -> None:
        """Close the environments."""
        if self._evaluation is not None:
            self._evaluation.stop()

    def _ready(self) -> Evaluation | RemoteEvaluation:
        if self._evaluation is None:
            self._evaluation = self._new_evaluation()
        elif self._policy_set.policy_map is not self._mapped_from:
            self._policy_view.policy_map = self._mapped(evaluation_settings(self._config)).policy_map
            self._mapped_from = self._policy_set.policy_map
        return self._evaluation

    def _new_evaluation(self) -> Evaluation | RemoteEvaluation:
        config, seed, settings = self._config, self._seed + _SEED, evaluation_settings(self._config)
        self._policy_view, self._mapped_from = self._mapped(settings), self._policy_set.policy_map
        if config.evaluation_num_workers:
            check_evaluable(settings, self._training_env)
            if config.evaluation_interval is None:
                self._try_out()
            return RemoteEvaluation(
                settings, self._policy_view, seed, self._metrics, self._first, self._declared
            )
        own = settings["callbacks"]
        callbacks = self._callbacks if own is config["callbacks"] else read_callbacks(own)
        return Evaluation(settings, self._policy_view, self._make_envs, callbacks, seed)

    def _mapped(self, settings: AlgorithmConfig) -> PolicyView:
        """Return the policies under the mapping of evaluations, the set of the run where it is the same."""
        own = self._policy_set
        if "policy_mapping_fn" not in ((self._config.evaluation_config or {}).get("multiagent") or {}):
            return own
        mapped = own.policy_map.changed(policy_mapping_fn=settings.multiagent.policy_mapping_fn)
        return PolicyView(mapped, own.policies, own.groups, own.postprocessor)


@contextmanager
def _prefixed_errors() -> Iterator[None]:
    try:
        yield
    except (ConfigError, ContractError, EnvCrashError) as error:
        raise type(error)(f"evaluation_config: {error}") from (error.__cause__ or error)


@dataclass
class EvaluationState:
    """What the next evaluation depends on: how many there were, and the episodes that means are over."""

    count: Count
    metrics: MetricsState


class RemoteEvaluation:
    """An evaluation whose quota is shared by workers, which start with the first one; see `Evaluation`.

    Each has its share of sub-environments and episodes; the result does not depend on their number. `metrics` records
    lost episodes.
    """

    def __init__(
        self,
        settings: AlgorithmConfig,
        policy_view: PolicyView,
        seed: int,
        metrics: Metrics,
        first: WorkerSettings | None,
        declared: Declared,
    ) -> None:
        config = _of_workers(settings)
        self._policy_view = policy_view
        engine = make_engine(config.engine, patience=config.worker_start_timeout_s)
        self._workers = WorkerGroup(
            config, policy_view, seed, engine, config.num_envs_per_worker, metrics,
            settings=first, declared=declared, in_evaluation=True,
        )  # fmt: skip
        # The policies that workers have; None after an interruption.
        self._playing: PolicyMap | None = policy_view.policy_map
        # Whether an evaluation is under way, and the update that it began with.
        self._begun = False
        self._update: PolicyUpdate | None = None
        # The last arguments of each method that was called, for workers that are created later.
        self._calls: dict[str, tuple[Any, ...]] = {}

    def begin(self, number: int) -> None:
        """Let workers start an evaluation with the current policies; `play` waits for it."""
        self._follow()
        self._workers.policy_sync.resend_filters()
        # If this is interrupted, some workers lack the update.
        playing, self._playing, self._begun = self._playing, None, False
        with self._workers.update() as self._update:
            for index in range(len(self._workers)):
                self._workers.ask(index, RolloutWorker.quota, number, self._update)
        self._playing, self._begun = playing, True

    def play(self, number: int) -> list[EvaluationShare]:
        """Return the shares of the evaluation that was begun, or of a new one."""
        if not self._begun:
            self.begin(number)
        playing, self._playing, self._begun = self._playing, None, False
        shares: list[EvaluationShare] = []
        for index in range(len(self._workers)):
            share = self._workers.result(index, RolloutWorker.quota, number, self._update)
            assert share is not None
            self._workers.warn(share.warnings)
            shares.append(share)
        self._playing, self._update = playing, None
        return shares

    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        """Call a method of every sub-environment; an evaluation that is under way begins again afterwards."""
        self._follow()
        self._begun = False
        found = self._workers.call_all(RolloutWorker.call_envs, method, args)
        self._calls[method] = args
        return [value for values in found for value in values or ()]

    def break_off(self) -> None:
        """End a running evaluation with its processes."""
        if self._workers.kill_busy():
            self._playing, self._begun = None, False

    def stop(self) -> None:
        """End the workers."""
        self._workers.stop()

    def _follow(self) -> None:
        """Let workers be created again with the current policies, where they have others."""
        policy_map = self._policy_view.policy_map
        if policy_map is not self._playing:
            for index in range(len(self._workers)):
                self._workers.outdate(index)
            for method, args in self._calls.items():
                self._workers.call_all(RolloutWorker.call_envs, method, args)
            self._workers.policy_sync.mark_sent()
            self._playing = policy_map


def sealed(settings: AlgorithmConfig) -> WorkerSettings | None:
    """Return the settings of evaluation workers, pickled before callbacks receive the algorithm.

    None if they cannot be pickled; the first evaluation raises the error.
    """
    with suppress(UnsendableError):
        return sealed_settings(_of_workers(settings))
    return None


def _of_workers(settings: AlgorithmConfig) -> AlgorithmConfig:
    return replace(
        settings, num_workers=settings.evaluation_num_workers, overlap=False, max_staleness=1, input=None
    )
