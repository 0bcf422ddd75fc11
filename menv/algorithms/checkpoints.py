"""Checkpoints of a training run: what they hold, and the methods of `Algorithm` that save and restore them.

`TrainingState` collects the state of every part of a run and restores it; nothing changes before everything has been
checked. `menv.inference.checkpoint_folder` writes and verifies the files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

import menv
from menv import algorithms
from menv.algorithms.config.field_checks import check_stored
from menv.algorithms.config.stored_config import check_connectors, restored_config, stored_config
from menv.algorithms.evaluation_runner import EvaluationRunner
from menv.algorithms.networks.network_spec import weights_in_file
from menv.algorithms.policy_set import PolicySet
from menv.algorithms.recipe import recipe_named
from menv.algorithms.rollouts import BatchAccumulator, LocalRollouts, Rollouts
from menv.algorithms.weight_publisher import WeightPublisher
from menv.errors import ConfigError, MenvError
from menv.inference.checkpoint_folder import (
    as_written,
    keep_only,
    read_checkpoint,
    read_files,
    read_manifest,
    write_checkpoint,
    write_policies,
)
from menv.metrics import Metrics
from menv.migration_hints import old_arguments
from menv.policy import weights_of
from menv.policy_map import PolicyMap
from menv.serialization import Arrays, from_plain, path_given, to_plain

if TYPE_CHECKING:
    from menv.algorithms.algorithm import Algorithm


Files = dict[str, Any]

STATE, ARRAYS, WEIGHTS, LEARNERS = (
    "state.json",
    "state_arrays.safetensors",
    "weights.safetensors",
    "learners.safetensors",
)


_COUNTS = (
    "iteration", "weights_seq_no", "env_steps_trained", "agent_steps_trained", "env_steps", "agent_steps", "left_out",
    "pieces", "running", "replaced", "steps", "begun", "start", "stop", "length", "new_count", "new_faulty",
    "faulty_total", "episodes_total", "episodes_not_resumed", "released",
)  # fmt: skip
_PLACES = ("env_index", "agent_index", "slot", "slots")
_RANGES: dict[str, tuple[str, float]] = {
    **dict.fromkeys(_COUNTS, ("iu", 2**53)),
    **dict.fromkeys(_PLACES, ("iu", 2**24)),
    "time_total_s": ("fiu", 2**53),
    "draws": ("fiu", 2**64),
    "seed": ("iu", 2**64),
}
"""Entries with numbers, at any depth of a state: their dtype kinds and the largest value."""
_OF_USERS = (
    "connectors", "evaluated", "gathered", "extras", "actions", "last", "lives", "remembered", "raw", "shown",
    "columns", "agent_rewards", "policies", "open", "rng", "elo",
)  # fmt: skip
"""Entries with values and names from users and environments."""


@dataclass(slots=True)
class TrainingProgress:
    """Seed and counters of a run.

    `started_at` is of `time.perf_counter`, as if the run had never been interrupted. `phase`, what the run is doing,
    began at `phase_at`; the running iteration began after `first_step` steps.
    """

    seed: int
    iteration: int = 0
    started_at: float = field(default_factory=time.perf_counter)
    phase: str = ""
    phase_at: float = 0.0
    first_step: int = 0

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.phase, self.phase_at = phase, time.perf_counter()


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Everything that the next iterations depend on."""

    progress: TrainingProgress
    policy_set: PolicySet
    rollouts: Rollouts
    metrics: Metrics
    evaluation_runner: EvaluationRunner
    accumulator: BatchAccumulator
    publisher: WeightPublisher | None

    def files(self) -> Files:
        """Return the state by file."""
        policy_set, progress, arrays = self.policy_set, self.progress, Arrays()
        learners = policy_set.learners.state()
        # First: this may find a lost worker, whose episodes are counted.
        sampler = self.rollouts.state()
        tree = {
            "iteration": progress.iteration,
            "seed": progress.seed,
            "time_total_s": time.perf_counter() - progress.started_at,
            "metrics": self.metrics.state(),
            "sampler": sampler,
            **self.evaluation_runner.state(),
            "gathered": self.accumulator.state(),
            "learners": [[policy_id, seed] for policy_id, (seed, _) in learners.items()],
            "weights_seq_no": 0 if self.publisher is None else self.publisher.weights_seq_no,
            "env_steps_trained": policy_set.learners.env_steps_trained,
            "agent_steps_trained": policy_set.learners.agent_steps_trained,
            **policy_set.state(),
        }
        plain = to_plain(tree, arrays)
        return {
            STATE: plain,
            ARRAYS: arrays,
            WEIGHTS: _flat({name: weights_of(one) for name, one in policy_set.policies.items()}),
            LEARNERS: _flat({name: own for name, (_, own) in learners.items()}),
        }

    def restore(
        self,
        files: Mapping[str, Any],
        *,
        keep_seed: bool = False,
        changing: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Resume from `files` of a run with the same policies, or more; discard what this run did.

        If a policy has another network or other experience, `ConfigError` is raised and nothing has changed.
        `changing` is entered while anything changes; `keep_seed` keeps this run's seed.
        """
        weights, learners = _nested(files[WEIGHTS]), _nested(files[LEARNERS])
        tree = from_plain(files[STATE], files[ARRAYS])
        _check_counts(tree)
        for policy_id, learner_seed in tree["learners"]:
            _check_counts({"seed": learner_seed}, f"learners.{policy_id}")
        policy_set, progress = self.policy_set, self.progress
        seed = progress.seed if keep_seed else int(tree["seed"])
        for policy_id, policy in policy_set.policies.items():
            _check_weights(policy_id, weights.get(policy_id, {}), weights_of(policy))
        chosen = {
            name: (own, learners.get(name, {}))
            for name, own in tree["learners"]
            if name in policy_set.policies
        }
        policy_set.learners.check_state(chosen)
        self.rollouts.check_restartable()
        with changing or nullcontext():
            self._take_over(tree, weights, chosen, seed)

    def _take_over(
        self, tree: Mapping[str, Any], weights: Mapping[str, Any], chosen: Mapping[str, Any], seed: int
    ) -> None:
        policy_set, progress = self.policy_set, self.progress
        self._restart(seed)
        policy_set.set_state(tree, weights, seed)
        progress.iteration = int(tree["iteration"])
        progress.started_at = time.perf_counter() - tree["time_total_s"]
        policy_set.learners.set_state(chosen, seed)
        policy_set.learners.env_steps_trained = int(tree["env_steps_trained"])
        policy_set.learners.agent_steps_trained = int(tree["agent_steps_trained"])
        if self.publisher is not None:
            # Continue from the numbers that clients may know.
            self.publisher.publish(tree["weights_seq_no"])
        self.accumulator.set_state(tree["gathered"], policy_set.policies)
        self.metrics.set_state(tree["metrics"])
        self.metrics.episodes_not_resumed += self.rollouts.resume(tree["sampler"])
        self.evaluation_runner.set_state(tree)

    def _restart(self, seed: int) -> None:
        self.rollouts.restart(seed)
        self.progress.seed = seed
        if self.publisher is not None:
            assert isinstance(self.rollouts, LocalRollouts)
            self.publisher.follow(self.rollouts.sampler)
        self.evaluation_runner.restart(seed)


def _check_counts(value: Any, where: str = "") -> None:
    """Refuse counts, places and seeds that no run can reach; the message names the file and the field."""
    if isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _check_counts(item, f"{where}[{place}]")
    for key, item in value.items() if isinstance(value, Mapping) else ():
        field = f"{where}.{key}".lstrip(".")
        if key in _RANGES:
            kinds, most = _RANGES[key]
            for numbers in item.values() if isinstance(item, Mapping) else [item]:
                # A user's seed may be larger.
                right = key == "seed" and (numbers is None or (type(numbers) is int and numbers >= 0))
                check_stored(f"checkpoint, {STATE}", field, 0 if right else numbers, kinds, most=most)
        elif key not in _OF_USERS:
            _check_counts(item, field)


def kept_connectors(files: Mapping[str, Any]) -> list[str]:
    """Return the policies whose connectors are in the files; settings alone determine the others."""
    return [name for name, own in files[STATE].get("connectors", {}).items() if own is not None]


def _flat(by_policy: Mapping[str, Mapping[str, Any]]) -> Arrays:
    """Return the arrays of all policies under one name each; no policy's id has a slash."""
    flat = {
        f"{policy_id}/{name}": np.asarray(own[name]) for policy_id, own in by_policy.items() for name in own
    }
    for key, array in flat.items():
        if array.dtype.kind not in "biuf":
            raise ConfigError(
                f"save: {key!r} is an array of {array.dtype}, expected numbers; return those as weights"
            )
    return flat


def _nested(arrays: Arrays) -> dict[str, Arrays]:
    found: dict[str, Arrays] = {}
    for key, array in arrays.items():
        policy_id, _, name = key.partition("/")
        found.setdefault(policy_id, {})[name] = array
    return found


def _check_weights(policy_id: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in sorted({*found, *wanted}):
        shapes = [np.shape(side[name]) if name in side else None for side in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"checkpoint, policy {policy_id!r}: weights {name!r} have shape {shapes[0]}, expected {shapes[1]}; "
                "build the same model over the same spaces"
            )


_KIND = "menv training checkpoint"
_AGAIN = "pass the same policies, or load it with from_checkpoint"


class Checkpoints:
    """The methods of an `Algorithm` about checkpoints."""

    last_result: Mapping[str, Any] = {}
    """What `train` returned last, nothing before it was called."""

    @old_arguments(checkpoint_dir="path")
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
        metrics and the running episodes, so that training resumes as if it had not stopped. Nothing in it is code.
        Each policy that can act without its learner is also written separately, for `Policy.from_checkpoint`.

        Running episodes are replayed from their seeds and actions. These episodes cannot be replayed and begin again;
        `num_episodes_not_resumed` counts them: episodes of vectorised environments, of custom `BaseEnv` classes and of
        clients, episodes that began under a mapping that was replaced since, and all episodes if the number of workers
        or of their environments differs.

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
        algo = cast("Algorithm", self)
        algo._operation_guard.refuse_stopped("save", "save before, or build a new one")
        if path is None:
            raise ConfigError(
                "save: no folder is given, expected one, because none is chosen for you; call save(folder), which "
                "returns the numbered folder that restore takes"
            )
        root = path_given("save", path)
        _check_keeping(keep_last, keep_best)
        with algo._operation_guard.call("save", whole=True, brief=True), algo._rollouts.lock:
            folder = self._write(root, keep_best and keep_best[0])
            if keep_last is not None or keep_best is not None:
                keep_only(root, _kept(root, keep_last, keep_best))
        return folder

    def _write(self, root: Path, metric: str | None) -> Path:
        algo = cast("Algorithm", self)
        manifest = {
            "kind": _KIND,
            "menv_version": menv.__version__,
            "algorithm": algo.recipe.name,
            "iteration": algo.iteration,
            "config": stored_config(algo.config, algo._policy_set.policy_map),
            "metrics": {metric: _metric(self.last_result, metric)} if metric else {},
        }
        policies = partial(write_policies, policies=algo._policy_set.policies, trained=algo._trained)
        return write_checkpoint(root, algo.iteration, manifest, algo._training_state.files(), policies)

    @classmethod
    @old_arguments(checkpoint="path")
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
        """Return an algorithm that resumes a saved one; `Algorithm` itself accepts any of menv's algorithms.

        Args:
            path: The `path` of `save`, for the latest checkpoint, or a numbered folder in it.
            config: Settings that override the stored ones. Functions, classes other than menv's and gymnasium's spaces,
                and environments that this process does not know by name are not in a checkpoint and must be given here.
                With another `seed`, weights, counts and running episodes are restored, and everything sampled from here
                on differs.
            env: Overrides the config's `env`.
            policy_ids: The policies to load, or the id of one; None loads all. Ids in `config` that the
                checkpoint lacks are ignored: `add_policy` adds policies afterwards.
            policy_mapping_fn: Overrides the config's.
            policies_to_train: Overrides the config's.

        Raises:
            ConfigError: The checkpoint was changed, is of another algorithm, or something is missing that must be
                given.
        """
        folder, manifest, files = read_checkpoint(path, partial(_content, kind=cls))
        kind = _kind(cls, manifest)
        given = _with(config, policy_mapping_fn=policy_mapping_fn, policies_to_train=policies_to_train)
        with _taken_over(folder):
            settings = restored_config(kind.recipe.config_class, manifest["config"], given, env, policy_ids)
            specs = PolicyMap(settings.multiagent.policies).specs
            check_connectors("from_checkpoint", manifest["config"], kept_connectors(files), settings, specs)
            same = settings.seed == manifest["config"]["seed"]
        with weights_in_file(sum(array.size for array in files[WEIGHTS].values())):
            algo = kind(settings)
        try:
            with _taken_over(folder):
                algo._training_state.restore(files, keep_seed=not same)
            algo._callbacks.on_checkpoint_loaded(algorithm=algo)
        except BaseException:
            algo.stop()
            raise
        return cast(Self, algo)

    @old_arguments(checkpoint_path="path")
    def restore(self, path: str | Path) -> None:
        """Resume a saved algorithm with the same policies and networks; this algorithm's own progress is discarded.

        Its settings stay, `seed` too: policies sample as in the saved run, environments are reset with the seeds
        of this one. With the same `seed` and settings the run continues bit-identically.

        Where it is interrupted after it has begun to change anything, by Ctrl-C or an environment that raises, nothing
        else can be called before `restore` has completed.

        Args:
            path: As for `from_checkpoint`.

        Raises:
            CallOrderError: As of `save`.
            ConfigError: The checkpoint was changed, or is of other policies or networks; nothing has changed,
                unless the message says that this algorithm cannot continue.
        """
        algo = cast("Algorithm", self)
        algo._operation_guard.refuse_stopped("restore", "restore before, or build a new one")
        folder, manifest, files = read_checkpoint(path, partial(_content, kind=type(self)))
        with _taken_over(folder):
            found = sorted(manifest["config"]["multiagent"]["policies"])
        own = sorted(algo._policy_set.policies)
        if found != own:
            raise ConfigError(f"{folder}: policies {found}, expected {own}; {_AGAIN}")
        with _taken_over(folder):
            specs = algo._policy_set.policy_map.specs
            check_connectors("restore", manifest["config"], kept_connectors(files), algo.config, specs)
        with algo._operation_guard.call("restore", whole=True):
            with (
                _taken_over(folder),
                algo._rollouts.lock,
                algo._operation_guard.in_progress("a checkpoint is being restored"),
            ):
                algo._training_state.restore(files, changing=algo._operation_guard.must_finish("restore"))
            algo._callbacks.on_checkpoint_loaded(algorithm=algo)


@contextmanager
def _taken_over(folder: Path) -> Iterator[None]:
    """Raise `ConfigError` for any error in a checkpoint's content; the hashes are right, so `save` did not write it."""
    try:
        yield
    except (MenvError, OSError):
        raise
    except Exception as error:
        why = " ".join(ascii(str(error))[1:-1].split())
        raise ConfigError(
            f"{folder}: cannot be restored ({type(error).__name__}: {why:.120}), expected what save wrote of such a "
            "run; build the algorithm again, it cannot continue from here, and load another checkpoint"
        ) from error


def _content(folder: Path, kind: type) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    manifest = _manifest(folder, kind)
    return folder, manifest, read_files(folder, manifest)


def _manifest(folder: Path, kind: type) -> dict[str, Any]:
    manifest = read_manifest(folder)
    if manifest.get("kind") != _KIND or not isinstance(manifest.get("algorithm"), str):
        raise ConfigError(
            f"{folder}: {manifest.get('kind')!r:.60}, expected a {_KIND}; pass a folder that save wrote"
        )
    recipe = getattr(kind, "recipe", None)
    name = manifest["algorithm"] if recipe is None else recipe.name
    if manifest["algorithm"] != name:
        shown = ascii(manifest["algorithm"])[1:-1][:40]
        raise ConfigError(
            f"{folder}: a checkpoint of {shown}, expected one of {name}; call {shown}.from_checkpoint"
        )
    return manifest


def _kind(given: type, manifest: Mapping[str, Any]) -> type[Algorithm]:
    """Return the class of a checkpoint's algorithm: the given one, or menv's own if that is `Algorithm` itself."""
    if hasattr(given, "recipe"):
        return given
    recipe_named(manifest["algorithm"], "of the checkpoint")
    return cast("type[Algorithm]", getattr(algorithms, manifest["algorithm"]))


def _with(config: Any, **multiagent: Any) -> Any:
    given = {name: value for name, value in multiagent.items() if value is not None}
    if not given:
        return config
    if is_dataclass(config) and not isinstance(config, type):
        return replace(config, multiagent=replace(cast(Any, config).multiagent, **given))
    settings = dict(config or {})
    return {**settings, "multiagent": {**settings.get("multiagent", {}), **given}}


def _check_keeping(keep_last: Any, keep_best: Any) -> None:
    if keep_last is not None and (
        isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1
    ):
        raise ConfigError(
            f"save: keep_last is {keep_last!r}, expected an integer of at least 1, or None; correct it"
        )
    if keep_best is None:
        return
    fits = isinstance(keep_best, tuple | list) and len(keep_best) == 2 and isinstance(keep_best[0], str)
    if not fits or isinstance(keep_best[1], bool) or not isinstance(keep_best[1], int) or keep_best[1] < 1:
        raise ConfigError(
            f'save: keep_best is {keep_best!r}, expected (metric, n); for example ("episode_reward_mean", 3)'
        )


def _metric(result: Mapping[str, Any], metric: str) -> float | None:
    """Return a value of a result, None if there is none yet."""
    value: Any = result
    for part in metric.split("/"):
        if not result:
            return None
        if not isinstance(value, Mapping) or part not in value:
            raise ConfigError(
                f"save: keep_best names {metric!r}, which is not in the result, expected a key of it, such as "
                '"episode_reward_mean"; correct it'
            )
        value = value[part]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(
            f"save: keep_best names {metric!r}, {type(value).__name__}, expected a number; name another"
        )
    return None if value is None else float(value)


def _kept(root: Path, keep_last: int | None, keep_best: tuple[str, int] | None) -> set[str]:
    # By time, not by number: the folder may hold higher numbers of an abandoned run.
    folders = as_written(root)
    kept = set() if keep_last is None else {folder.name for folder in folders[-keep_last:]}
    if keep_best is not None:
        metric, count = keep_best
        worth = {}
        for order, folder in enumerate(folders):
            value = None
            with suppress(ConfigError, OSError):
                value = read_manifest(folder).get("metrics", {}).get(metric)
            if value is not None:
                # The later one of equals.
                worth[folder.name] = (value, order)
        kept |= set(sorted(worth, key=worth.__getitem__)[-count:])
    return kept
