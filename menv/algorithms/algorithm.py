"""The training loop: sample, hand each policy's batch to its learner, publish the weights, report.

`PPO`, `DQN` and `QMIX` differ in their `recipe`; this loop is the same for all. The settings are in
`menv.algorithms.config`, and `menv.algorithms.policy_set` holds the policies.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from menv import rng
from menv.adapters.adapter import Adapter
from menv.adapters.external import ExternalEnvs
from menv.algorithms.checkpoints import Checkpoints, TrainingProgress, TrainingState
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.read_config import evaluation_settings, read_config
from menv.algorithms.evaluation_runner import EvaluationRunner
from menv.algorithms.learn import learn
from menv.algorithms.learners import learner_info, merged
from menv.algorithms.policy_set import PolicyAccess, PolicySet
from menv.algorithms.recipe import Recipe
from menv.algorithms.remote_rollouts import WorkerGroupFactory
from menv.algorithms.results import EvaluationResult, TrainResult
from menv.algorithms.rollouts import BatchAccumulator, LocalRollouts, Rollouts
from menv.algorithms.weight_publisher import WeightPublisher
from menv.callbacks import read_callbacks
from menv.errors import CallOrderError, ConfigError, MissingExtraError
from menv.metrics import Metrics
from menv.migration_hints import Result, hinted, old_arguments, warn_of_uncalled
from menv.policy_map import PolicyMap
from menv.registry import describe_env
from menv.sample_batch import MultiAgentBatch
from menv.sampling.infer_policies import AgentSpaces, resolve_agents, resolve_specs
from menv.sampling.sampler import Sampler
from menv.tracking.tracker import Tracker


class ExternalClients:
    """The clients of an external environment, as the algorithm sees them; does nothing without one.

    `publisher` offers policies to the clients, None without an external environment.
    """

    def __init__(
        self, config: AlgorithmConfig, base_env: Adapter, rollouts: Rollouts, policy_set: PolicySet
    ) -> None:
        self._base_env = base_env
        self._rollouts = rollouts
        self.publisher: WeightPublisher | None = None
        if isinstance(base_env, ExternalEnvs):
            assert isinstance(rollouts, LocalRollouts)
            on_policy = any(not recipe.off_policy for recipe in policy_set.learners.recipes.values())
            self.publisher = WeightPublisher(
                config, base_env, rollouts.sampler, lambda: policy_set.policies, on_policy=on_policy
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server; see `Algorithm.input_address`."""
        addresses = getattr(self._base_env, "addresses", [])
        if not addresses:
            raise ConfigError(
                'input_address: this algorithm has no server, expected one in config["input"]; see PolicyServerInput'
            )
        host, port = addresses[0]
        return str(host), int(port)

    def publish(self) -> None:
        """Offer the current weights to the clients."""
        if self.publisher is not None:
            self.publisher.publish()

    def follow_connectors(self) -> None:
        """Publish again if connectors have changed; called before each fragment."""
        if self.publisher is not None:
            self.publisher.follow_connectors()

    def report(self) -> dict[str, Any]:
        """Return the entry `external` of a result, {} without an external environment."""
        if not self._base_env.external:
            return {}
        assert isinstance(self._rollouts, LocalRollouts)
        sampler, status = self._rollouts.sampler, self._base_env.status()
        if sampler.idle:
            told = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in list(status.items())[:2])
            status["idle"] = (
                f"no step in {self._base_env.idle_timeout:g} s: {told}{_awaited(sampler.awaited)}"
            )
        writer = sampler.external_writer
        return {
            "external": {
                **status,
                "num_off_policy_steps": writer.off_policy_rows,
                "num_stale_steps": writer.stale_rows,
                "num_agent_steps_left_out": self._rollouts.left_out,
            }
        }


def _awaited(episodes: Sequence[Any]) -> str:
    if not episodes:
        return ""
    names = ", ".join(f"{name!r:.60}" for name in episodes[:3]) + (", ..." if len(episodes) > 3 else "")
    return (
        f'; batch_mode="complete_episodes" waits for the end of {names}, and others wait for that, expected an end of '
        'each episode; call end_episode, use "truncate_episodes", or, where one thread plays several episodes by turns '
        "and waits in a new one, a thread for each"
    )


