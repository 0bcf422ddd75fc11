"""`menv train`: builds an algorithm from the arguments, trains until a `--stop` bound is reached, and saves."""

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
from menv.cli.arguments import merge, with_objects
from menv.cli.command_line import print_error, stdout_error
from menv.cli.display import SafeDisplay, display
from menv.cli.policies import from_checkpoint, policies_by_name
from menv.errors import ConfigError
from menv.inference.checkpoint_folder import MANIFEST, numbered, try_root

_WHOLE = {"evaluation", "external", "sampler_perf", "sampler_results", "staleness"}
"""Sections of a result whose keys never change; in other sections agents and policies may still join."""

_RARE = "skipped_updates"
"""A statistic that appears only after a problem."""

_NO_EVALUATION = (
    "this run makes no evaluations, expected an evaluation_interval; add --config evaluation_interval=5"
)


class Bounds:
    """Bounds of a run by result key, `a/b/c` for nested results."""

    def __init__(self, bounds: Mapping[str, float], evaluates: bool) -> None:
        self._bounds = bounds
        self._evaluates = evaluates
        # A key that has appeared once may be missing in later results.
        self._unseen = list(bounds)

    def reached(self, result: Mapping[str, Any]) -> str:
        """Return the key of the first bound that a result has reached, or ""."""
        keys = (key for key, bound in self._bounds.items() if _reaches(result, key.split("/"), bound))
        return next(keys, "")

    def impossible(self, result: Mapping[str, Any]) -> str:
        """Return why a bound can never be reached, or "" as far as this result shows."""
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
    return {str(key): value for key, value in mapping.items()}


def _found(result: Mapping[str, Any], key: str) -> tuple[Any, str]:
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
    if path[:1] != ["info"]:
        return not path or path[-1] in _WHOLE
    is_of_a_policy = path[-1] == "learner_stats" or (len(path) == 2 and path[1] != "learner")
    # Statistics of gradients appear with the first gradient step.
    return is_of_a_policy and wanted != _RARE and there.get("updates", 1) > 0


def _no_such_key(path: list[str], there: Mapping[str, Any], part: str) -> str:
    near = ["/".join((*path, name)) for name in difflib.get_close_matches(part, there, n=3)]
    if path and not there:
        near = ["/".join(path)]
    hint = f"did you mean {' or '.join(near)}?" if near else "docs/results.md lists them"
    return f"results have no such key, expected an existing one; {hint}"


def _no_number(key: str, value: Any) -> str:
    if value is None or isinstance(value, Real):
        return ""
    if isinstance(value, Mapping):
        inner = [f"{key}/{name}" for name in list(_texts(value))[:3]]
        such = f", such as {' or '.join(inner)}" if inner else ""
        return f"results have several values there, expected a key of one number; name one of them{such}"
    return f"results have a {type(value).__name__} there, expected a number; docs/results.md lists them"


def train(args: argparse.Namespace) -> int:
    """Train until a bound is reached or the user stops the run, and return the exit status."""
    folder = _folder(args)
    with algorithm_of(args) as algo, SafeDisplay(display(args.json)) as shown, StopSignal() as ending:
        # A resumed run is already saved, unless it saves to another folder.
        saved = None if args.resume and not _same_folder(folder, args.resume) else algo.iteration
        bounds = Bounds(args.stop, evaluates=algo.config.evaluation_interval is not None)
        result: Mapping[str, Any] = algo.counts()
        wrong = ""
        if done := bounds.reached(result):
            print_error(
                f"menv train: nothing to train: {done} is {result[done]} already, the bound of --stop"
            )
        while not (ending.signal or shown.failed or wrong or bounds.reached(result)):
            result = algo.train()
            shown.result(result)
            # An impossible bound may show late, after progress that is worth saving.
            wrong = bounds.impossible(result)
            if args.every and algo.iteration % args.every == 0:
                shown.saved(algo.save(folder, keep_last=args.keep))
                saved = algo.iteration
        if folder is not None and saved != algo.iteration:
            shown.saved(algo.save(folder, keep_last=args.keep))
    if wrong:
        raise ConfigError(wrong)
    return _status(ending.signal, shown.failed)


def _status(number: int, failed: Exception | None) -> int:
    if failed is not None and not isinstance(failed, OSError):
        raise failed
    if failed is not None and not number:
        print_error(f"menv train: error: {stdout_error(failed)}; stopped after the current iteration")
        return 1
    return 128 + number if number else 0


def _folder(args: argparse.Namespace) -> str | None:
    folder: str | None = args.resume if args.save is None else args.save
    if folder is None and (args.every or args.keep):
        raise ConfigError("--every and --keep: no folder is given, expected --save FOLDER; add it")
    if args.save == "":
        raise ConfigError("--save: an empty name, expected the name of a folder; write --save FOLDER")
    if args.save is not None:
        try_root(Path(args.save))
        _refuse_others(Path(args.save), args.resume)
    elif folder is not None and (Path(folder) / MANIFEST).is_file():
        raise ConfigError(
            f"--resume {folder}: one checkpoint of a run, whose later ones would be replaced, expected --save too; add "
            f"--save and another folder, or --save {Path(folder).parent}"
        )
    elif folder is not None and Path(folder).is_dir():
        try_root(Path(folder))
    return folder


def _refuse_others(folder: Path, resumed: str | None) -> None:
    there = numbered(folder) if folder.is_dir() else []
    own = resumed is not None and folder.resolve() in (
        Path(resumed).resolve(),
        Path(resumed).resolve().parent,
    )
    if there and not own:
        raise ConfigError(
            f"--save {folder}: holds checkpoints of another run, {there[-1].name} for one, that would be replaced, "
            f"expected a new folder; choose another, delete it, or resume the run with --resume {folder}"
        )


def _same_folder(one: str | None, other: str) -> bool:
    return one is not None and Path(one).resolve() == Path(other).resolve()


class StopSignal:
    """Lets the current iteration finish after Ctrl-C or SIGTERM (`signal`, else 0); a second one raises."""

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
        # Ctrl-C also ends the reader of stderr, and a line that is being written cannot be interrupted.
        with suppress(RuntimeError):
            print_error(
                "menv train: finishing this iteration, then stopping; press Ctrl-C again to abort now"
            )


def algorithm_of(args: argparse.Namespace) -> Algorithm:
    """Return a new algorithm, or one resumed from a checkpoint."""
    config = with_objects(args.config)
    if args.resume is not None:
        if args.policies != "shared":
            raise ConfigError(
                "--policies: given with --resume, expected one of them, because a checkpoint has "
                "policies; leave it out"
            )
        kind = Algorithm if args.run is None else _class(args.run)
        return from_checkpoint(kind, args.resume, config, args.env, "")
    env = args.env or config.get("env")
    if env is None:
        raise ConfigError(
            "env: none is given, expected a built-in name (tictactoe, connect_four, traffic), a gymnasium id, or "
            "package.module:Class; write menv train CartPole-v1"
        )
    if args.policies == "each":
        config = merge(policies_by_name(env, config.get("env_config", {})), config)
    return _class(args.run or "PPO")(config=config, env=env)


def _class(name: str) -> type[Algorithm]:
    kind: type[Algorithm] = getattr(algorithms, name)
    return kind
