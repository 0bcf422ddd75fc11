"""`menv train`: builds an algorithm of what the command line says, trains until a bound is reached, and saves."""

from __future__ import annotations

import argparse
import difflib
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any, Self

from menv import algorithms
from menv.algorithms.algorithm import Algorithm
from menv.cli.arguments import put_over, with_objects
from menv.cli.command_line import complain, not_taken
from menv.cli.display import Heard, display
from menv.cli.policies import from_checkpoint, policies_by_name
from menv.errors import ConfigError
from menv.inference.checkpoint_folder import MANIFEST, numbered, try_root

# SEAM menv.cli.bounds
# The bounds of `--stop`: whether a result has come to one, and whether no result ever will.


_WHOLE = {"evaluation", "external", "sampler_perf", "sampler_results", "staleness"}
"""What has, once it is there, all keys that it will ever have; elsewhere agents and policies may still join."""

_RARE = "skipped_updates"
"""A statistic of policies that is there only where something went wrong."""

_NO_EVALUATION = (
    "this run makes no evaluations, expected an evaluation_interval; add --config evaluation_interval=5"
)


class Bounds:
    """Bounds of a run by key of its results, `a/b/c` for what lies deeper."""

    def __init__(self, bounds: Mapping[str, float], evaluates: bool) -> None:
        """Take the bounds.

        Args:
            bounds: By key.
            evaluates: Whether evaluations will come.
        """
        self._bounds = bounds
        self._evaluates = evaluates
        # A key that was seen once may be missing now and then.
        self._unseen = list(bounds)

    def reached(self, result: Mapping[str, Any]) -> str:
        """Return the key of the first bound that a result has come to, "" if to none."""
        keys = (key for key, bound in self._bounds.items() if _reaches(result, key.split("/"), bound))
        return next(keys, "")

    def never(self, result: Mapping[str, Any]) -> str:
        """Return what is wrong with a bound that no result will ever come to, "" if a result tells of none such."""
        unseen = []
        for key in self._unseen:
            first = key.partition("/")[0]
            if first == "evaluation" and first not in result:
                value, wrong = None, "" if self._evaluates else _NO_EVALUATION
            else:
                value, wrong = _found(result, key)
            if wrong:
                return f"--stop {key}: {wrong}"
            if value is None:
                unseen.append(key)
        self._unseen = unseen
        return ""


def _reaches(result: Any, parts: Iterable[str], bound: float) -> bool:
    value = result
    for part in parts:
        value = _texts(value).get(part) if isinstance(value, Mapping) else None
    return isinstance(value, Real) and float(value) >= bound