def check_packages(who: str, *packages: str) -> None:
    """Raise `MissingExtraError` where packages of `menv-rl[train]` are missing; imports none of them."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        one = len(missing) == 1
        raise MissingExtraError(
            f"{who}: the package{'' if one else 's'} {' and '.join(missing)} {'is' if one else 'are'} not installed, "
            f"expected {'it' if one else 'them'}; run: pip install 'menv-rl[train]'"
        )


class Algorithm(PolicyAccess, Checkpoints):
    """The training loop; also usable as a context manager that stops it.

    Attributes:
        config: The settings, complete.
        last_result: What `train()` returned last, {} before.
    """

    recipe: ClassVar[Recipe]
    """Trains the policies that name no other algorithm."""

    if not TYPE_CHECKING:
        __getattr__ = hinted("Algorithm")

    @old_arguments("settings go into config, such as config={'lr': 0.001}")
    def __init__(self, config: Any = None, env: Any = None) -> None:
        """Create the environments, the policies and the sampler.

        Args:
            config: A classic dict or an instance of `config_class`.
            env: Overrides the config's `env`.

        Raises:
            ConfigError: A setting is wrong.
            EnvCrashError: An environment could not be created.
            MissingExtraError: torch or onnx is not installed.
        """
        _refuse_without_recipe(type(self))
        check_packages(type(self).__name__, "torch", "onnx")
        warn_of_uncalled(type(self).__name__, "Algorithm", type(self))
        self.config = read_config(self.recipe.config_class, config, env, self.get_default_config())
        # Wrong evaluation settings are refused now: the first evaluation may be hours away.
        evaluation_settings(self.config)
        multi = self.config.multiagent
        self._callbacks = read_callbacks(self.config["callbacks"])
        seed = secrets.randbits(62) if self.config.seed is None else int(self.config.seed)
        if self.config.seed is not None:
            rng.seed_process(seed)
        self._progress = TrainingProgress(seed)
        self._worker_factory = WorkerGroupFactory(self.config)
        self._operation_guard = OperationGuard()
        policy_map = PolicyMap(multi.policies, multi.policy_mapping_fn, multi.policies_to_train)
        first, self._base_env = self._worker_factory.make_envs()
        # A vector environment of the user has batched spaces, `base_env` the spaces of one agent.
        declares = self._base_env if self._base_env.lockstep else first
        reshaped = multi.observation_fn is not None
        observations = AgentSpaces(declares, "observation", self.config.observation_space, reshaped=reshaped)
        actions = AgentSpaces(declares, "action", self.config.action_space)
        workers = self.config.num_workers
        envs: dict[str, Any] = {"base_env": self._base_env, "env": first, "num_workers": workers}
        self._policy_set = PolicySet(
            policy_map, partial(resolve_specs, observations=observations, actions=actions, **envs),
            partial(resolve_agents, **envs), self.config, self.recipe, seed, self._callbacks,
        )  # fmt: skip
        self._metrics = Metrics(self.config.metrics_num_episodes_for_smoothing)
        self._rollouts = self._worker_factory.rollouts(
            self._base_env, self._policy_set, self._callbacks, seed, self._metrics
        )
        self._evaluation_runner = EvaluationRunner(
            self.config, self._policy_set, first, self._callbacks, seed
        )
        # Where all sub-environments step together there is one agent in each.
        by_rows = multi.count_steps_by == "agent_steps" and not self._base_env.lockstep
        self._accumulator = BatchAccumulator(self._rollouts, by_rows=by_rows)
        self._stopped = False
        self._external_clients = ExternalClients(
            self.config, self._base_env, self._rollouts, self._policy_set
        )
        self._training_state = TrainingState(
            self._progress, self._policy_set, self._rollouts, self._metrics, self._evaluation_runner, self._accumulator,
            self._external_clients.publisher,
        )  # fmt: skip
        self._open()

    def _open(self) -> None:
        """Check the evaluation settings and call `on_algorithm_init`; stop the algorithm if either raises."""
        try:
            self._evaluation_runner.check_settings()
            self._progress.started_at = time.perf_counter()
            self._callbacks.on_algorithm_init(algorithm=self)
        except BaseException:
            self.stop()
            raise

    def __repr__(self) -> str:
        count = len(self._policy_set.policies)
        policies = f"{count} {'policy' if count == 1 else 'policies'}"
        return (
            f"{type(self).__name__}({describe_env(self.config.env)}, {policies}, iteration {self.iteration})"
        )

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """Return the default settings; `get_default_config().copy()` is a dict of them."""
        return cls.recipe.config_class()

    @property
    def iteration(self) -> int:
        """Training iterations so far."""
        return self._progress.iteration

    @iteration.setter
    def iteration(self, number: int) -> None:
        self._progress.iteration = number

    @property
    def input_address(self) -> tuple[str, int]:
        """Host and port of the server that receives experience, the first one if there are several.

        Raises:
            ConfigError: There is none.
        """
        return self._external_clients.address

    @property
    def _sampler(self) -> Sampler:
        assert isinstance(self._rollouts, LocalRollouts)
        return self._rollouts.sampler

    def sample(self) -> MultiAgentBatch:
        """Return one fragment, ready to learn from, without learning.

        It holds `rollout_fragment_length` steps of every sub-environment, but for rows whose reward
        is not complete yet; those come with the next one.

        Raises:
            CallOrderError: A fragment is being sampled, another thread is at work, or the algorithm was stopped.
        """
        if self._stopped:
            raise CallOrderError("sample: this algorithm was stopped; build a new one")
        with (
            self._operation_guard.call("sample"),
            self._operation_guard.in_progress("a fragment is being sampled"),
        ):
            self._external_clients.follow_connectors()
            return self._rollouts.sample()

    def train(self) -> TrainResult:
        """Sample a train batch, learn from it and return the result.

        Returns:
            The classic keys:

            - Of the latest episodes: `episode_reward_mean/min/max` and `episode_len_mean` (None without
              a finished episode), `policy_reward_mean/min/max` by policy, the same by agent (`agent_reward_...`, over
              the episodes in which it lived; members of a group too) and by group of agents (`group_reward_...`),
              `hist_stats`, `custom_metrics`. Of more than 1,000 agents, the ones in most episodes are listed;
              `agent_rewards_omitted` counts the returns of the others.
            - Of this iteration: `episodes_this_iter`, `num_faulty_episodes` (ended by a fault of their environment, or
              could not begin), `episode_media` (a list for each name in `episode.media`).
            - Since the start: `faulty_episodes_total`, and `first_fault`, the cause of the first of them in one line.
            - `num_episodes_not_resumed`: since the start, episodes that ran at a `save`, or when `train` was
              interrupted,
              and could not be resumed.
            - `sampler_results`: all of these again, and `sampler_perf`.
            - `info`: learning statistics, at `info[policy]` and at `info["learner"][policy]["learner_stats"]`; entries
              that `on_learn_on_batch` adds are at `info["learner"][policy]["custom_metrics"]` too.
            - `num_env_steps_sampled`, `num_agent_steps_sampled`, the same `_trained`, and more counts.
            - `digest`: of all rows sampled since the start; equal for two runs with the same experience.
            - With workers `num_worker_restarts` since the start, and with `overlap` the `staleness` of the learned
              rows,
              mean and max: updates between the weights that acted and the weights that learned.
            - `external`, with external clients: `open_episodes`, rows that not every algorithm can learn from
              (`num_off_policy_steps`, of which `num_stale_steps` for their old weights), rows that were left out
              (`num_agent_steps_left_out`), and `idle`, a sentence, if no client has called for a while.

        Raises:
            CallOrderError: A hook calls it within an iteration, another thread is at work, or the algorithm was
                stopped.
        """
        if self._stopped:
            raise CallOrderError("train: this algorithm was stopped; build a new one")
        with self._operation_guard.call("train", whole=True):
            try:
                with self._operation_guard.in_progress("an iteration is being trained"):
                    result = self._train_once()
            finally:
                self._progress.enter("")
            self.last_result = result
            self._attach_evaluation(result)
            self._callbacks.on_train_result(algorithm=self, result=result)
        return cast(TrainResult, result)

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        stop: Mapping[str, float] | None = None,
        run_dir: str | PathLike[str] | None = None,
        progress_bar: bool = False,
        save_every: int | None = None,
        trackers: Sequence[Tracker] = (),
    ) -> TrainResult:
        """Train until a number of env steps or another bound is reached, and return the last result.

            PPO(env="CartPole-v1").learn(100_000, run_dir="runs/cartpole")
            algo.learn(stop={"episode_reward_mean": 450, "time_total_s": 600}, progress_bar=True)

        Whole iterations are trained. A bound that is reached already trains nothing. Ctrl-C and exceptions end the
        run too, and what was learned by then is saved first.

        Args:
            total_timesteps: Env steps of the whole run, including those before it was resumed.
            stop: Bounds by result key, `a/b` for nested results. The first one that is reached ends the run.
            run_dir: A new folder for settings, results, curves and checkpoints, see `menv.tracking.RunFolder`. An
                algorithm from `from_checkpoint` may go into the folder of its run. None writes nothing.
            progress_bar: Show a table of the progress; needs the package rich.
            save_every: Save a checkpoint after every `save_every`-th iteration; None saves about once a minute and
                keeps the last three. The end of the run is always saved.
            trackers: More trackers of the run, such as your own subclass of `menv.tracking.Tracker`.

        Raises:
            ConfigError: There is no bound, a bound can never be reached, or `run_dir` holds something else.
            NotWrittenError: The run folder or the last checkpoint cannot be written.
        """
        result = learn(
            self, total_timesteps, stop=stop, run_dir=run_dir, progress_bar=progress_bar, save_every=save_every,
            trackers=trackers,
        )  # fmt: skip
        return cast(TrainResult, result)

    def _train_once(self) -> dict[str, Any]:
        began = time.perf_counter()
        self._evaluation_runner.begin(self, self.iteration + 1)
        rollouts = self._rollouts
        env_steps, agent_steps = rollouts.env_steps, rollouts.agent_steps
        learners = self._policy_set.learners
        env_trained, agent_trained = learners.env_steps_trained, learners.agent_steps_trained
        times = {"sample_time_s": 0.0, "learn_time_s": 0.0}
        rollouts.timers.take()
        stats: dict[str, list[dict[str, Any]]] = {}
        taken, progress = 0, self._progress
        progress.first_step = self._steps_sampled()
        while taken < self._iteration_size:
            progress.enter("sampling")
            before = progress.phase_at
            sampled_before = rollouts.env_steps, rollouts.agent_steps
            batch, more = self._accumulator.batch(
                self._policy_set.sample_size(rollouts.num_envs), self.sample
            )
            sampled = time.perf_counter()
            if batch is None:
                times["sample_time_s"] += sampled - before
                break
            progress.enter("learning")
            with rollouts.lock:
                per_step = rollouts.agent_steps - sampled_before[1]
                ratio = (rollouts.env_steps - sampled_before[0]) / per_step if per_step else 1.0
                told = learners.learn(batch, rollouts.env_steps, ratio)
            for policy_id, own in told.items():
                stats.setdefault(policy_id, []).append(own)
            self._external_clients.publish()
            times["sample_time_s"] += sampled - before
            times["learn_time_s"] += time.perf_counter() - sampled
            taken += more
        learned = time.perf_counter()
        self.iteration += 1
        sampler_results = {
            **self._metrics.summary(),
            "sampler_perf": {**times, **rollouts.timers.take().as_seconds()},
        }
        return Result(
            {
                **sampler_results,
                "sampler_results": sampler_results,
                "info": learner_info(
                    {name: merged(own) for name, own in stats.items()}, learners.take_custom_metrics()
                ),
                **self.counts(),
                "num_env_steps_sampled_this_iter": rollouts.env_steps - env_steps,
                "num_agent_steps_sampled_this_iter": rollouts.agent_steps - agent_steps,
                "num_env_steps_trained_this_iter": learners.env_steps_trained - env_trained,
                "num_agent_steps_trained_this_iter": learners.agent_steps_trained - agent_trained,
                "digest": rollouts.digest.hex(),
                "inference": self.inference,
                **self._of_workers(),
                "time_this_iter_s": learned - began,
                "time_total_s": learned - self._progress.started_at,
                **self._external_clients.report(),
            }
        )

    @property
    def _iteration_size(self) -> int:
        return max(1, self.config.iteration_size(self._rollouts.num_envs))

    def _steps_sampled(self) -> int:
        """Return the steps since the start, in the unit of `train_batch_size`."""
        rollouts = self._rollouts
        if self._accumulator.by_rows:
            return rollouts.agent_steps
        return rollouts.env_steps + rollouts.steps_under_way

    def under_way(self) -> dict[str, Any]:
        """Return how far the run is within its iteration; any thread may ask at any time.

        Returns:
            `counts()`, where `num_env_steps_sampled` includes unfinished fragments of this process and finished ones of
            workers; `time_total_s`; `phase`, which is "sampling", "learning", "evaluating", or "" between iterations,
            and `phase_s`, its seconds so far; `steps` of this iteration and `steps_due`, both as `train_batch_size`
            counts them.
        """
        progress, rollouts, now = self._progress, self._rollouts, time.perf_counter()
        steps, due = self._steps_sampled() - progress.first_step, self._iteration_size
        return {
            **self.counts(),
            "num_env_steps_sampled": rollouts.env_steps + rollouts.steps_under_way,
            "time_total_s": now - progress.started_at,
            "phase": progress.phase,
            "phase_s": now - progress.phase_at,
            "steps": max(0, min(steps, due)),
            "steps_due": due,
        }

    def break_off(self) -> None:
        """After Ctrl-C, end what workers are doing, so that `save` does not wait for it.

        Their running episodes are lost.
        """
        self._rollouts.break_off()
        self._evaluation_runner.break_off()

    def counts(self) -> dict[str, int]:
        """Return the counters of the run, including the parts before it was resumed.

        Returns:
            `training_iteration`, and env and agent steps under the keys that results have for the whole run.
        """
        rollouts, learners = self._rollouts, self._policy_set.learners
        return {
            "training_iteration": self.iteration,
            "num_env_steps_sampled": rollouts.env_steps,
            "num_agent_steps_sampled": rollouts.agent_steps,
            "num_env_steps_trained": learners.env_steps_trained,
            "num_agent_steps_trained": learners.agent_steps_trained,
            "timesteps_total": rollouts.env_steps,
            "agent_timesteps_total": rollouts.agent_steps,
        }

    def evaluate(self) -> EvaluationResult:
        """Evaluate the current policies in separate environments, without learning.

        Returns:
            `{"evaluation": metrics}`, with the keys about episodes that `train` returns, also at
            `sampler_results`, over exactly `evaluation_duration` episodes; where that counts "timesteps", over whole
            episodes that have as many env steps at least.

        Raises:
            CallOrderError: An evaluation is running, another thread is at work, or the algorithm was stopped.
        """
        if self._stopped:
            raise CallOrderError("evaluate: this algorithm was stopped; build a new one")
        # Policies must not change meanwhile; an external environment may wait for the thread that changes them.
        lock = nullcontext() if self._base_env.external else self._rollouts.lock
        with self._operation_guard.call("evaluate"), lock:
            self._progress.enter("evaluating")
            try:
                return cast(EvaluationResult, self._evaluation_runner.run(self, self._operation_guard))
            finally:
                self._progress.enter("")

    def _attach_evaluation(self, result: dict[str, Any]) -> None:
        if self._evaluation_runner.due(self.iteration):
            result.update(self.evaluate())
        elif self.config.always_attach_evaluation_results:
            result.update(self._evaluation_runner.latest)

    def _of_workers(self) -> dict[str, Any]:
        numbers = self._worker_factory.replaced()
        if numbers:
            self._callbacks.on_workers_recreated(algorithm=self, worker_ids=numbers, is_evaluation=False)
        return self._worker_factory.report()

    def worker_pids(self) -> list[int | None]:
        """Return the process ids of the workers, [] without workers; None for one that has not answered yet."""
        return [] if self._stopped else list(self._worker_factory.pids)

    def call_envs(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every sub-environment, in this process, in workers, in remote environments.

        A curriculum is one use: `algorithm.call_envs("set_level", 3)` in `on_train_result`. Workers first complete the
        fragments that they were asked for. The environments of evaluations and of replacement workers are not called:
        `on_sub_environment_created` receives both.

        Args:
            method: The method's name.
            args: Its arguments; with workers they are pickled, as results are.

        Returns:
            The returned values in the order of the sub-environments, the first worker's first.

        Raises:
            ConfigError: A sub-environment has no such method, or there are none that could be called.
            CallOrderError: The algorithm was stopped.
        """
        if self._stopped:
            raise CallOrderError("call_envs: this algorithm was stopped; build a new one")
        return self._rollouts.call_envs(method, args)

    def stop(self) -> None:
        """Close the environments, all of them where one raises; may be called more than once."""
        self._stopped = True
        with ExitStack() as stopping:
            stopping.callback(self._evaluation_runner.stop)
            stopping.callback(self._base_env.stop)
            stopping.callback(self._rollouts.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _refuse_without_recipe(kind: type[Algorithm]) -> None:
    if not hasattr(kind, "recipe"):
        raise ConfigError(
            f"{kind.__name__}: it does not say how policies are trained, expected one of PPO, DQN and QMIX; write "
            "PPO(env=..., config={...}), or call Algorithm.from_checkpoint(folder)"
        )


_BETWEEN = "expected to stand between two; call it after train() or sample(), or in on_train_result"


class OperationGuard:
    """The calls of one algorithm that are running, all in one thread.

    Other threads are refused or wait, so that no operation starts while another one is half done.
    """

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._thread: int | None = None
        # The running calls of that thread, the outermost first, and whether they are brief.
        self._calls: list[str] = []
        self._brief = False
        # The operation in progress, in words.
        self._half: str | None = None
        # The interrupted operation that must be repeated.
        self._undone: str | None = None

    @contextmanager
    def call(self, name: str, *, whole: bool = False, brief: bool = False) -> Iterator[None]:
        """Run a call, which may be within another one of the same thread.

        A brief call of another thread is waited for. Waiting for any other could deadlock: an environment may ask for a
        policy to be saved while the sampler waits for that environment. `whole` requires that nothing is in progress.
        """
        own = False
        try:
            with self._free:
                self._free.wait_for(lambda: self._mine or not self._calls or not self._brief)
                self._check(name, whole)
                if not self._calls:
                    self._thread, self._brief = threading.get_ident(), brief
                self._calls.append(name)
                own = True
            yield
        finally:
            if own:
                with self._free:
                    self._calls.pop()
                    self._free.notify_all()

    @contextmanager
    def in_progress(self, what: str) -> Iterator[None]:
        """Mark something, described in words, as half done; only within a call."""
        before = self._half
        try:
            self._half = what
            yield
        finally:
            self._half = before

    @property
    def is_idle(self) -> bool:
        """Whether nothing is half done."""
        return self._half is None

    @contextmanager
    def must_finish(self, name: str) -> Iterator[None]:
        """Until an operation succeeds, refuse every other one: interrupted, it leaves parts of two runs."""
        self._undone = name
        yield
        self._undone = None

    def refuse_others(self, name: str, instead: str) -> None:
        """Raise `CallOrderError` if another thread is at work."""
        with self._free:
            if self._calls and not self._mine and not self._brief:
                raise CallOrderError(
                    f"{name}: {self._calls[0]}() runs in another thread, expected none; {instead}"
                )

    @property
    def _mine(self) -> bool:
        return self._thread == threading.get_ident()

    def _check(self, name: str, whole: bool) -> None:
        if self._calls and not self._mine:
            raise CallOrderError(
                f"{name}: {self._calls[0]}() runs in another thread, expected none; call it in that thread, or once "
                "that has returned"
            )
        if self._undone not in (None, name):
            raise CallOrderError(
                f"{name}: {self._undone} was broken off, expected it to come to its end, because there are parts of "
                f"two runs now; call {self._undone} again, or build a new algorithm"
            )
        if whole and self._half is not None:
            raise CallOrderError(f"{name}: {self._half}, {_BETWEEN}")
