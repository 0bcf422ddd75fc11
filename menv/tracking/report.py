"""Reports of runs: the content of `page.html` as JSON, and the page as one HTML file that opens offline.

Runs that differ by their seed alone are one group, whose curves and last returns have the mean over seeds and its 95 %
bootstrap interval. `menv plot` and `menv table` use the same numbers.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

import menv
from menv.errors import ConfigError
from menv.plain_files import path_given, replacing, writing
from menv.redaction import without_secrets
from menv.tracking.curves import plot_curves
from menv.tracking.run_folder import Run

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Curve: TypeAlias = tuple[Floats, Floats]
"""Env steps and values, without NaN."""

STEPS = "num_env_steps_sampled"
TIME = "time_total_s"
Band: TypeAlias = Literal["ci", "iqr"]
"""What surrounds a mean over seeds: its 95 % bootstrap interval, or the quartiles of the seeds."""
_RESAMPLES = 1000
RATING = "league/rating"
_POINTS = 300
"""Points of a curve; of a longer one the means of neighbours are shown."""
_LINES = 10
_LAST = 0.1
"""The share of a run's env steps whose mean is its last return."""

_NAMES = {"episode_reward_mean": "return per episode", "policy_reward_mean": "return per episode"}
_OWN = r"(?P<line>.+)"
_CHARTS = (
    ("Returns", "Return per episode, by policy", rf"policy_reward_mean/{_OWN}"),
    ("Returns", "Return per episode, all agents", "episode_reward_mean"),
    ("Returns", "Evaluation: return by policy", rf"evaluation/policy_reward_mean/{_OWN}"),
    ("Returns", "Evaluation: return, all agents", "evaluation/episode_reward_mean"),
    ("Returns", "Share of wins", rf"matchups/{_OWN}/win"),
    ("Returns", "Rating", rf"{RATING}/{_OWN}"),
    ("Episodes", "Env steps per episode", "episode_len_mean"),
    ("Episodes", "{chart}", "custom_metrics/(?P<chart>.+)_mean"),
    ("Learning", "{chart}", rf"info/learner/{_OWN}/learner_stats/(?P<chart>.+)"),
    ("Clients", "{chart}", "external/(?P<chart>.+)"),
    ("Clients", "Staleness of weights, {chart}", "staleness/(?P<chart>.+)"),
)
"""Section, title and result keys of each kind of chart."""


@dataclass
class Group:
    """Runs with the same settings but for the seed.

    Attributes:
        name: What sets it apart from the other groups.
        runs: One run for each seed.
        tables: The columns of each run's `progress.csv`.
    """

    name: str
    runs: list[Run]
    tables: list[dict[str, Floats]]

    def curves(self, key: str, x: str = STEPS) -> list[Curve]:
        """Return the curve of a result key over another one for each run that has values of both."""
        found = []
        for table in self.tables:
            if key in table and x in table:
                there = np.isfinite(table[key]) & np.isfinite(table[x])
                if there.any():
                    found.append((table[x][there], table[key][there]))
        return found

    def result_keys(self) -> list[str]:
        """Return the result keys of all runs, in order."""
        return list(dict.fromkeys(key for table in self.tables for key in table))


def groups_of(runs: Sequence[Run], *, returns: bool = True) -> list[Group]:
    """Return the runs, grouped by their settings and environments.

    Raises:
        ConfigError: They have different environments, whose `returns` cannot be compared.
    """
    envs = {str(run.config.get("env")): run for run in runs}
    if len(envs) > 1 and returns:
        named = ", ".join(f"{env} ({run.name})" for env, run in envs.items())
        raise ConfigError(
            f"runs of {len(envs)} different environments: {named:.300}, expected runs of one environment; pass the "
            "runs of one environment at a time"
        )
    by_settings: dict[str, list[Run]] = {}
    for run in runs:
        settings = {key: value for key, value in settings_of(run).items() if key != "seed"}
        settings["env"] = run.config.get("env")
        by_settings.setdefault(json.dumps(settings, sort_keys=True), []).append(run)
    kinds = list(by_settings.values())
    names = _group_names(kinds)
    if len(envs) > 1:
        names = [f"{kind[0].config.get('env')}, {name}" for kind, name in zip(kinds, names, strict=True)]
    return [
        Group(name, kind, [run.progress() for run in kind]) for name, kind in zip(names, kinds, strict=True)
    ]


