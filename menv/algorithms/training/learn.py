"""`learn`: trains until a bound is reached, and tells trackers and the run folder about it.

`Algorithm.learn` and `menv train` call it. `StopRule` holds the bounds.
"""

from __future__ import annotations

import difflib
import logging
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

import menv
from menv.algorithms.config.stored_config import stored_config
from menv.algorithms.training.crash_capsules import CRASHES
from menv.errors import ConfigError, MissingExtraError, NotWrittenError, in_words
from menv.inference.checkpoint_folder import LATEST
from menv.interrupts import Terminations, updates
from menv.migration_hints import Result
from menv.plain_files import inside
from menv.tracking.progress import progress
from menv.tracking.report import flat_settings
from menv.tracking.run_folder import VIDEOS, Run, RunFolder
from menv.tracking.services import services_of
from menv.tracking.tensorboard import TensorBoard, tensorboard_classes
from menv.tracking.tracker import Tracker, Trackers

if TYPE_CHECKING:
    from menv.algorithms.algorithm import Algorithm

_log = logging.getLogger("menv.algorithms")

TIMESTEPS = "num_env_steps_sampled"
"""The result that `total_timesteps` bounds."""

_SAVE_SECONDS = 60.0
_SAVE_SHARE = 100.0
"""Without `save_every`, a checkpoint is due after a minute, and after 100 times the duration of the last one."""
_KEPT = 3

_NO_EVALUATION = (
    "this run makes no evaluations, expected an evaluation_interval; add --config evaluation_interval=5"
)

_NO_EPISODES = (
    "this run plays no episodes but reads recorded ones, expected a key of evaluations; set evaluation_interval and "
    "write evaluation/{}"
)


def run_folder(algo: Algorithm, path: str | PathLike[str], zoo: str | None = None) -> RunFolder:
    """Return the run folder of a new algorithm, or of one that was resumed from a checkpoint in it.

    Args:
        algo: The algorithm.
        path: The folder.
        zoo: The file and the table of `menv/zoo` that the run started from.
    """
    with suppress(ConfigError):
        zoo = zoo or Run(path).config.get("zoo")
    content = {
        "menv_version": menv.__version__,
        "algorithm": algo.recipe.name,
        "env": env_name(algo.config.env),
        "zoo": zoo,
        "config": stored_config(algo.config, algo._policy_set.policy_map),
    }
    folder = RunFolder(path, content, iteration=algo.iteration)
    algo.run_dir = folder.path
    algo._crash_capsules.folder = inside(folder.path, CRASHES)
    return folder


def folder_trackers(folder: RunFolder | None, given: Sequence[Tracker] = ()) -> list[Tracker]:
    """Return `given`, after the trackers that write a run folder and the services that it remembers."""
    if folder is None:
        return [*given]
    own: list[Tracker] = [folder]
    with suppress(MissingExtraError):
        tensorboard_classes()
        own.append(TensorBoard(folder.path, folder.path / VIDEOS))
    return [*own, *services_of(folder.path, {}, given), *given]


def hyperparameters(algo: Algorithm) -> dict[str, Any]:
    """See `Algorithm.hyperparameters`."""
    stored = stored_config(algo.config, algo._policy_set.policy_map)
    return {
        "algorithm": algo.recipe.name, **dict(flat_settings(stored)), "env": env_name(algo.config.env),
    }  # fmt: skip


def env_name(env: object) -> str:
    """Return a name of an environment, for people and for folders; without one, external clients step theirs."""
    if env is None:
        return "external"
    return env if isinstance(env, str) else str(getattr(env, "__qualname__", type(env).__qualname__))


def headline(algo: Algorithm, folder: RunFolder | None) -> str:
    """Return a line about what is trained, and where it is written."""
    names = list(algo._policy_set.policies)
    policies = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    seen = algo._policy_set.learns_from
    where = (seen and f", {seen}") + ("" if folder is None else f", run folder {folder.path}")
    with suppress(ConfigError):
        where += ", listening at {}:{}".format(*algo.input_address)
    return f"{algo.recipe.name} in {env_name(algo.config.env)}, policies: {policies}{where}"


def playable_agents(algo: Algorithm) -> list[str] | None:
    """Return the agents that a person can play against others; None if the environment cannot be watched either."""
    if algo._base_env.replayable is None:
        return None
    policies = algo._policy_set
    # Members of groups have Discrete actions.
    members = [member for group in policies.run_groups.values() for member in group]
    agents = sorted(map(str, members or algo._base_env.get_agent_ids()))
    spaces = [policy.action_space for policy in policies.policies.values()]
    discrete = bool(members) or all(isinstance(space, gym.spaces.Discrete) for space in spaces)
    return agents if discrete and len(agents) > 1 else []


