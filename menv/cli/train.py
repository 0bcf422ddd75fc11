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
from menv.algorithms.config.stored_config import NamedOnlyError
from menv.cli.arguments import merge, print_error, stdout_error, with_objects
from menv.cli.display import display
from menv.env_context import EnvContext
from menv.errors import ConfigError
from menv.inference.checkpoint_folder import MANIFEST, find_checkpoint, numbered, read_manifest, try_root
from menv.registry import is_known, make_env

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
    with algorithm_of(args) as algo, display(args.json) as shown, StopSignal() as ending:
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


_NAMED = "$named"
_DEEPEST = 2
"""Maximum number of keys in a path that `--config` can set."""


def own_name(agent_id: Any, *unused: Any, **more: Any) -> str:
    """Map an agent to the policy of the same name."""
    return str(agent_id)


def policies_by_name(env: Any, env_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with one policy for each of the environment's `possible_agents`."""
    made = make_env(env, EnvContext(env_config))
    agents = [str(agent) for agent in getattr(made, "possible_agents", None) or ()]
    if callable(close := getattr(made, "close", None)):
        close()
    if not agents:
        raise ConfigError(
            f"--policies each: {env} lists no possible_agents, expected their ids; write multiagent.policies and "
            "multiagent.policy_mapping_fn with --config"
        )
    return {"multiagent": {"policies": agents, "policy_mapping_fn": own_name}}


def from_checkpoint(
    kind: type[Algorithm], folder: str, config: Mapping[str, Any], env: str | None, env_option: str
) -> Algorithm:
    """Return an algorithm resumed from a checkpoint; the error lists objects to pass again as arguments."""
    try:
        return kind.from_checkpoint(folder, _with_own_name(Path(folder), config), env)
    except NamedOnlyError as error:
        missing = sorted(error.missing, key=lambda one: one[0] != ("env",))
        typed = (_as_argument(path, was.rpartition(" ")[2], env_option) for path, was in missing)
        raise ConfigError(f"{error.summary}; add {' '.join(dict.fromkeys(typed))}") from error


def _as_argument(path: tuple[Any, ...], was: str, env_option: str) -> str:
    whole = ":" in was and "<" not in was and not was.startswith("__main__:") and len(path) <= _DEEPEST
    name = was if whole else "module:name"
    if path != ("env",):
        return f"--config {'.'.join(map(str, path[:_DEEPEST]))}=@{name}"
    return f"{env_option}{name}" if ":" in was else f"--import and the module that registers {was!r}"


def known_env(folder: Path) -> str | None:
    """Return the name of a checkpoint's environment if it is registered here, else None."""
    env = _stored(folder).get("env")
    return env if isinstance(env, str) and is_known(env) else None


def _stored(folder: Path) -> Mapping[str, Any]:
    config = read_manifest(find_checkpoint(folder)).get("config")
    return config if isinstance(config, Mapping) else {}


def _with_own_name(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    multi = _stored(folder).get("multiagent")
    stored = multi.get("policy_mapping_fn") if isinstance(multi, Mapping) else None
    if stored != {_NAMED: f"function {own_name.__module__}:{own_name.__qualname__}"}:
        return dict(config)
    return merge({"multiagent": {"policy_mapping_fn": own_name}}, config)