def _group_names(kinds: Sequence[Sequence[Run]]) -> list[str]:
    """Return a name for each kind of run: the algorithm, and as few settings as set it apart from the others."""
    if len(kinds) == 1:
        return [_algorithm(kinds[0][0]) if len(kinds[0]) > 1 else kinds[0][0].name]
    settings = [settings_of(kind[0]) for kind in kinds]
    names = [_algorithm(kind[0]) for kind in kinds]
    if len(set(names)) == 1:
        names = [""] * len(kinds)
    for key in differences([kind[0] for kind in kinds]):
        if len(set(names)) == len(names):
            break
        more = [
            f"{name}, {key}={one.get(key)}".removeprefix(", ")[:80]
            for name, one in zip(names, settings, strict=True)
        ]
        if key != "algorithm" and len(set(more)) > len(set(names)):
            names = more
    return names if len(set(names)) == len(names) else [kind[0].name for kind in kinds]


def _algorithm(run: Run) -> str:
    """Return the name that papers use: PPO with a critic of all agents is MAPPO, a sum in the place of QMIX is VDN."""
    settings = settings_of(run)
    name = str(settings["algorithm"])
    if name == "PPO" and settings.get("critic_obs") is not None:
        return "MAPPO"
    return "VDN" if name == "QMIX" and settings.get("mixer") == "vdn" else name


def settings_of(run: Run) -> dict[str, Any]:
    """Return the settings of a run, `model.fcnet_hiddens` for nested ones."""
    config = run.config.get("config")
    return {
        "algorithm": run.config.get("algorithm"),
        **dict(flat_settings(config if isinstance(config, dict) else {})),
    }


