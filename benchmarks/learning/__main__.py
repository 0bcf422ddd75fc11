"""What menv learns: trains the environments of the groups with the settings of `menv/zoo` and writes a page.

    python -m benchmarks.learning [--only NAME ...] [--seeds N] [--report]

Each run is a process of its own, `menv train ENV --zoo TABLE --seed SEED`, for at most 10 minutes, or as many as
the group's file says; `menv evaluate` then plays 100 episodes with the final policy. Runs that the CSV files have are
not repeated unless their settings have changed, so that this can be stopped and started at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import menv
from benchmarks.learning.page import write_page
from benchmarks.learning.tables import DEFAULTS, Experiment, groups, missing
from menv.algorithms.training.learn import TIMESTEPS
from menv.tracking.run_folder import Run

POINTS = 50


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="such as CartPole-v1, or '*/DQN'"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many, from 0 (%(default)s)")
    parser.add_argument("--report", action="store_true", help="run nothing, write the page")
    args = parser.parse_args()
    for group in [] if args.report else groups():
        for experiment, seed in missing(group, args.only, range(args.seeds)):
            print(f"{experiment.env} {experiment.table} seed {seed}", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                try:
                    result, curve = measured(experiment, seed, Path(folder) / "run")
                except subprocess.CalledProcessError as error:
                    print(f"  failed: {error.stderr[-2000:]}", flush=True)
                    continue
            group.store(result, curve)
            print(
                f"  score {result['score']} after {result['env_steps']} env steps and {result['wall_s']} s",
                flush=True,
            )
    write_page()


def measured(experiment: Experiment, seed: int, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train and evaluate in two processes; return the line of the results and those of the curve."""
    zoo = experiment.zoo
    key = {"env": experiment.env, "table": experiment.table, "seed": seed}
    bounds = [f"time_total_s={60 * experiment.minutes}", f"{TIMESTEPS}={zoo.env_steps}"]
    stop = [word for bound in bounds for word in ("--stop", bound)]
    began, cpu, load = time.monotonic(), os.times().children_user, os.getloadavg()[0]
    _menv(
        "train",
        experiment.train,
        *_settings(experiment),
        "--seed",
        str(seed),
        "--run-dir",
        str(folder),
        *experiment.options,
        *stop,
    )
    wall, cpu = time.monotonic() - began, os.times().children_user - cpu
    load = max(load, os.getloadavg()[0])
    explore = f"evaluation_config.explore={experiment.explore}"
    printed = _menv(
        "evaluate",
        str(folder),
        "--env",
        experiment.evaluate,
        "--episodes",
        str(experiment.episodes),
        "--config",
        explore,
        "--json",
    )
    evaluated = json.loads(printed)
    curve = [{**key, **point} for point in _curve(Run(folder), experiment.curve)]
    returns = evaluated["hist_stats"]["episode_reward"]
    result = {
        **key,
        "settings": zoo.hash,
        "score": _figure(_value(evaluated, experiment.score)),
        "score_std": _figure(statistics.pstdev(returns)),
        "best": _figure(max(point["score"] for point in curve)),
        "episodes": evaluated["episodes_this_iter"],
        "env_steps": int(Run(folder).progress()[TIMESTEPS][-1]),
        "wall_s": round(wall, 1),
        "cpu_s": round(cpu, 1),
        "load": round(load, 1),
        "cpus": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": _versions(),
    }
    return result, curve


def _settings(experiment: Experiment) -> list[str]:
    """Return the arguments of `menv train` that choose the settings."""
    zoo = experiment.zoo
    if not experiment.table.endswith(DEFAULTS):
        return ["--zoo", experiment.table]
    return ["--no-zoo", "--run", zoo.algorithm, "--config", json.dumps(zoo.settings)]


def _menv(*arguments: str) -> str:
    command = [sys.executable, "-m", "menv.cli", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def _curve(run: Run, key: str) -> Iterator[dict[str, Any]]:
    """Yield at most `POINTS` points, evenly over the iterations that have a score."""
    columns = run.progress()
    (places,) = np.nonzero(np.isfinite(columns[key]))
    for place in places[np.unique(np.linspace(0, len(places) - 1, POINTS).round().astype(int))]:
        yield {
            "env_steps": int(columns[TIMESTEPS][place]),
            "wall_s": round(columns["time_total_s"][place], 1),
            "score": _figure(columns[key][place]),
        }


def _value(result: Mapping[str, Any], key: str) -> float:
    value: Any = result
    for part in key.split("/"):
        value = value[part]
    return float(value)


def _figure(value: float) -> float:
    return float(f"{value:.6g}")


def _versions() -> str:
    packages = " ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "gymnasium"))
    return f"menv {menv.__version__} Python {platform.python_version()} {packages}"


if __name__ == "__main__":
    main()