class StopRule:
    """Bounds of a run by result key, `a/b/c` for nested results: the first one that is reached ends the run."""

    def __init__(self, bounds: Mapping[str, float], evaluates: bool) -> None:
        self._bounds = bounds
        self._evaluates = evaluates
        # A key that has appeared once may be missing in later results.
        self._unseen = list(bounds)

    def reached(self, result: Mapping[str, Any]) -> str:
        """Return a sentence about the first bound that a result has reached, or ""."""
        for key, bound in self._bounds.items():
            value = _value(result, key)
            if isinstance(value, Real) and float(value) >= bound:
                return f"{key} is {value:,.6g}"
        return ""

    def impossible(self, result: Mapping[str, Any]) -> str:
        """Return why a bound can never be reached, or "" as far as this result shows."""
        for key in [*self._unseen]:
            first, value = key.partition("/")[0], _value(result, key)
            if first == "evaluation" and first not in result:
                wrong = "" if self._evaluates else _NO_EVALUATION
            elif first in (result.get("recording") or ()):
                wrong = _NO_EPISODES.format(key)
            elif isinstance(value, Real):
                wrong = ""
                self._unseen.remove(key)
            else:
                wrong = _no_number(result, key)
            if wrong:
                return f"stop {key}: {wrong}"
        return ""


def _value(result: Mapping[str, Any], key: str) -> Any:
    value: Any = result
    for part in key.split("/"):
        named = {str(name): one for name, one in value.items()} if isinstance(value, Mapping) else {}
        value = named.get(part)
    return value


def _no_number(result: Mapping[str, Any], key: str) -> str:
    """Return what is wrong with a key without a number, "" in sections, where agents and policies may still join."""
    section, there, first = "", result, key
    if key.startswith("evaluation/"):
        section, there, first = "evaluation/", result["evaluation"], key.partition("/")[2]
    value, first = _value(result, key), first.partition("/")[0]
    if isinstance(value, Mapping):
        inner = " or ".join(f"{key}/{name}" for name in list(value)[:3])
        return f"results have several values there, expected a key of one number; name one of them, such as {inner}"
    if value is None and isinstance(there.get(first, 0), Mapping | None):
        return ""
    near = " or ".join(section + name for name in difflib.get_close_matches(first, there, n=3))
    hint = f"did you mean {near}?" if near and value is None else "docs/reference/results.md lists them"
    got = "no such key" if value is None else f"a {type(value).__name__} there"
    return f"results have {got}, expected a number; {hint}"


def learn(
    algo: Algorithm,
    total_timesteps: int | None,
    *,
    stop: Mapping[str, float] | None,
    run_dir: str | PathLike[str] | None,
    progress_bar: bool,
    save_every: int | None,
    trackers: Sequence[Tracker],
) -> Result:
    """See `Algorithm.learn`."""
    bounds = dict(stop or {})
    if total_timesteps is not None:
        bounds[TIMESTEPS] = total_timesteps
    if not bounds:
        raise ConfigError(
            "learn: no bound is given; call learn(100_000), or learn(stop={'episode_reward_mean': 450})"
        )
    if save_every is not None and run_dir is None:
        raise ConfigError("learn: save_every without run_dir, expected a folder; pass run_dir='runs/my-run'")
    rule = StopRule(bounds, evaluates=algo.config.evaluation_interval is not None)
    algo.run_dir = None
    folder = None if run_dir is None else run_folder(algo, run_dir)
    saving = Saving(None if folder is None else folder.checkpoints, save_every)
    own = folder_trackers(folder, trackers)
    if progress_bar:
        own.append(shown := progress())
        shown.announce(headline(algo, folder))
    if folder is None:
        return train_until(algo, rule, saving, own)
    with Terminations() as termination:
        try:
            return train_until(algo, rule, saving, own)
        except KeyboardInterrupt as error:
            if termination.number:
                what = f"ended by {signal.Signals(termination.number).name}"
                _log.warning("learn: %s", "; ".join([what, *getattr(error, "__notes__", ())]))
            raise


