"""The bounds of `--stop`: whether a result has come to one, and whether no result ever will."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

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
