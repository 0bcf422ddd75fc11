"""The evaluations of one run: when they are due, in which environments, and the workers that run them in parallel.

`menv.algorithms.rollouts.evaluation` runs the episodes, in this process or in each worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from menv.adapters.adapter import Adapter
from menv.adapters.convert import check_number
from menv.adapters.validation import Declared, check_worker, declared
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.read_config import evaluation_settings
from menv.algorithms.rollouts.environments import check_evaluable, create_evaluation_envs
from menv.algorithms.rollouts.evaluation import Evaluation, EvaluationShare, check_env
from menv.algorithms.rollouts.rollout_worker import collect_warnings, open_settings
from menv.algorithms.rollouts.worker_group import PolicySync, WorkerGroup, sealed_settings
from menv.algorithms.rollouts.worker_messages import (
    PolicyUpdate,
    PolicyView,
    WorkerCounters,
    WorkerInit,
    WorkerSettings,
    joined_state,
)
from menv.algorithms.training.operation_guard import OperationGuard
from menv.algorithms.training.policy_set import PolicySet
from menv.callbacks import DefaultCallbacks, read_callbacks
from menv.errors import CallOrderError, ConfigError, ContractError, EnvCrashError
from menv.metrics import Metrics, MetricsState
from menv.migration_hints import Result
from menv.policy_map import PolicyMap
from menv.sampling.sampler import SamplerState
from menv.workers.engines import check_system, make_engine
from menv.workers.pipe_channel import UnsendableError
from menv.workers.watchdog import Watchdog, creation_limit, limited

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
        self._evaluation: EvaluationGroup | None = None
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
            self.latest = Result({"evaluation": self._ready().run()})
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
        return [] if self._evaluation is None else self._evaluation.metrics.take_faults()

    def begin(self, iteration: int) -> None:
        """Start the workers on the evaluation that ends this iteration, if it runs parallel to training."""
        if self._config.evaluation_parallel_to_training and self.due(iteration):
            self._ready().begin()

    def break_off(self) -> None:
        """End an evaluation that workers are running."""
        if self._evaluation is not None:
            self._evaluation.break_off()

    def due(self, iteration: int) -> bool:
        """Return whether an iteration ends with an evaluation."""
        interval = self._config.evaluation_interval
        return interval is not None and iteration % interval == 0

    def restart(self, seed: int) -> None:
        """Discard environments and workers, for a run with this seed."""
        self.stop()
        self._evaluation, self._seed = None, seed

    def state(self) -> EvaluationState | None:
        """Return what the next evaluation depends on; None before the first one."""
        return None if self._evaluation is None else self._ready().state()

    def set_state(self, state: EvaluationState | None) -> None:
        """Restore `state`."""
        if state is not None:
            self._ready().set_state(state)

    def stop(self) -> None:
        """Close the environments."""
        if self._evaluation is not None:
            self._evaluation.stop()

    def _ready(self) -> EvaluationGroup:
        if self._evaluation is None:
            self._evaluation = self._new_evaluation()
        elif self._policy_set.policy_map is not self._mapped_from:
            self._policy_view.policy_map = self._mapped(evaluation_settings(self._config)).policy_map
            self._mapped_from = self._policy_set.policy_map
        return self._evaluation

    def _new_evaluation(self) -> EvaluationGroup:
        config, first, seed = self._config, self._training_env, self._seed + _SEED
        settings = evaluation_settings(config)
        self._policy_view, self._mapped_from = self._mapped(settings), self._policy_set.policy_map
        if config.evaluation_num_workers:
            check_evaluable(settings, first)
            if config.evaluation_interval is None:
                self._try_out()
            return EvaluationGroup(settings, self._policy_view, seed, None, self._first, self._declared)
        own = settings["callbacks"]
        callbacks = self._callbacks if own is config["callbacks"] else read_callbacks(own)
        here = Evaluation(settings, self._policy_view, self._make_envs, callbacks, seed)
        return EvaluationGroup(settings, self._policy_view, seed, here)

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


class EvaluationWorker(Evaluation):
    """Runs the share that its placement says, in another process.

    It imports no torch, unless a policy acts with it.
    """

    def __init__(self, worker_init: WorkerInit) -> None:
        config, policies = open_settings(worker_init), worker_init.worker_policies
        self._worker_policies, self._declared = policies, worker_init.declared
        # Remote environments are watched from here.
        self._seconds = None if config.remote_worker_envs else config.env_timeout
        super().__init__(
            config, policies, self._make_envs, read_callbacks(config["callbacks"]), worker_init.seed,
            worker_init.placement,
        )  # fmt: skip
        self.guard = Watchdog(self._seconds, lambda: self.progress)

    def follow_and_play(self, update: PolicyUpdate) -> EvaluationShare:
        """Run the episodes after applying an update."""
        # No episode is running.
        self._worker_policies.take(update)
        with collect_warnings() as faults:
            return self.play()._replace(warnings=faults)

    def _make_envs(self, config: AlgorithmConfig) -> Adapter:
        with limited(creation_limit(self._seconds)):
            first, base_env = create_evaluation_envs(config, None, self._placement)
        check_worker(f"evaluation worker {self._placement.worker_index}", base_env, first, self._declared)
        return base_env


@dataclass
class EvaluationState:
    """What the next evaluation depends on; `sampler` is None where it begins again."""

    sampler: SamplerState | None
    metrics: MetricsState


class EvaluationGroup:
    """The processes that run the episodes of evaluations: workers, which start with the first one, or only this.

    Each has its share of sub-environments and episodes; the result does not depend on their number. `here` runs the
    episodes in this process; None starts workers.
    """

    def __init__(
        self,
        settings: AlgorithmConfig,
        policy_view: PolicyView,
        seed: int,
        here: Evaluation | None,
        first: WorkerSettings | None = None,
        declared: Declared | None = None,
    ) -> None:
        self._settings = settings if here is not None else _of_workers(settings)
        self._first, self._declared = first, declared
        self._policy_view = policy_view
        self._seed = seed
        self._here = here
        self.metrics = Metrics(0)
        self._workers: WorkerGroup | None = None
        if here is None:
            self._policy_sync = PolicySync(policy_view)
            self._engine = make_engine(settings.engine, patience=settings.worker_start_timeout_s)
        self._playing: PolicyMap | None = None
        self._interrupted = False
        # An evaluation that was begun and not waited for, the update sent with it, and its results.
        self._begun = False
        self._update: PolicyUpdate | None = None
        self._played: Sequence[EvaluationShare] | None = None
        # The last arguments of each method that was called, for workers that are created later.
        self._calls: dict[str, tuple[Any, ...]] = {}
        # Sampler states of another run, until the next evaluation resumes them.
        self._resumed: SamplerState | None = None

    @property
    def begun(self) -> bool:
        """Whether the next `run` returns an evaluation that was begun earlier."""
        return self._begun or self._played is not None

    def begin(self) -> None:
        """Let workers start an evaluation with the current policies; `run` waits for it."""
        # Discard an evaluation that was begun and not waited for.
        self._interrupted |= self._begun
        self._played = None
        workers = self._ready()
        self._policy_sync.resend_filters()
        # If pickling fails, no worker has received the update.
        self._interrupted = True
        update = self._engine.put(self._policy_sync.next_update())
        self._begun = True
        if self._resumed is not None:
            state, self._resumed = self._resumed, None
            workers.stand_in(state.replaced)
            workers.call_all(EvaluationWorker.resume, state)
        workers.ask_all(EvaluationWorker.follow_and_play, update)
        self._update, self._interrupted = update, False

    def run(self) -> dict[str, Any]:
        """Return the metrics of the evaluation that was begun, or of a new one."""
        shares = [self._here.play()] if self._here is not None else self._all_played()
        for share in shares:
            self.metrics.absorb(share.metrics)
            if self._workers is not None:
                self._workers.warn(share.warnings)
        self._played = None
        summary = self.metrics.summary()
        return {
            **summary,
            "sampler_results": summary,
            "num_env_steps_sampled_this_iter": sum(share.env_steps for share in shares),
            "num_agent_steps_sampled_this_iter": sum(share.agent_steps for share in shares),
        }

    def call_envs(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        """Call a method of every sub-environment, after an evaluation that workers have begun."""
        if self._here is not None:
            return self._here.call_envs(method, args)
        if self._begun:
            self._all_played()
        found = self._ready().call_all(EvaluationWorker.call_envs, method, args)
        self._calls[method] = args
        return [value for values in found for value in values or ()]

    def _all_played(self) -> Sequence[EvaluationShare]:
        if not self.begun:
            self.begin()
        if self._played is None:
            assert self._workers is not None
            assert self._update is not None
            self._begun, self._interrupted = False, True
            self._played = self._workers.answers(EvaluationWorker.follow_and_play, self._update)
            self._interrupted = False
        return self._played

    def break_off(self) -> None:
        """End a running evaluation with its processes."""
        if self._workers is not None and self._workers.kill_busy():
            self._begun, self._interrupted = False, True

    def state(self) -> EvaluationState | None:
        """Return what the next evaluation depends on; None before the first one and after a failed one."""
        if self._here is not None:
            return EvaluationState(self._here.state(), self.metrics.state())
        if self._resumed is not None:
            return EvaluationState(self._resumed, self.metrics.state())
        if self._workers is None or self._interrupted:
            return None
        if self._begun:
            self._all_played()
        whole = None
        # With other policies the next evaluation begins again.
        if self._playing is self._policy_view.policy_map:
            states = [one for one in self._workers.call_all(EvaluationWorker.state) if one is not None]
            if len(states) == len(self._workers):
                whole = joined_state(states, WorkerCounters(), 0, self._workers.replaced)
        return EvaluationState(whole, self.metrics.state())

    def set_state(self, state: EvaluationState) -> None:
        """Restore `state` of another run's evaluation, by workers or not."""
        if self._here is None:
            self._resumed = state.sampler
        elif state.sampler is not None:
            self._here.resume(state.sampler)
        self.metrics.set_state(state.metrics)

    def stop(self) -> None:
        """End the workers, or close the environments of this process."""
        if self._here is not None:
            self._here.stop()
        if self._workers is not None:
            self._workers.stop()

    def _ready(self) -> WorkerGroup:
        policy_map = self._policy_view.policy_map
        if self._workers is None:
            self._workers = WorkerGroup(
                EvaluationWorker, self._settings, self._policy_sync, self._seed, self._engine,
                self._settings.num_envs_per_worker, self._lose, label="evaluation worker",
                first=self._first, declared=self._declared,
            )  # fmt: skip
        elif self._interrupted or policy_map is not self._playing:
            for index in range(len(self._workers)):
                self._workers.create_again(index)
            for method, args in self._calls.items():
                self._workers.call_all(EvaluationWorker.call_envs, method, args)
        else:
            return self._workers
        self._policy_sync.mark_sent()
        self._playing = policy_map
        return self._workers

    def _lose(self, _index: int, record: dict[str, Any]) -> None:
        for _ in range(self._settings.num_envs_per_worker):
            self.metrics.record_faulty(record["line"])
        self.metrics.faults.append(record)


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
