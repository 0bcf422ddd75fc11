"""The page in `docs` that shows the results of a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT

RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "benchmarks" / "peers.md"
LIBRARIES = {
    "bare": "the environment alone",
    "menv": "menv",
    "pufferlib": "PufferLib",
    "sb3": "Stable-Baselines3",
    "tianshou": "Tianshou",
    "rllib": "RLlib",
    "torchrl": "TorchRL",
    "benchmarl": "BenchMARL",
    "jaxmarl": "JaxMARL",
}
TASKS = {
    "cartpole_64": "CartPole, 64 envs",
    "cartpole_1": "CartPole, 1 env",
    "cartpoles": "4 CartPoles, 16 envs",
    "simple_spread": "`simple_spread`, 16 envs",
    "balance_64": "VMAS balance, 64 envs",
    "balance_1024": "VMAS balance, 1,024 envs",
}
TITLE = """# menv against other libraries

Each library ran in a separate process and virtual environment, with one torch thread, the same environments and the
same layers (64, 64), on one machine without a GPU. The libraries of a run were interleaved; figures are medians.
`make benchmark-peers` repeats the first run.
"""
RUN = """
## {title}

{cpus} cores, Python {python}, {rounds} rounds. {clock}

    python -m benchmarks.peers {flags}
"""
SAMPLING = """
### Sampling: env steps per second

A rollout is what the library hands to its on-policy learner. An env step is one step of one environment, whatever the
number of its agents. A dash means that the library cannot run it.

{rows}

{notes}
"""
LEARNING = """
### CartPole: time to a mean return of 450 over 100 episodes

Each library has the PPO settings that it publishes; its script in `benchmarks/peers/scripts` names the source.
menv has its defaults, on 64 environments. PufferLib and TorchRL publish none for this environment and have their
general ones. Activations, and whether policy and value share layers, are each library's. A run gives up after 60 s, and
its library is not trained again.

{rows}
"""
TRAINING = """
### JaxMARL's `simple_spread`: env steps per second while training

JaxMARL trains with its own script, `ippo_ff_mpe.py`, and its settings: 16 worlds, 128 steps, 4 epochs of
4 minibatches, policy and value of two layers of 64. menv has the same network, epochs, minibatches and batches of 2,048
env steps. They come from 128 worlds that a worker steps while the policy learns. Both use all cores. The first
update, which compiles, is not counted. The goal is a return of {goal:g}, the mean of 20 updates.

{rows}
"""


NOTES = {
    "pufferlib": "PufferLib steps the environments of the others, in Python. Its faster environments in C are left"
    " out: building them downloads more.",
    "sb3": "Stable-Baselines3 keeps a row of zeros for an agent that has left.",
    "tianshou": "Tianshou plays `simple_spread` turn by turn. It computes the values after the rollout, as TorchRL"
    " does; the others do so during it.",
    "benchmarl": "BenchMARL ran on balance alone: it has no CartPole, and looks for `simple_spread` in a module that"
    " PettingZoo no longer has.",
}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def sampling(lines: Mapping[str, Sequence[Mapping[str, Any]]], unit: str) -> str:
    """Return the section about sampling, "" if no library sampled."""
    measured = {line.get("task") for printed in lines.values() for line in printed}
    tasks = {task: title for task, title in TASKS.items() if task in measured}

    def cell(name: str, task: str) -> str:
        rates = [line["env_steps"] / line[unit] for line in lines[name] if line.get("task") == task]
        return f"{statistics.median(rates):,.0f}" if rates else "-"

    rows = [[LIBRARIES[name], *(cell(name, task) for task in tasks)] for name in lines]
    rows = [row for row in rows if set(row[1:]) != {"-"}]
    notes = "\n".join(f"- {note}" for name, note in NOTES.items() if name in lines)
    return SAMPLING.format(rows=table(["library", *tasks.values()], rows), notes=notes) if tasks else ""


def learning(lines: Mapping[str, Sequence[Mapping[str, Any]]], unit: str) -> str:
    """Return the section about times to the goal, "" if no library was timed."""
    rows = []
    for name, printed in lines.items():
        runs = [line for line in printed if line.get("task") == "time_to_450" and "solved" in line]
        solved = sum(line["solved"] for line in runs)
        cells = [f"{solved} of {len(runs)}"] if runs else ["-"]
        for key, form in ((unit, "{:.1f}"), ("env_steps", "{:,.0f}")):
            middle = sorted(float("inf") if not line["solved"] else line[key] for line in runs)[
                len(runs) // 2 :
            ]
            cells.append(form.format(middle[0]) if middle and middle[0] < float("inf") else "-")
        if runs:
            rows.append([LIBRARIES[name], *cells])
    head = ["library", "runs that reached it", "seconds", "env steps"]
    return LEARNING.format(rows=table(head, rows)) if rows else ""


def training(lines: Mapping[str, Sequence[Mapping[str, Any]]], unit: str) -> str:
    """Return the section about training in `simple_spread`, "" if no library did."""
    rows, goal = [], 0.0
    for name, printed in lines.items():
        runs = [line for line in printed if line.get("task") == "spread_training"]
        if not runs:
            continue
        goal = runs[0]["goal"]
        rate = statistics.median(line["env_steps"] / line[unit] for line in runs)
        reached = [line[f"goal_{unit}"] for line in runs if f"goal_{unit}" in line]
        seconds = f"{statistics.median(reached):.1f}" if reached else "-"
        last = statistics.median(line["final_return"] for line in runs)
        rows.append(
            [LIBRARIES[name], f"{rate:,.0f}", f"{len(reached)} of {len(runs)}", seconds, f"{last:.1f}"]
        )
    head = ["library", "env steps per second", "runs that reached it", "seconds", "return at the end"]
    return TRAINING.format(goal=goal, rows=table(head, rows)) if rows else ""


def render(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the page."""
    return TITLE + "".join(_run(found) for found in runs)


def _run(found: Mapping[str, Any]) -> str:
    lines, unit = found["lines"], "cpu_s" if found["busy"] else "wall_s"
    versions = {
        name: [line["versions"] for line in printed if "versions" in line] for name, printed in lines.items()
    }
    rows = [
        [LIBRARIES[name], ", ".join(f"{package} {version}" for package, version in listed[0].items())]
        for name, listed in versions.items()
        if listed
    ]
    busy = "**Measured on a busy machine; ratios only.** Seconds are CPU time of the process."
    return "".join(
        [
            RUN.format(
                title=", ".join(LIBRARIES[name] for name in lines if name != "bare"),
                **{name: found[name] for name in ("cpus", "python", "rounds", "flags")},
                clock=busy if found["busy"] else "Seconds are wall time.",
            ),
            sampling(lines, unit), learning(lines, unit), training(lines, unit),
            "\n### Versions\n\n", table(["library", "packages"], rows), "\n",
        ]
    )  # fmt: skip
