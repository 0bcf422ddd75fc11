"""The CSV files of the learning benchmark, and which runs they lack.

A group, such as `single_agent.toml`, lists environments and the tables of `menv/zoo` that train them. Its results and
curves are in `single_agent.results.csv` and `single_agent.curves.csv`, a line per run and a line per point.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from menv.algorithms.config.zoo import ZooSettings, required_zoo_settings

HERE = Path(__file__).parent
DEFAULTS = " defaults"
"""What follows the name of a table whose settings are the algorithm's defaults."""
_OF_RUNS = ("env_config", "num_envs_per_worker", "critic_obs", "mixer")
"""Settings of a table that say what is run, and not how it learns."""
KEYS = ("env", "table", "seed")
RESULTS = (
    *KEYS, "settings", "score", "score_std", "best", "episodes", "env_steps", "wall_s", "cpu_s", "load", "cpus", "date",
    "versions",
)  # fmt: skip
CURVES = (*KEYS, "env_steps", "wall_s", "score")

Row = dict[str, str]


@dataclass(frozen=True)
class Experiment:
    """An environment and a table of its settings.

    Attributes:
        env: The name of the environment, as `menv train` reads it.
        table: The table of `menv/zoo`. With " defaults" behind it, the algorithm's default settings for as many env
            steps.
        score: The key of a result that is compared, at the end and in the curve.
        curve: The column of `progress.csv` that is drawn.
        explore: Whether the final policy samples its actions; the `evaluation_config` of a zoo table counts first.
        evaluate: The environment that the final policy is evaluated in.
        episodes: The number of episodes there.
        minutes: How long a run may take.
        options: Further arguments of `menv train`.
        train: The environment that is trained, where it is not `env` itself.
    """

    env: str
    table: str
    score: str
    curve: str
    explore: bool
    evaluate: str
    episodes: int
    minutes: int
    options: tuple[str, ...]
    train: str

    @property
    def zoo(self) -> ZooSettings:
        """The settings."""
        found = required_zoo_settings(self.env, self.table.removesuffix(DEFAULTS), "PPO")
        if not self.table.endswith(DEFAULTS):
            return found
        return replace(
            found, settings={key: found.settings[key] for key in _OF_RUNS if key in found.settings}
        )

    @property
    def settings(self) -> str:
        """The hash of the settings."""
        return self.zoo.hash


@dataclass(frozen=True)
class Group:
    """A list of experiments with their files."""

    path: Path
    title: str
    experiments: list[Experiment]

    def file(self, kind: str) -> Path:
        """Return the CSV file of results or curves."""
        return self.path.with_suffix(f".{kind}.csv")

    def results(self, experiment: Experiment) -> list[Row]:
        """Return the results with today's settings, by seed."""
        rows = read(self.file("results"))
        found = [row for row in rows if _is_of(row, experiment) and row["settings"] == experiment.settings]
        return sorted(found, key=lambda row: int(row["seed"]))

    def curves(self, experiment: Experiment) -> dict[str, list[Row]]:
        """Return the points of each seed that has a result with today's settings."""
        seeds = {row["seed"] for row in self.results(experiment)}
        curves: dict[str, list[Row]] = {}
        for row in read(self.file("curves")):
            if _is_of(row, experiment) and row["seed"] in seeds:
                curves.setdefault(row["seed"], []).append(row)
        return curves

    def store(self, result: Mapping[str, Any], curve: Iterable[Mapping[str, Any]]) -> None:
        """Add a run in the place of the one with the same environment, table and seed."""
        for kind, columns, new in (("results", RESULTS, [result]), ("curves", CURVES, curve)):
            kept = [row for row in read(self.file(kind)) if any(row[key] != str(result[key]) for key in KEYS)]
            with self.file(kind).open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns, lineterminator="\n")
                writer.writeheader()
                writer.writerows([*kept, *new])


def groups() -> list[Group]:
    """Return all groups."""
    return [_group(path) for path in sorted(HERE.glob("*.toml"), reverse=True)]


def missing(group: Group, patterns: Iterable[str], seeds: Iterable[int]) -> Iterator[tuple[Experiment, int]]:
    """Yield the runs of a group that have no result, all experiments of one seed before the next seed."""
    patterns = list(patterns)
    for seed in seeds:
        for one in group.experiments:
            name = f"{one.env}/{one.table}"
            chosen = any(fnmatchcase(name, wanted) or one.env == wanted for wanted in patterns or ["*"])
            if chosen and all(row["seed"] != str(seed) for row in group.results(one)):
                yield one, seed


def published() -> dict[tuple[str, str], Row]:
    """Return the published results by environment and table."""
    return {(row["env"], row["table"]): row for row in read(HERE / "published.csv")}


def read(path: Path) -> list[Row]:
    """Return the rows of a CSV file, none without the file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _group(path: Path) -> Group:
    content = tomllib.loads(path.read_text("utf-8"))
    experiments = [
        Experiment(
            env["name"], table, score := env.get("score", "episode_reward_mean"), env.get("curve", score),
            _samples(env, table), env.get("evaluate", train), env.get("episodes", 100),
            env.get("minutes", 10), tuple(env.get("options", ())), train,
        )
        for env in content["envs"]
        for train in [env.get("train", env["name"])]
        for table in env["tables"]
    ]  # fmt: skip
    return Group(path, content["title"], experiments)


def _samples(env: Mapping[str, Any], table: str) -> bool:
    zoo = required_zoo_settings(env["name"], table.removesuffix(DEFAULTS), "PPO")
    told = zoo.settings.get("evaluation_config", {})
    return bool(told.get("explore", env.get("explore", False)))


def _is_of(row: Row, experiment: Experiment) -> bool:
    return (row["env"], row["table"]) == (experiment.env, experiment.table)