def _texts(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a mapping with its keys as they stand on a command line: agents may be called by numbers."""
    return {str(key): value for key, value in mapping.items()}


def _found(result: Mapping[str, Any], key: str) -> tuple[Any, str]:
    """Return what a result has at a key, None if nothing yet, and what is wrong if it will never be a number."""
    value: Any = result
    path: list[str] = []
    for part in key.split("/"):
        if value is None:
            return None, ""
        there = _texts(value) if isinstance(value, Mapping) else {}
        if part not in there:
            may_come = isinstance(value, Mapping) and not _has_all(path, there, part)
            return None, "" if may_come else _no_such_key(path, there, part)
        value = there[part]
        path.append(part)
    return value, _no_number(key, value)


def _has_all(path: list[str], there: Mapping[str, Any], wanted: str) -> bool:
    """Return whether a mapping in a result, to which `path` leads, will never have another key."""
    if path[:1] != ["info"]:
        return not path or path[-1] in _WHOLE
    is_of_a_policy = path[-1] == "learner_stats" or (len(path) == 2 and path[1] != "learner")
    # Before the first gradient step there is nothing to tell of gradients.
    return is_of_a_policy and wanted != _RARE and there.get("updates", 1) > 0


def _no_such_key(path: list[str], there: Mapping[str, Any], part: str) -> str:
    near = ["/".join((*path, name)) for name in difflib.get_close_matches(part, there, n=3)]
    if path and not there:
        near = ["/".join(path)]
    hint = f"did you mean {' or '.join(near)}?" if near else "docs/results.md lists them"
    return f"results have no such key, expected one of theirs; {hint}"


def _no_number(key: str, value: Any) -> str:
    """Return what is said of a value that is none that a bound can be set on, "" of a number and of none yet."""
    if value is None or isinstance(value, Real):
        return ""
    if isinstance(value, Mapping):
        inner = [f"{key}/{name}" for name in list(_texts(value))[:3]]
        such = f", such as {' or '.join(inner)}" if inner else ""
        return f"results have several values there, expected a key of one number; name one of them{such}"
    return f"results have a {type(value).__name__} there, expected a number; docs/results.md lists them"


def train(given: argparse.Namespace) -> int:
    """Train as the command line says, until a bound is reached or somebody ends it.

    Returns:
        0, or 128 and the number of the signal that ended it between two iterations; 1 if nothing takes what is printed.

    Raises:
        ConfigError: A setting is wrong.
    """
    folder = _folder(given)
    with algorithm_of(given) as algo, Heard(display(given.json)) as shown, Ending() as ending:
        # What a resumed run begins with is written already, but in another folder nothing is.
        saved = None if given.resume and not _same(folder, given.resume) else algo.iteration
        bounds = Bounds(given.stop, evaluates=algo.config.evaluation_interval is not None)
        result: Mapping[str, Any] = algo.counts()
        wrong = ""
        if done := bounds.reached(result):
            complain(f"menv train: nothing to train: {done} is {result[done]} already, the bound of --stop")
        while not (ending.signal or shown.failed or wrong or bounds.reached(result)):
            result = algo.train()
            shown.result(result)
            # It may be seen late, when there is something to save.
            wrong = bounds.never(result)
            if given.every and algo.iteration % given.every == 0:
                shown.saved(algo.save(folder, keep_last=given.keep))
                saved = algo.iteration
        if folder is not None and saved != algo.iteration:
            shown.saved(algo.save(folder, keep_last=given.keep))
    if wrong:
        raise ConfigError(wrong)
    return _status(ending.signal, shown.failed)


def _status(number: int, failed: Exception | None) -> int:
    """Return the exit status after a signal, 0 if there was none, and what was raised while the run was shown."""
    if failed is not None and not isinstance(failed, OSError):
        raise failed
    if failed is not None and not number:
        complain(f"menv train: error: {not_taken(failed)}; the iteration that ran was the last one")
        return 1
    return 128 + number if number else 0


def _folder(given: argparse.Namespace) -> str | None:
    """Return where checkpoints go, None if nowhere; refuse before anything is trained what could not be written then.

    Raises:
        ConfigError: No checkpoint can lie there, or nobody said where they shall.
    """
    folder: str | None = given.resume if given.save is None else given.save
    if folder is None and (given.every or given.keep):
        raise ConfigError("--every and --keep: no folder is given, expected --save FOLDER; add it")
    if given.save == "":
        raise ConfigError("--save: an empty name, expected that of a folder; write --save FOLDER")
    if given.save is not None:
        try_root(Path(given.save))
        _refuse_others(Path(given.save), given.resume)
    elif folder is not None and (Path(folder) / MANIFEST).is_file():
        raise ConfigError(
            f"--resume {folder}: one checkpoint of a run, whose later ones would be replaced, expected --save too; add "
            f"--save and another folder, or --save {Path(folder).parent}"
        )
    elif folder is not None and Path(folder).is_dir():
        try_root(Path(folder))
    return folder


def _refuse_others(folder: Path, resumed: str | None) -> None:
    """Refuse to write among the checkpoints of another run, of which those of the same iterations would be replaced.

    Raises:
        ConfigError: There are some, and they are not of the run that goes on.
    """
    there = numbered(folder) if folder.is_dir() else []
    own = resumed is not None and folder.resolve() in (
        Path(resumed).resolve(),
        Path(resumed).resolve().parent,
    )
    if there and not own:
        raise ConfigError(
            f"--save {folder}: holds checkpoints of another run, {there[-1].name} for one, that would be replaced, "
            f"expected a new name; choose another, delete that folder, or go on from it with --resume {folder}"
        )


def _same(one: str | None, other: str) -> bool:
    return one is not None and Path(one).resolve() == Path(other).resolve()


class Ending:
    """Lets the iteration that runs come to its end at Ctrl-C or SIGTERM; the second time breaks it off.

    Attributes:
        signal: The number of the signal that came, 0 before.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {
            number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        # Ctrl-C ends whoever reads stderr too, and a line that is being written there cannot be broken into.
        with suppress(RuntimeError):
            complain("menv train: this iteration is the last one; once more breaks it off")


def algorithm_of(given: argparse.Namespace) -> Algorithm:
    """Return the algorithm that the command line asks for, new or from a checkpoint."""
    config = with_objects(given.config)
    if given.resume is not None:
        if given.policies != "shared":
            raise ConfigError(
                "--policies: a checkpoint has its policies, expected not to be given with --resume; leave it out"
            )
        kind = Algorithm if given.run is None else _class(given.run)
        return from_checkpoint(kind, given.resume, config, given.env, "")
    env = given.env or config.get("env")
    if env is None:
        raise ConfigError(
            "env: none is given, expected a built-in name (tictactoe, connect_four, traffic), a gymnasium id, or "
            "package.module:Class; write menv train CartPole-v1"
        )
    if given.policies == "each":
        config = put_over(policies_by_name(env, config.get("env_config", {})), config)
    return _class(given.run or "PPO")(config=config, env=env)


def _class(name: str) -> type[Algorithm]:
    kind: type[Algorithm] = getattr(algorithms, name)
    return kind