@dataclass
class Saving:
    """When checkpoints are written, and how many stay.

    Attributes:
        folder: Where, None for nowhere.
        every: Save after every `every`-th iteration; about once a minute if it is None.
        keep_last: How many stay; None keeps all of them, or 3 if they are written once a minute.
        keep_best: A result key: the checkpoint with the highest value stays, too, and is written at once.
        best: That checkpoint.
    """

    folder: Path | None = None
    every: int | None = None
    keep_last: int | None = None
    keep_best: str | None = None
    best: Path | None = None
    _highest: float = -math.inf

    def begin(self, iteration: int) -> None:
        """Start a run; nothing has to be saved at this iteration."""
        self._saved = iteration
        self._due = time.monotonic() + _SAVE_SECONDS

    def is_due(self, iteration: int, result: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint is due between two iterations."""
        if self._worth(result) > self._highest:
            return True
        return iteration % self.every == 0 if self.every else time.monotonic() >= self._due

    def _worth(self, result: Mapping[str, Any]) -> float:
        value = None if self.keep_best is None else _value(result, self.keep_best)
        return float(value) if isinstance(value, Real) else -math.inf

    def save(self, algo: Algorithm, trackers: Trackers, *, first: bool = False) -> None:
        """Write a checkpoint, unless this iteration has one; `first` writes one into a folder without any."""
        if self.folder is None or (
            algo.iteration == self._saved and not (first and not (self.folder / LATEST).exists())
        ):
            return
        began = time.monotonic()
        keep = self.keep_last or (None if self.every else _KEPT)
        worth = self._worth(algo.last_result)
        best = None if self.keep_best is None or worth == -math.inf else (self.keep_best, 1)
        # Before there is a value none is deleted.
        folder = algo.save(
            self.folder, keep_last=keep if best or self.keep_best is None else None, keep_best=best
        )
        if worth > self._highest:
            self.best, self._highest = folder, worth
        trackers.call(Tracker.saved, folder)
        self._saved = algo.iteration
        now = time.monotonic()
        self._due = now + max(_SAVE_SECONDS, _SAVE_SHARE * (now - began))


def train_until(
    algo: Algorithm,
    rule: StopRule,
    saving: Saving,
    trackers: Sequence[Tracker] = (),
    stopped: Callable[[], str] = lambda: "",
) -> Result:
    """Train until the rule or `stopped` gives a reason, save at the end, and return the last result.

    An exception, Ctrl-C too, ends the run as well: what was learned so far is saved first.

    Raises:
        ConfigError: A bound can never be reached.
        NotWrittenError: The last checkpoint cannot be written; an earlier failure is only logged.
    """
    followers = Trackers(trackers)
    saving.begin(algo.iteration)
    algo._begin_iteration()
    reason = "interrupted"
    try:
        followers.call(Tracker.begin, algo)
        reason = _train(algo, rule, saving, followers, stopped)
    except KeyboardInterrupt as error:
        followers.call(Tracker.raised, error)
        if saving.folder is not None:
            error.add_note(
                f"{algo.recipe.name}.from_checkpoint({str(saving.folder.parent)!r}) resumes the run"
            )
        raise
    except Exception as error:
        reason = in_words(error)
        followers.call(Tracker.raised, error)
        raise
    finally:
        try:
            if reason == "interrupted":
                algo.break_off()
            saving.save(algo, followers, first=reason == "interrupted")
        finally:
            followers.call(Tracker.end, reason)
    return Result(algo.last_result or algo.counts())


def _train(
    algo: Algorithm, rule: StopRule, saving: Saving, trackers: Trackers, stopped: Callable[[], str]
) -> str:
    reason = rule.reached({**algo.last_result, **algo.counts()})
    while not reason:
        iteration = algo.iteration + 1
        try:
            result = algo.train()
        except BaseException:
            # An evaluation or a callback was interrupted: the iteration is complete.
            if algo.last_result.get("training_iteration") == iteration:
                trackers.call(Tracker.result, algo.last_result)
            raise
        try:
            with updates:
                trackers.call(Tracker.result, result, held=True)
        finally:
            trackers.call(Tracker.result, result, held=False)
        # That a bound is impossible may show late, after progress that is worth saving.
        if wrong := rule.impossible(result):
            raise ConfigError(wrong)
        reason = rule.reached(result) or stopped()
        if not reason and saving.is_due(algo.iteration, result):
            try:
                saving.save(algo, trackers)
            except NotWrittenError as error:
                trackers.warn("Algorithm.save", error)
    return reason
