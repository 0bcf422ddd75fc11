"""The training loop: sample, hand each policy's batch to its learner, publish the weights, report.

Algorithms differ in their `recipe`; this loop is the same for all. The settings are in
`menv.algorithms.config`, and `menv.algorithms.training.policy_set` holds the policies.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np

from menv import rng
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.read_config import evaluation_settings, read_config
from menv.algorithms.recipe import BUILT_IN, Recipe, find_algorithm, recipe_of
from menv.algorithms.rollouts.evaluation_runner import EvaluationRunner
from menv.algorithms.rollouts.local_rollouts import BatchAccumulator, RecordedRows
from menv.algorithms.rollouts.remote_rollouts import WorkerGroupFactory
from menv.algorithms.training.checkpoints import Checkpoints, SavedRun, TrainingProgress
from menv.algorithms.training.crash_capsules import CrashCapsules
from menv.algorithms.training.league import make_league
from menv.algorithms.training.learn import hyperparameters, learn
from menv.algorithms.training.learners import learner_info, merged
from menv.algorithms.training.operation_guard import OperationGuard
from menv.algorithms.training.policy_set import PolicySet
from menv.algorithms.training.results import EvaluationResult, TrainResult
from menv.algorithms.training.torch_threads import check_packages
from menv.algorithms.training.weight_publisher import ExternalClients
from menv.callbacks import read_callbacks
from menv.errors import ConfigError, ContractError
from menv.interrupts import updates
from menv.metrics import Metrics
from menv.migration_hints import Result, hint, hinted, warn_of_uncalled
from menv.policy import Policy, one_row, weights_of
from menv.policy_map import DEFAULT_POLICY, PolicyMap
from menv.policy_spec import ids_given, spec_like
from menv.registry import describe_env
from menv.sample_batch import MultiAgentBatch
from menv.sampling.infer_policies import AgentSpaces, resolve_agents, resolve_specs
from menv.sampling.sampler import Sampler
from menv.tracking.tracker import Tracker


class Algorithm:
    """The training loop; also usable as a context manager that stops it.

    Attributes:
        config: The settings, complete.
        run_dir: The run folder that `learn` writes, None without one.
    """

    recipe: ClassVar[Recipe]
    """Trains the policies that name no other algorithm."""
    run_dir: Path | None = None

    if not TYPE_CHECKING:
        __getattr__ = hinted(lambda algo, name: hint("Algorithm", name))

    def __init__(self, config: Any = None, env: Any = None) -> None:
        """Create the environments, the policies and the sampler.

        Args:
            config: A classic dict or an instance of `config_class`.
            env: Overrides the config's `env`.

        Raises:
            ConfigError: A setting is wrong.
            EnvCrashError: An environment could not be created.
            MissingExtraError: onnx is not installed, or torch, which an algorithm without `policies_to_train` does
                not need.
        """
        _refuse_without_recipe(type(self))
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
        check_packages(type(self).__name__, *["torch"] * (not policy_map.all_frozen), "onnx")
        first, self._base_env = self._worker_factory.make_envs()
        # A vector environment of the user has batched spaces, `base_env` the spaces of one agent.
        declares = self._base_env if self._base_env.lockstep else first
        reshaped = multi.observation_fn is not None
        observations = AgentSpaces(declares, "observation", self.config.observation_space, reshaped=reshaped)
        actions = AgentSpaces(declares, "action", self.config.action_space)
        workers = self.config.num_workers
        envs: dict[str, Any] = {"base_env": self._base_env, "env": first, "num_workers": workers}
        resolve = partial(resolve_specs, observations=observations, actions=actions, **envs)
        agents = partial(resolve_agents, **envs)
        self._league = make_league(self.config.self_play, policy_map, resolve, agents, seed)
        self._policy_set = PolicySet(
            policy_map if self._league is None else self._league.policy_map, resolve, agents, self.config,
            self.recipe, seed, self._callbacks, first,
        )  # fmt: skip
        if self._league is not None:
            self._league.start(self._policy_set)
        window = self.config.metrics_num_episodes_for_smoothing
        self._metrics = Metrics(window, external=self._base_env.external)
        self._rollouts = self._worker_factory.rollouts(
            self._base_env, self._policy_set, self._callbacks, seed, self._metrics
        )
        mixed = isinstance(self.config.input, Mapping)
        self._recorded = RecordedRows(self.config, self._policy_set, first, seed) if mixed else None
        self._evaluation_runner = EvaluationRunner(
            self.config, self._policy_set, first, self._callbacks, seed
        )
        # Where all sub-environments step together there is one agent in each.
        by_rows = multi.count_steps_by == "agent_steps" and not self._base_env.lockstep
        self._accumulator = BatchAccumulator(self._rollouts, by_rows=by_rows)
        self._crash_capsules = CrashCapsules(self.config)
        self._external_clients = ExternalClients(
            self.config, self._base_env, self._rollouts, self._policy_set
        )
        self._checkpoints = Checkpoints(
            self.recipe.name, self.config, self._operation_guard, self._progress, self._policy_set, self._rollouts,
            self._metrics, self._evaluation_runner, self._accumulator, self._external_clients, self._league,
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
    def last_result(self) -> Mapping[str, Any]:
        """What `train()` returned last, also before the run was resumed; {} before the first iteration."""
        return self._progress.result

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Algorithm, environment and settings, as trackers log them: JSON values, by names such as `model.use_lstm`."""
        return hyperparameters(self)

    @property
    def input_address(self) -> tuple[str, int]:
        """Host and port of the server that receives experience, the first one if there are several.

        Raises:
            ConfigError: There is none.
        """
        return self._external_clients.address

    @property
    def _sampler(self) -> Sampler:
        assert self._rollouts.sampler is not None
        return self._rollouts.sampler

    def sample(self) -> MultiAgentBatch:
        """Return one fragment, ready to learn from, without learning.

        It holds `rollout_fragment_length` steps of every sub-environment, but for rows whose reward
        is not complete yet; these rows come with the next one.

        Raises:
            CallOrderError: A fragment is being sampled, another thread is at work, or the algorithm was stopped.
        """
        with self._operation_guard.call("sample"):
            return self._sample()

    def _sample(self) -> MultiAgentBatch:
        with (
            self._operation_guard.in_progress("a fragment is being sampled"),
            self._crash_capsules.written(self._metrics.take_faults),
        ):
            self._external_clients.follow_connectors()
            batch = self._rollouts.sample()
            return batch if self._recorded is None else self._recorded.added_to(batch)

    def train(self) -> TrainResult:
        """Sample a train batch, learn from it and return the result.

        Returns:
            The classic keys; `docs/reference/results.md` has them all.

            - Of the latest episodes: `episode_reward_mean/min/max` and `episode_len_mean` (None without a finished
              episode), `policy_reward_mean/min/max` by policy, `agent_reward_...` by agent, `group_reward_...` by group
              of agents, `hist_stats`, `custom_metrics`.
            - Of this iteration: `episodes_this_iter`, `num_faulty_episodes`, `episode_media`.
            - `info`: learning statistics, at `info[policy]` and at `info["learner"][policy]["learner_stats"]`; entries
              that `on_learn_on_batch` adds are at `info["learner"][policy]["custom_metrics"]` too.
            - `num_env_steps_sampled`, `num_agent_steps_sampled`, the same `_trained`, and more counts.
            - `digest`: of all rows sampled since the start; equal for two runs with the same experience.
            - `recording`, with recorded episodes as the only `input`: the keys about episodes, of the recorded ones.
            - `external`, with external clients: open episodes, and rows that not every algorithm can learn from.

        Raises:
            CallOrderError: A hook calls it within an iteration, another thread is at work, or the algorithm was
                stopped.
        """
        with self._operation_guard.call("train"):
            try:
                # Workers report faults before their fragments are read.
                faults = self._crash_capsules.written(self._metrics.take_faults)
                with self._operation_guard.in_progress("an iteration is being trained"), faults:
                    result = self._train_once()
            finally:
                self._progress.enter("")
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

        Whole iterations are trained. A bound that is reached already trains nothing: `last_result` is returned. Ctrl-C
        and exceptions end the run too, after a checkpoint is saved. With a `run_dir`, SIGTERM and
        SIGHUP do the same and end the program with the status 128 + the signal's number, in the main thread and unless
        the program has its own handlers.

        Args:
            total_timesteps: Env steps of the whole run, including env steps before it was resumed.
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

    def _begin_iteration(self) -> None:
        """Let `under_way` count seconds and steps from here."""
        self._progress.enter("")
        self._progress.first_step = self._steps_sampled()

    def _train_once(self) -> dict[str, Any]:
        self._begin_iteration()
        began = time.perf_counter()
        self._evaluation_runner.begin(self.iteration + 1)
        rollouts = self._rollouts
        env_steps, agent_steps = rollouts.counters.env_steps, rollouts.counters.agent_steps
        learners = self._policy_set.learners
        env_trained, agent_trained = learners.env_steps_trained, learners.agent_steps_trained
        times = {"sample_time_s": 0.0, "learn_time_s": 0.0}
        rollouts.timers.take()
        stats: dict[str, list[dict[str, Any]]] = {}
        taken, progress = 0, self._progress
        while taken < self._iteration_size:
            progress.enter("sampling")
            before = progress.phase_at
            sampled_before = rollouts.counters.env_steps, rollouts.counters.agent_steps
            size = self._policy_set.sample_size(rollouts.num_envs)
            batch, more = self._accumulator.batch(size, self._sample)
            sampled = time.perf_counter()
            if batch is None:
                times["sample_time_s"] += sampled - before
                break
            progress.enter("learning")
            told = self._learn(batch, *sampled_before)
            for policy_id, own in told.items():
                stats.setdefault(policy_id, []).append(own)
            self._external_clients.publish(changed=bool(told))
            times["sample_time_s"] += sampled - before
            times["learn_time_s"] += time.perf_counter() - sampled
            taken += more
        learned = time.perf_counter()
        learned_from = {name: merged(own) for name, own in stats.items()}
        # An interrupt between them would leave an iteration that counts without a result.
        with updates:
            self.iteration += 1
            sampler_results = {
                **self._of_episodes(),
                "sampler_perf": {**times, **rollouts.timers.take().as_seconds()},
            }
            found = {
                **sampler_results,
                "sampler_results": sampler_results,
                "info": learner_info(learned_from, learners.take_custom_metrics()),
                **self.counts(),
                "num_env_steps_sampled_this_iter": rollouts.counters.env_steps - env_steps,
                "num_agent_steps_sampled_this_iter": rollouts.counters.agent_steps - agent_steps,
                "num_env_steps_trained_this_iter": learners.env_steps_trained - env_trained,
                "num_agent_steps_trained_this_iter": learners.agent_steps_trained - agent_trained,
                "digest": rollouts.counters.digest.hex(),
                "inference": self.inference,
                **self._rollouts.report(),
                "time_this_iter_s": learned - began,
                "time_total_s": learned - self._progress.started_at,
                **self._external_clients.report(),
            }
            result = self._progress.result = Result(found)
        return result

    def _learn(self, batch: MultiAgentBatch, env_steps: int, agent_steps: int) -> dict[str, dict[str, Any]]:
        """Learn from a batch and return statistics; the two counts are from before it was sampled."""
        rollouts = self._rollouts
        with rollouts.lock:
            sampled = rollouts.counters.agent_steps - agent_steps
            ratio = (rollouts.counters.env_steps - env_steps) / sampled if sampled else 1.0
            return self._policy_set.learners.learn(batch, rollouts.counters.env_steps, ratio)

    @property
    def _iteration_size(self) -> int:
        return max(1, self.config.iteration_size(self._rollouts.num_envs))

    def _steps_sampled(self) -> int:
        """Return the steps since the start, in the unit of `train_batch_size`."""
        rollouts = self._rollouts
        if self._accumulator.by_rows:
            return rollouts.counters.agent_steps
        return rollouts.counters.env_steps + rollouts.steps_under_way

    def under_way(self) -> dict[str, Any]:
        """Return how far the run is within its iteration; any thread may ask at any time.

        Returns:
            `counts()`, where `num_env_steps_sampled` includes unfinished fragments of this process and finished ones of
            workers; `time_total_s`; `phase`, which is "sampling", "learning", "evaluating", or "" between iterations,
            and `phase_s`, its seconds so far; `steps` of the iteration that began last and `steps_due`, both as
            `train_batch_size` counts them.
        """
        progress, rollouts, now = self._progress, self._rollouts, time.perf_counter()
        steps, due = self._steps_sampled() - progress.first_step, self._iteration_size
        return {
            **self.counts(),
            "num_env_steps_sampled": rollouts.counters.env_steps + rollouts.steps_under_way,
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
            "num_env_steps_sampled": rollouts.counters.env_steps,
            "num_agent_steps_sampled": rollouts.counters.agent_steps,
            "num_env_steps_trained": learners.env_steps_trained,
            "num_agent_steps_trained": learners.agent_steps_trained,
            "timesteps_total": rollouts.counters.env_steps,
            "agent_timesteps_total": rollouts.counters.agent_steps,
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
        # Policies must not change meanwhile; an external environment may wait for the thread that changes them.
        lock = nullcontext() if self._base_env.external else self._rollouts.lock
        faults = self._crash_capsules.written(self._evaluation_runner.take_faults)
        with self._operation_guard.call("evaluate"), lock, faults:
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

    def _of_episodes(self) -> dict[str, Any]:
        if isinstance(self.config.input, str):
            # The policies of this run played none of the recorded episodes.
            return {**Metrics().summary(), "recording": self._metrics.summary()}
        if self._league is None:
            return self._metrics.summary()
        with self._rollouts.lock:
            return self._league.summary(self.iteration, self._metrics, self._rollouts.seats_playing)

    def worker_pids(self) -> list[int | None]:
        """Return the process ids of the workers, [] without workers; None for one that has not answered yet."""
        return [] if self._operation_guard.stopped else self._rollouts.pids

    def call_envs(self, method: str, *args: Any, evaluation: bool = False) -> list[Any]:
        """Call a method of every sub-environment, in this process, in workers, in remote environments.

        A curriculum is one use: `algorithm.call_envs("set_level", 3)` in `on_train_result`. Workers first complete the
        fragments that they were asked for. The environments of replacement workers are not called:
        `on_sub_environment_created` receives them.

        Args:
            method: The method's name.
            args: Its arguments; with workers they are pickled, as results are.
            evaluation: Whether to call the sub-environments of evaluations instead. The next evaluation resets them.

        Returns:
            The returned values in the order of the sub-environments, the first worker's first.

        Raises:
            ConfigError: A sub-environment has no such method, or there are none that could be called.
            CallOrderError: The algorithm was stopped.
        """
        self._operation_guard.refuse_stopped("call_envs")
        return (self._evaluation_runner if evaluation else self._rollouts).call_envs(method, args)

    @property
    def inference(self) -> dict[str, str]:
        """The backend of each policy's network, "onnx" or "torch", by policy id."""
        return self._policy_set.inference

    def get_policy(self, policy_id: str = DEFAULT_POLICY) -> Policy:
        """Return a policy.

        Raises:
            ConfigError: There is no such policy.
        """
        return self._policy_set.get(policy_id)

    def compute_single_action(
        self,
        obs: Any,
        policy_id: str = DEFAULT_POLICY,
        explore: bool | None = None,
        state: Sequence[Any] | None = None,
        *,
        full_fetch: bool = False,
    ) -> Any:
        """Return one policy's env-ready action for one observation.

        Args:
            obs: An element of the policy's observation space.
            policy_id: The policy that acts.
            explore: False takes the most likely action; None does as `config.explore` says.
            state: Hidden state of a recurrent policy: at first `get_policy(policy_id).get_initial_state()`, then the
                state
                returned for the previous observation. With a state, `(action, state, fetches)` is returned.
            full_fetch: Whether these three are returned without a state too.

        Raises:
            CallOrderError: Another thread trains, samples or evaluates.
            ConfigError: There is no such policy.
            ContractError: The observation is outside the space, or a recurrent policy is given no state.
        """
        explore = self.config.explore if explore is None else explore
        if not isinstance(explore, int | np.bool_):
            raise ConfigError(
                f"compute_single_action: explore is {explore!r:.60}, expected True, False or None; leave it out to "
                "follow config.explore"
            )
        self._operation_guard.refuse_others(
            "compute_single_action", "ask copy.deepcopy(algo.get_policy(policy_id)), made before"
        )
        policy = self.get_policy(policy_id)
        batches = [] if state is None else one_row("compute_single_action", state)
        if not batches and policy.get_initial_state():
            raise ContractError(
                f"compute_single_action: no state for the recurrent policy {policy_id!r}, expected its state; pass "
                "state=policy.get_initial_state() first, then the returned state"
            )
        if state is None and not full_fetch:
            return policy.compute_actions([obs], explore=explore)[0][0]
        actions, states, fetches = policy.compute_actions([obs], batches, explore=explore)
        return actions[0], [part[0] for part in states], {name: value[0] for name, value in fetches.items()}

    def export_policy_checkpoint(self, folder: str | Path, policy_id: str = DEFAULT_POLICY) -> Path:
        """Write one policy into a new folder, from which `Policy.from_checkpoint` makes it again.

        Args:
            folder: Must not exist; all of it is written, or nothing.
            policy_id: Which.

        Returns:
            The folder.

        Raises:
            ConfigError: There is no such policy, the folder exists, or the policy has no form on disk.
        """
        policy = self._policy_set.on_disk(policy_id)
        return policy.export_checkpoint(folder, trained=self._checkpoints.trained(policy_id))

    def get_weights(self, policy_ids: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        """Return copies of the weights of some policies, or of all."""
        known = self._policy_set.policies
        ids = list(known) if policy_ids is None else ids_given("get_weights", policy_ids)
        return {policy_id: dict(weights_of(self.get_policy(policy_id))) for policy_id in ids}

    def set_weights(self, weights: Mapping[str, Mapping[str, Any]]) -> None:
        """Copy weights in, by policy id; learners continue from them. If one policy refuses its weights, none change.

        Connectors stay, statistics of filters included: `add_policy(policy=...)` copies both.
        Layers that a policy shares (`model={"shared_layers": ...}`) change for its whole group; if several of a group
        are given, the last one's hold.
        """
        self._policy_set.set_weights(self._policy_set.read_weights(weights))
        self._external_clients.publish()

    def add_policy(
        self,
        policy_id: str,
        spec: Any = None,
        *,
        policy: Policy | None = None,
        policy_mapping_fn: Callable[..., Any] | None = None,
        policies_to_train: Iterable[str] | Callable[..., bool] | None = None,
    ) -> Policy:
        """Add a policy; it acts in episodes that begin after the call.

        Args:
            policy_id: A new id.
            spec: As in `policies`; None infers everything.
            policy: A trained policy to copy: one of this or another algorithm (`get_policy`), or one of a checkpoint,
                as in `add_policy("expert", policy=Policy.from_checkpoint(folder))`. The new policy starts with its
                weights and its connectors, statistics of filters included, and with its spaces unless `spec` gives
                some. Its network must be the one that `spec` and the settings of this algorithm describe.
            policy_mapping_fn: Replaces the mapping; None keeps it.
            policies_to_train: Replaces the set of trained policies; None keeps it.

        Returns:
            The policy.

        Raises:
            ConfigError: The id exists, a setting is wrong, the network of `policy` is another one, or the run has
                `self_play`.
            ContractError: The mapping returns an unknown id for a possible agent.
        """
        self._refuse_with_league("add_policy")
        with self._rollouts.lock:
            self._update_free_slots()
            before = self._policy_set.policy_map
            if policy is not None:
                spec = spec_like(policy_id, spec, policy)
            added = self._policy_set.add(policy_id, spec, policy_mapping_fn, policies_to_train)
            try:
                if policy is not None:
                    self._policy_set.copy(policy, policy_id)
                self._rollouts.follow(added)
            except ConfigError:
                # Its network differs, or workers cannot receive it.
                self._policy_set.undo_add(policy_id, added, before)
                raise
        self._external_clients.publish()
        return self._policy_set.get(policy_id)

    def remove_policy(
        self,
        policy_id: str,
        *,
        policy_mapping_fn: Callable[..., Any] | None = None,
        policies_to_train: Iterable[str] | Callable[..., bool] | None = None,
    ) -> None:
        """Remove a policy; running episodes keep it to their end, but its rows are no longer learned from.

        Args:
            policy_id: Its id.
            policy_mapping_fn: Replaces the mapping; None keeps it.
            policies_to_train: Replaces the set of trained policies; None keeps it.

        Raises:
            ConfigError: There is no such policy, it is the last one, or the run has `self_play`.
            ContractError: The mapping still returns it for a known agent.
        """
        self._refuse_with_league("remove_policy")
        self._worker_factory.check_travels(policy_mapping_fn, policies_to_train)
        with self._rollouts.lock:
            self._policy_set.remove(policy_id, policy_mapping_fn, policies_to_train)
            self._rollouts.retire(policy_id)
            self._rollouts.follow()
            self._accumulator.drop(policy_id)
            self._update_free_slots()
        self._external_clients.publish()

    def _refuse_with_league(self, call: str) -> None:
        if self._league is not None:
            raise ConfigError(
                f"{call}: called in a run with self_play, expected the same policies to its end; give all of them in "
                "policies and self_play={'opponents': ...}"
            )

    def _update_free_slots(self) -> None:
        """Record which running episodes may still use removed policies, where that can be known."""
        free_slots = self._policy_set.free_slots
        running = self._rollouts.running_ids() if free_slots and self._operation_guard.is_idle else None
        if running is not None:
            free_slots.update_running(running)

    def save(
        self,
        path: str | Path | None = None,
        *,
        keep_last: int | None = None,
        keep_best: tuple[str, int] | None = None,
    ) -> Path:
        """Write a checkpoint, to be called between two iterations, also in `on_train_result` and `on_evaluate_end`.

        It is written to `path/<iteration>/`, and `path/LATEST` names it when it is complete: a process that is killed
        while it saves leaves the previous checkpoint. It holds weights, optimizers, replayed experience, counters,
        metrics, filters and the place in each random stream. Nothing in it is code. Each policy that can act without
        its learner is also written separately, for `Policy.from_checkpoint`.

        A run that resumes begins new episodes. Running episodes are truncated there: `num_episodes_not_resumed`
        counts them; rows that were sampled and not learned from are dropped. The run that continues is not disturbed.

        Args:
            path: A folder, required; created if missing.
            keep_last: Keep this many of the last written checkpoints and delete the others, whatever their numbers:
                checkpoints of an earlier run in this folder go first. None deletes none.
            keep_best: `(metric, n)` keeps also the n with the highest value of a key of the result, such as
                `"episode_reward_mean"` or `"evaluation/episode_reward_mean"`, including an earlier run's; without
                `keep_last` all others but the latest are deleted.

        Returns:
            The numbered folder.

        Raises:
            CallOrderError: An iteration, a fragment or an evaluation is half done, in this thread or in another one, or
                the algorithm was stopped.
            ConfigError: A setting is wrong, or something cannot be written.
            NotWrittenError: There is no room; earlier checkpoints are intact.
        """
        with self._crash_capsules.written(self._metrics.take_faults):
            return self._checkpoints.save(path, keep_last, keep_best)

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        config: Any = None,
        env: Any = None,
        *,
        policy_ids: Collection[str] | None = None,
        policy_mapping_fn: Callable[..., Any] | None = None,
        policies_to_train: Iterable[str] | Callable[..., bool] | None = None,
    ) -> Self:
        """Return an algorithm that resumes a saved one; `Algorithm` itself accepts menv's and registered algorithms.

        Args:
            path: The `path` of `save`, for the latest checkpoint, or a numbered folder in it.
            config: Settings that override the stored ones. Functions, classes other than menv's and gymnasium's spaces,
                and environments that this process does not know by name are not in a checkpoint and must be given here.
                With another `seed`, weights and counts are restored, and everything sampled from here on differs.
            env: Overrides the config's `env`.
            policy_ids: The policies to load, or the id of one; None loads all. Ids in `config` that the
                checkpoint lacks are ignored: `add_policy` adds policies afterwards.
            policy_mapping_fn: Overrides the config's.
            policies_to_train: Overrides the config's.

        Raises:
            ConfigError: The checkpoint was changed, is of another algorithm, or something is missing that must be
                given.
        """
        saved = SavedRun.read(path, cls)
        kind = cls
        if not hasattr(cls, "recipe"):
            name = saved.manifest["algorithm"]
            kind = cast("type[Self]", algorithm_class(name, "from_checkpoint: algorithm", imports=False))
        settings = saved.settings(
            kind.recipe.config_class, config, env, policy_ids,
            policy_mapping_fn=policy_mapping_fn, policies_to_train=policies_to_train,
        )  # fmt: skip
        with saved.bounds_networks():
            algo = kind(settings)
        try:
            algo._checkpoints.load(saved)
        except BaseException:
            algo.stop()
            raise
        return algo

    def restore(self, path: str | Path) -> None:
        """Resume a saved algorithm with the same policies and networks; this algorithm's own progress is discarded.

        Its settings stay, `seed` too: policies sample as in the saved run, environments are reset with the seeds
        of this one. With the same `seed` and settings it samples what `from_checkpoint` does.

        Where it is interrupted after it has begun to change anything, by Ctrl-C or an environment that raises, nothing
        else can be called before `restore` has completed.

        Args:
            path: As for `from_checkpoint`.

        Raises:
            CallOrderError: As of `save`.
            ConfigError: The checkpoint was changed, or is of other policies or networks; nothing has changed,
                unless the message says that this algorithm cannot continue.
        """
        self._checkpoints.restore(path, type(self))

    def stop(self) -> None:
        """Close the environments, all of them where one raises; may be called more than once."""
        self._operation_guard.stopped = True
        with ExitStack() as stopping:
            stopping.callback(self._evaluation_runner.stop)
            stopping.callback(self._base_env.stop)
            stopping.callback(self._rollouts.stop)
            if self._league is not None:
                stopping.callback(self._league.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def algorithm_class(name: str, where: str, *, imports: bool = True) -> type[Algorithm]:
    """Return the class of algorithms that a name means; see `find_algorithm`."""
    found = find_algorithm(name, where, imports=imports)
    recipe = recipe_of(found, where)
    is_class = isinstance(found, type) and issubclass(found, Algorithm)
    return found if is_class else type(recipe.name, (Algorithm,), {"recipe": recipe})


def _refuse_without_recipe(kind: type[Algorithm]) -> None:
    if not hasattr(kind, "recipe"):
        raise ConfigError(
            f"{kind.__name__}: it defines no training, expected one of "
            f"{', '.join(BUILT_IN)}; write PPO(env=..., config={{...}}), or call Algorithm.from_checkpoint(folder)"
        )
