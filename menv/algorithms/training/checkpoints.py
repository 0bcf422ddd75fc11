"""Checkpoints of a training run: what they hold, and how they are saved and restored.

`Checkpoints` collects the state of every part of a run and restores it; nothing changes before everything has been
checked. `SavedRun` is what a folder holds. `menv.inference.checkpoint_folder` writes and verifies the files.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, is_dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, cast

import msgspec
import numpy as np

import menv
from menv.algorithms.config.algorithm_config import AlgorithmConfig, team_note
from menv.algorithms.config.stored_config import check_connectors, given_map, restored_config, stored_config
from menv.algorithms.networks.network_spec import weights_in_file
from menv.algorithms.rollouts.evaluation_runner import EvaluationRunner, EvaluationState
from menv.algorithms.rollouts.local_rollouts import BatchAccumulator, Rollouts
from menv.algorithms.training.league import League, LeagueState, Member
from menv.algorithms.training.operation_guard import OperationGuard
from menv.algorithms.training.policy_set import PolicySet
from menv.algorithms.training.weight_publisher import ExternalClients
from menv.errors import ConfigError, MenvError
from menv.inference.checkpoint_folder import (
    LEAGUE,
    SNAPSHOTS,
    as_written,
    keep_only,
    read_checkpoint,
    read_files,
    read_manifest,
    write_checkpoint,
    write_policies,
)
from menv.metrics import EpisodeSummary, Metrics, MetricsState
from menv.migration_hints import Result
from menv.plain_files import inside, path_given
from menv.policy import weights_of
from menv.policy_map import PolicyMap
from menv.policy_spec import PolicySpec
from menv.sampling.sampler import Count, SamplerState
from menv.serialization import Arrays, from_plain, is_plain, to_plain

Files = dict[str, Any]

STATE, ARRAYS, WEIGHTS, LEARNERS = (
    "state.json",
    "state_arrays.safetensors",
    "weights.safetensors",
    "learners.safetensors",
)


@dataclass(slots=True)
class TrainingProgress:
    """Seed, counters and latest result of a run.

    `started_at` is of `time.perf_counter`, as if the run had never been interrupted. `phase`, what the run is doing,
    began at `phase_at`; the running iteration began after `first_step` steps.
    """

    seed: int
    iteration: int = 0
    started_at: float = field(default_factory=time.perf_counter)
    phase: str = ""
    phase_at: float = field(default_factory=time.perf_counter)
    first_step: int = 0
    result: Mapping[str, Any] = field(default_factory=dict)

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.phase, self.phase_at = phase, time.perf_counter()


_Seed: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_LARGEST_KEY = (1 << 64) - 1


@dataclass
class RunState:
    """What the next iterations depend on, apart from weights and the learners' arrays.

    Results are {} if they hold more than plain values. `learners` holds seeds, `draws` a key and a count each.
    """

    iteration: Count
    seed: _Seed
    time_total_s: Annotated[float, msgspec.Meta(ge=0, le=1 << 53)]
    result: dict[str, Any]
    metrics: MetricsState
    sampler: SamplerState
    evaluation: EvaluationState
    evaluated: dict[str, Any]
    learners: dict[str, _Seed]
    weights_seq_no: Count
    env_steps_trained: Count
    agent_steps_trained: Count
    connectors: dict[str, Any]
    draws: dict[str, tuple[_Seed, Count]]
    league: LeagueState | None = None

    def __post_init__(self) -> None:
        if any(key > _LARGEST_KEY for key, _ in self.draws.values()):
            raise ValueError(f"a key of draws above {_LARGEST_KEY}")

    @classmethod
    def read(cls, files: Files) -> RunState:
        """Return the state in the files of a checkpoint."""
        try:
            return msgspec.convert(from_plain(files[STATE], files[ARRAYS]), cls)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"checkpoint, {STATE}: {error!s:.300}, expected what save wrote; load another checkpoint"
            ) from error


def _as_tree(value: object) -> Any:
    """Return typed parts as dicts and lists."""
    if is_dataclass(value):
        return {name: _as_tree(one) for name, one in vars(value).items()}
    if type(value) is dict:
        return {key: _as_tree(one) for key, one in value.items()}
    if isinstance(value, list):
        return list(map(_as_tree, value))
    return [*value] if isinstance(value, EpisodeSummary | Member) else value


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Saves and restores everything that the next iterations of an algorithm depend on."""

    algorithm: str
    config: AlgorithmConfig
    guard: OperationGuard
    progress: TrainingProgress
    policy_set: PolicySet
    rollouts: Rollouts
    metrics: Metrics
    evaluation_runner: EvaluationRunner
    accumulator: BatchAccumulator
    external_clients: ExternalClients
    league: League | None

    def save(
        self,
        path: str | Path | None,
        keep_last: int | None,
        keep_best: tuple[str, int] | None,
    ) -> Path:
        """Write a checkpoint as `Algorithm.save` does."""
        self.guard.refuse_stopped("save", "save before, or build a new one")
        if path is None:
            raise ConfigError(
                "save: no folder is given, and there is no default; call save(folder), which returns the numbered "
                "folder that restore takes"
            )
        root = path_given("save", path)
        _check_keeping(keep_last, keep_best)
        with self.guard.call("save", brief=True), self.rollouts.lock:
            folder = self._write(root, keep_best and keep_best[0])
            if keep_last is not None or keep_best is not None:
                keep_only(root, _kept(root, keep_last, keep_best))
        return folder

    def _write(self, root: Path, metric: str | None) -> Path:
        iteration = self.progress.iteration
        manifest = {
            "kind": _KIND,
            "menv_version": menv.__version__,
            "algorithm": self.algorithm,
            "iteration": iteration,
            "config": stored_config(self.config, self.policy_set.policy_map),
            "metrics": {metric: _metric(self.progress.result, metric)} if metric else {},
        }
        return write_checkpoint(root, iteration, manifest, self.files(), self._write_policies)

    def _write_policies(self, folder: Path) -> Mapping[str, Any]:
        policies, snapshots = [*self.policy_set.policies], {}
        if self.league is not None:
            snapshots = self.league.by_name()
            self.league.save(folder / LEAGUE)
            # The league has these already.
            in_memory = self.league.policies_in_memory
            policies = [name for name in policies if name not in in_memory]
        found = write_policies(folder, policies, self.policy_set.on_disk, self.trained)
        return {**found, SNAPSHOTS: snapshots}

    def trained(self, policy_id: str) -> dict[str, Any]:
        """Return how a policy was trained, for the manifest on disk."""
        recipe = self.policy_set.learners.recipes.get(policy_id)
        return {
            "algorithm": None if recipe is None else recipe.name,
            "env_steps": int(self.rollouts.counters.env_steps),
            "iterations": self.progress.iteration,
        }

    def load(self, saved: SavedRun) -> None:
        """Resume a saved run; where the settings have another seed, keep this run's."""
        with _taken_over(saved.folder):
            same = self.config.seed == saved.manifest["config"]["seed"]
            self._restore(saved, keep_seed=not same)

    def restore(self, path: str | Path, kind: type) -> None:
        """Restore a checkpoint as `Algorithm.restore` does."""
        self.guard.refuse_stopped("restore", "restore before, or build a new one")
        saved = SavedRun.read(path, kind)
        with _taken_over(saved.folder):
            found = sorted(saved.manifest["config"]["multiagent"]["policies"])
        given = given_map(self.policy_set.policy_map).specs
        own = sorted(self.policy_set.policies if self.league is None else given)
        if found != own:
            raise ConfigError(f"{saved.folder}: policies {found}, expected {own}; {_AGAIN}")
        with _taken_over(saved.folder):
            saved.check_connectors("restore", self.config, given)
        with (
            self.guard.call("restore"),
            _taken_over(saved.folder),
            self.rollouts.lock,
            self.guard.in_progress("a checkpoint is being restored"),
        ):
            self._restore(saved, changing=self.guard.must_finish("restore"))

    def files(self) -> Files:
        """Return the state by file."""
        policy_set, progress, arrays = self.policy_set, self.progress, Arrays()
        learners = policy_set.learners.state()
        # First: this may find a lost worker, whose episodes are counted.
        sampler = self.rollouts.state()
        # Media may be large.
        result = {**progress.result, "episode_media": {}} if progress.result else {}
        state = RunState(
            iteration=progress.iteration,
            seed=progress.seed,
            time_total_s=time.perf_counter() - progress.started_at,
            result=_if_plain(result),
            metrics=self.metrics.state(),
            sampler=sampler,
            evaluation=self.evaluation_runner.state(),
            evaluated=_if_plain(self.evaluation_runner.latest),
            learners={policy_id: seed for policy_id, (seed, _) in learners.items()},
            weights_seq_no=self.external_clients.weights_seq_no,
            env_steps_trained=policy_set.learners.env_steps_trained,
            agent_steps_trained=policy_set.learners.agent_steps_trained,
            **policy_set.state(),
            league=None if self.league is None else self.league.state(),
        )
        plain = to_plain(_as_tree(state), arrays)
        return {
            STATE: plain,
            ARRAYS: arrays,
            WEIGHTS: _flat({name: weights_of(one) for name, one in policy_set.policies.items()}),
            LEARNERS: _flat({name: own for name, (_, own) in learners.items()}),
        }

    def _restore(
        self,
        saved: SavedRun,
        *,
        keep_seed: bool = False,
        changing: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Resume a run with the same policies, or more; discard what this run did.

        If a policy has another network or other experience, `ConfigError` is raised and nothing has changed.
        `changing` is entered while anything changes; `keep_seed` keeps this run's seed.
        """
        files = saved.files
        weights, learners = _nested(files[WEIGHTS]), _nested(files[LEARNERS])
        state = RunState.read(files)
        of_env, own = itemgetter("env", "env_config"), stored_config(self.config, self.policy_set.policy_map)
        if of_env(own) != of_env(saved.manifest["config"]):
            # Means of another environment say nothing about this one.
            state.metrics.window.clear()
            state.result, state.evaluated = {}, {}
        policy_set, progress = self.policy_set, self.progress
        league, snapshots = self.league, inside(saved.folder, LEAGUE)
        if league is not None:
            league.check_state(state.league, snapshots)
        seed = progress.seed if keep_seed else state.seed
        for policy_id, policy in policy_set.policies.items():
            note = team_note(policy_set.learners.configs.get(policy_id))
            _check_weights(policy_id, weights.get(policy_id, {}), weights_of(policy), note)
        chosen = {
            name: (own, learners.get(name, {}))
            for name, own in state.learners.items()
            if name in policy_set.policies
        }
        policy_set.learners.check_state(chosen)
        self.rollouts.check_restartable()
        with changing or nullcontext():
            self._take_over(state, weights, chosen, seed)
            if league is not None and state.league is not None:
                league.set_state(state.league, snapshots, seed)

    def _take_over(
        self, state: RunState, weights: Mapping[str, Any], chosen: Mapping[str, Any], seed: int
    ) -> None:
        policy_set, progress = self.policy_set, self.progress
        self._restart(seed)
        policy_set.set_state(state.connectors, state.draws, weights, seed)
        progress.iteration = state.iteration
        progress.started_at = time.perf_counter() - state.time_total_s
        progress.result = Result(state.result)
        policy_set.learners.set_state(chosen, seed)
        policy_set.learners.env_steps_trained = state.env_steps_trained
        policy_set.learners.agent_steps_trained = state.agent_steps_trained
        # Continue from the numbers that clients may know.
        self.external_clients.publish(state.weights_seq_no)
        self.accumulator.clear()
        self.metrics.set_state(state.metrics)
        self.metrics.episodes_not_resumed += state.sampler.running
        self.rollouts.resume(state.sampler)
        self.evaluation_runner.latest = state.evaluated
        self.evaluation_runner.set_state(state.evaluation)

    def _restart(self, seed: int) -> None:
        self.rollouts.restart(seed)
        self.progress.seed = seed
        self.external_clients.follow_sampler()
        self.evaluation_runner.restart(seed)


def _if_plain(result: Mapping[str, Any]) -> dict[str, Any]:
    return dict(result) if is_plain(result) else {}


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


def _check_weights(policy_id: str, found: Mapping[str, Any], wanted: Mapping[str, Any], note: str) -> None:
    for name in sorted({*found, *wanted}):
        shapes = [np.shape(side[name]) if name in side else None for side in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"checkpoint, policy {policy_id!r}: weights {name!r} have shape {shapes[0]}, expected {shapes[1]}; "
                f"build the same model over the same spaces{note}"
            )


_KIND = "menv training checkpoint"
_AGAIN = "pass the same policies, or load it with from_checkpoint"


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


class SavedRun(NamedTuple):
    """What the folder of a checkpoint holds."""

    folder: Path
    manifest: dict[str, Any]
    files: Files

    @classmethod
    def read(cls, path: str | Path, kind: type) -> SavedRun:
        """Return a checkpoint of an algorithm of this class."""

        def content(folder: Path) -> SavedRun:
            manifest = _manifest(folder, kind)
            return cls(folder, manifest, read_files(folder, manifest))

        return read_checkpoint(path, content)

    def settings(
        self,
        config_class: type[AlgorithmConfig],
        config: Any,
        env: Any,
        policy_ids: Collection[str] | None,
        **multiagent: Any,
    ) -> AlgorithmConfig:
        """Return the stored settings with the given ones over them, as `Algorithm.from_checkpoint` takes them."""
        given, stored = _with(config, **multiagent), self.manifest["config"]
        with _taken_over(self.folder):
            settings = restored_config(config_class, stored, given, env, policy_ids)
            self.check_connectors("from_checkpoint", settings, PolicyMap(settings.multiagent.policies).specs)
        return settings

    def check_connectors(self, where: str, config: AlgorithmConfig, specs: Mapping[str, PolicySpec]) -> None:
        """Refuse settings that lack connectors whose state the files hold; settings determine the others."""
        stored = self.files[STATE].get("connectors", {})
        kept = [name for name, own in stored.items() if own is not None]
        check_connectors(where, self.manifest["config"], kept, config, specs)

    def bounds_networks(self) -> AbstractContextManager[None]:
        """Refuse, in this context, networks of many more weights than the files hold."""
        return weights_in_file(sum(array.size for array in self.files[WEIGHTS].values()))


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


def _with(config: Any, **multiagent: Any) -> Any:
    given = {name: value for name, value in multiagent.items() if value is not None}
    if not given:
        return config
    if is_dataclass(config) and not isinstance(config, type):
        return replace(config, multiagent=replace(cast(Any, config).multiagent, **given))
    settings = dict(config or {})
    return {**settings, "multiagent": {**settings.get("multiagent", {}), **given}}


class _Keeping(msgspec.Struct):
    keep_last: Annotated[int, msgspec.Meta(ge=1)] | None
    keep_best: tuple[str, Annotated[int, msgspec.Meta(ge=1)]] | None


def _check_keeping(keep_last: object, keep_best: object) -> None:
    try:
        msgspec.convert({"keep_last": keep_last, "keep_best": keep_best}, _Keeping)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"save: keep_last={keep_last!r:.60}, keep_best={keep_best!r:.60} ({error}), expected an integer of at "
            'least 1 and (metric, n), such as ("episode_reward_mean", 3); correct them'
        ) from None


def _metric(result: Mapping[str, Any], metric: str) -> float | None:
    """Return a value of a result, None if there is none yet."""
    value: Any = result or None
    for part in metric.split("/") if result else ():
        value = value.get(part, "") if isinstance(value, Mapping) else ""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(
            f"save: keep_best names {metric!r}, which is not a number of the result, expected one of its keys, such as "
            '"episode_reward_mean"; correct it'
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