def flat_settings(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield settings without secrets, with keys such as `model.fcnet_hiddens`."""
    for key, value in without_secrets(values).items():
        if isinstance(value, dict) and value and not any(one.startswith("$") for one in value):
            yield from ((f"{key}.{name}", one) for name, one in flat_settings(value))
        else:
            yield key, value


def differences(runs: Sequence[Run]) -> list[str]:
    """Return the settings that are not the same in all runs."""
    settings = [settings_of(run) for run in runs]
    keys = dict.fromkeys(key for one in settings for key in one)
    missing = object()
    return [
        key for key in keys if any(one.get(key, missing) != settings[0].get(key, missing) for one in settings)
    ]


def summary(curves: Sequence[Curve], band: Band = "ci") -> dict[str, Floats]:
    """Return env steps and, over the curves, the `mean` with its band from `low` to `high`.

    Curves are interpolated linearly; the range is where all of them have values.
    """
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    steps = np.unique(np.concatenate([x for x, _ in curves]))
    steps = steps[(steps >= first) & (steps <= last)]
    if len(steps) > _POINTS:
        steps = np.linspace(first, last, _POINTS)
    values = np.array([np.interp(steps, x, y) for x, y in curves]).reshape(len(curves), len(steps))
    low, high = interval(values) if band == "ci" else np.percentile(values, (25, 75), axis=0)
    return {"x": steps, "mean": values.mean(axis=0), "low": low, "high": high}


def last_values(curves: Sequence[Curve]) -> dict[str, float]:
    """Return the `mean` of the last tenth of each curve, with its interval from `low` to `high`."""
    last = np.array([y[x >= x[-1] * (1 - _LAST)].mean() for x, y in curves])
    low, high = interval(last)
    return {"mean": float(last.mean()), "low": float(low), "high": float(high)}


def interval(values: Floats) -> Floats:
    """Return the lower and the upper end [2, ...] of the 95 % bootstrap interval of the mean of seeds [S, ...]."""
    drawn = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    ends: Floats = np.percentile(values[drawn].mean(axis=1), (2.5, 97.5), axis=0)
    return ends


def matching(groups: Sequence[Group], pattern: str) -> dict[str, dict[str, str]]:
    """Return the result keys that match, by title and by name of the line; "" where the pattern names none."""
    found: dict[str, dict[str, str]] = {}
    for key in dict.fromkeys(key for group in groups for key in group.result_keys()):
        if match := re.fullmatch(pattern, key):
            names = match.groupdict()
            found.setdefault(names.get("chart") or "", {})[names.get("line") or ""] = key
    return found


def lines_of(
    groups: Sequence[Group], keys: Mapping[str, str], x: str = STEPS
) -> list[tuple[str, list[Curve]]]:
    """Return the curves of result keys by the name of their line, which holds the group's where there are several."""
    lines = []
    for name, key in keys.items():
        for group in groups:
            shown = [name] if name and len(groups) == 1 else [group.name, name]
            if curves := group.curves(key, x):
                lines.append((" · ".join(filter(None, shown)), curves))
    return lines


def report_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Return what the page shows, as JSON values.

    Raises:
        ConfigError: The runs have different environments, or a file of one is damaged.
    """
    groups = groups_of(runs)
    return {
        "title": str(runs[0].config.get("env")),
        "version": menv.__version__,
        "runs": [
            _about(run, table)
            for group in groups
            for run, table in zip(group.runs, group.tables, strict=True)
        ],
        "last": _last(groups),
        "sections": _sections(groups),
        "matchups": [
            _matchups(run.name, payoff) for group in groups for run in group.runs if (payoff := run.payoff())
        ],
        "settings": _settings([run for group in groups for run in group.runs]),
    }


def page(paths: Sequence[str | os.PathLike[str]]) -> str:
    """Return the page of run folders; see `write_report`."""
    # Nothing in a script element ends it but "</", and names of runs and agents may hold anything.
    text = json.dumps(report_data(runs_of(paths)), separators=(",", ":"), default=str).replace("<", "\\u003c")
    return Path(__file__).with_name("page.html").read_text("utf-8").replace("{{data}}", text)


def runs_of(paths: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """Return the runs of folders, each once."""
    return list({run.path.resolve(): run for run in map(Run, paths)}.values())


def _output_path(where: str, runs: Sequence[Run], name: str, path: str | os.PathLike[str] | None) -> Path:
    """Return `path`, by default `name` in the folder of a single run, or in the working folder."""
    default = runs[0].path / name if len(runs) == 1 else name
    found = path_given(where, default if path is None else path)
    if path is not None and found.exists() and not found.is_file():
        raise ConfigError(f"{where}: {found} is a folder or a device, expected a file; choose another name")
    if not found.absolute().parent.is_dir():
        raise ConfigError(f"{where}: there is no folder {found.parent}; create it first")
    return found


def write_report(
    paths: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None
) -> Path:
    """Write a report of run folders as one HTML file.

    Args:
        paths: The run folders, all of one environment.
        output: The file; by default `report.html` in the run folder, or in the working folder for several runs.

    Returns:
        Path of the file.

    Raises:
        ConfigError: A folder is not a run or is damaged, or the environments differ.
        NotWrittenError: The file cannot be written.
    """
    path = _output_path("report", runs_of(paths), "report.html", output)
    text = page(paths)
    with writing("report", f"the report {path}"), replacing(path) as draft:
        draft.write_text(text, "utf-8")
    return path


def plot_runs(
    paths: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    key: str | None = None,
    *,
    band: Band = "ci",
    x: Literal["steps", "time"] = "steps",
    labels: Sequence[str] = (),
    title: str | None = None,
    width: float = 9.6,
) -> Path:
    """Draw a result key of run folders as a picture; runs that differ by their seed are one curve with a band.

    Args:
        paths: The run folders, all of one environment unless `key` is no return.
        output: A .png, .svg or .pdf file; by default `curves.png` in the run folder, or in the working folder for
            several runs.
        key: A column of `progress.csv`, or the part of a column before a policy's name. By default the ratings of a
            league, without its snapshots; else `episode_reward_mean` to compare several settings or algorithms, and
            `policy_reward_mean` for one.
        band: "ci", the 95 % bootstrap interval of the mean over seeds, or "iqr", the quartiles of the seeds.
        x: "steps", env steps, or "time", minutes of training.
        labels: The names of the curves, in the order in which the runs are given.
        title: Above the curves; the environment by default.
        width: In inches. A column of a paper has about 3.3.

    Returns:
        Path of the file.

    Raises:
        ConfigError: A folder is not a run or is damaged, the environments differ, no run has the key, or there is
            another number of curves than of labels.
        NotWrittenError: The file cannot be written.
    """
    runs = runs_of(paths)
    path = _output_path("plot", runs, "curves.png", output)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(
            f"plot: {path.name!r:.80}, expected a name that ends with .png, .svg or .pdf; write -o curves.png"
        )
    groups = groups_of(runs, returns=key is None or "reward" in key or RATING in key)
    # The returns of a game against oneself say nothing.
    learners = rf"{RATING}/(?P<line>(?!(.*_)?(latest|snapshots)$).+)"
    ratings = matching(groups, learners).get("", {}) if key is None else {}
    label = "rating" if ratings else key or _returns(groups)
    column = STEPS if x == "steps" else TIME
    found = lines_of(groups, ratings, column) or curves_of_key(groups, label, column)
    if labels and len(labels) != len(found):
        raise ConfigError(
            f"plot: {len(labels)} labels for the curves {[name for name, _ in found]}, expected one for each; pass as "
            "many"
        )
    lines, bands = {}, {}
    for name, (own, curves) in zip(labels or [name for name, _ in found], found, strict=True):
        line = line_of(own, curves, band)
        at = line["x"] if x == "steps" else [seconds / 60 for seconds in line["x"]]
        lines[name] = list(zip(at, line["mean"], strict=True))
        if len(curves) > 1:
            bands[name] = list(zip(at, line["low"], line["high"], strict=True))
    shown = str(runs[0].config.get("env")) if title is None else title
    axis = "env steps" if x == "steps" else "minutes"
    with writing("plot", f"the picture {path}"), replacing(path) as draft:
        named = _NAMES.get(label, label)
        plot_curves(draft, lines, bands=bands, title=shown, x_label=axis, y_label=named, width=width)
    return path


def _returns(groups: Sequence[Group]) -> str:
    return "policy_reward_mean" if len(groups) == 1 else "episode_reward_mean"


def curves_of_key(groups: Sequence[Group], key: str, x: str = STEPS) -> list[tuple[str, list[Curve]]]:
    """Return the curves of a result key, or of all policies for a key such as `policy_reward_mean`.

    Raises:
        ConfigError: No run has the key.
    """
    keys = matching(groups, f"{re.escape(key)}(/{_OWN})?").get("", {})
    if found := lines_of(groups, keys, x):
        return found
    known = [one for group in groups for one in group.result_keys()]
    near = difflib.get_close_matches(key, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "the first line of progress.csv lists them"
    raise ConfigError(f"key {key!r:.100}: no run has values for it, expected a result key; {hint}")


def _about(run: Run, table: Mapping[str, Floats]) -> dict[str, Any]:
    counts = {
        "iterations": "training_iteration",
        "steps": STEPS,
        "episodes": "episodes_total",
        "seconds": TIME,
    }
    return {
        "name": run.name,
        "algorithm": str(run.config.get("algorithm")),
        "running": run.is_running,
        "command": run.command,
        "digest": run.digest,
        **{name: _figure(table[key][-1]) if len(table.get(key, ())) else 0 for name, key in counts.items()},
    }


def _last(groups: Sequence[Group]) -> list[dict[str, Any]]:
    keys = matching(groups, rf"policy_reward_mean/{_OWN}").get("", {})
    tables = [table for group in groups for table in group.tables]
    # Policies that did not play any more have no value in the last row.
    keys = {
        name: key
        for name, key in keys.items()
        if any(np.isfinite(t[key][-1:]).any() for t in tables if key in t)
    }
    found = [(name, len(curves), last_values(curves)) for name, curves in lines_of(groups, keys)]
    return [
        {"name": name, "seeds": seeds, **{one: _figure(value) for one, value in last.items()}}
        for name, seeds, last in found
    ]


def _sections(groups: Sequence[Group]) -> list[dict[str, Any]]:
    sections: dict[str, list[dict[str, Any]]] = {}
    for section, title, pattern in _CHARTS:
        for chart, keys in matching(groups, pattern).items():
            lines = lines_of(groups, keys)
            # Counts that stayed 0, and learning rates that are a setting, say nothing.
            if all(
                np.ptp(y) == 0 and (section == "Learning" or not y.any())
                for _, curves in lines
                for _, y in curves
            ):
                continue
            shown = [line_of(*line) for line in lines[:_LINES]]
            named = title.format(chart=chart.removeprefix("num_").replace("_", " ").capitalize())
            more = {"title": named, "lines": shown, "left_out": len(lines) - len(shown)}
            sections.setdefault(section, []).append(more)
    return [{"title": title, "charts": charts} for title, charts in sections.items()]


def line_of(name: str, curves: Sequence[Curve], band: Band = "ci") -> dict[str, Any]:
    """Return the points of a line as JSON values, of several seeds their `summary`."""
    (x, y), several = curves[0], len(curves) > 1
    found = summary(curves, band) if several else {"x": x, "mean": y}
    return {"name": name, **{key: _thin(values) for key, values in found.items()}}


def _thin(values: Floats) -> list[float | None]:
    """Return at most `_POINTS` values, each the mean of neighbours."""
    if len(values) > _POINTS:
        values = np.array([part.mean() for part in np.array_split(values, _POINTS)])
    return [_figure(value) for value in values]


def _figure(value: Any) -> float | int | None:
    """Return a number with the digits that a picture shows."""
    number = float(value)
    if not math.isfinite(number):
        return None
    short = float(f"{number:.5g}") if abs(number) < 1e5 else round(number)
    return int(short) if short == int(short) else short


def _matchups(run: str, payoff: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Return the points per game of each learner of a league against each opponent."""
    against = list(dict.fromkeys(opponent for row in payoff.values() for opponent in row))
    points = [
        [_figure(row[one]["win"] + row[one]["draw"] / 2) if one in row else None for one in against]
        for row in payoff.values()
    ]
    return {"name": run, "players": list(payoff), "against": against, "points": points}


def _settings(runs: Sequence[Run]) -> dict[str, Any]:
    settings = [settings_of(run) for run in runs]
    different = dict.fromkeys(differences(runs))
    keys = [*different, *sorted({key for one in settings for key in one} - set(different))]
    rows = [
        [key, key in different, [json.dumps(one[key])[:200] if key in one else "" for one in settings]]
        for key in keys
    ]
    return {"runs": [run.name for run in runs], "rows": rows}
