"""menv against other libraries, in one run; `make benchmark-peers` runs it.

    python -m benchmarks.peers [--install] [--only NAME ...] [--rounds N] [--busy] [--save]

Each library has a virtual environment and a script of its own. A round runs every script once, the next round in the
other order; the figures are medians over the rounds. A library that gave up learning is not trained again.
`--save` writes `results.json` and the page in `docs`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from benchmarks.peers.page import PAGE, RESULTS, TASKS, render
from benchmarks.processes import ROOT

TEAMS = ["pettingzoo", "mpe2", "pygame-ce"]
NEEDS = {
    "pufferlib": ["pufferlib", "pettingzoo", "pygame-ce"],
    "sb3": ["stable-baselines3", "supersuit", *TEAMS],
    "tianshou": ["tianshou", *TEAMS],
    "rllib": ["ray[rllib]", *TEAMS],
    "torchrl": ["torchrl", "benchmarl", "vmas", *TEAMS],
}
"""What is installed for each library; `menv` and `bare` run in the interpreter of this process."""
NAMES = ["bare", "menv", *NEEDS]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def install(folder: Path, name: str) -> None:
    """Create the environment of a library; PufferLib compiles against the torch that is already there."""
    venv.create(folder / name, with_pip=True)
    limits = ["-c", str(Path(__file__).parent / "constraints.txt")]
    pip = [str(folder / name / "bin" / "python"), "-m", "pip", "install", *limits]
    subprocess.run([*pip, "torch", "numpy", "setuptools", "wheel", "Cython"], check=True)
    apart = ["--no-build-isolation"] if name == "pufferlib" else []
    subprocess.run([*pip, *apart, *NEEDS[name]], check=True)


def run(folder: Path, name: str, seed: int, tasks: list[str]) -> list[dict[str, Any]]:
    """Run the script of a library and return its lines; none if it has no environment."""
    python = folder / name / "bin" / "python" if name in NEEDS else Path(sys.executable)
    if not python.exists():
        return []
    command = [str(python), "-m", f"benchmarks.peers.scripts.{name}", "--seed", str(seed), *tasks]
    variables = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    # PufferLib writes into the working folder.
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            command, cwd=scratch, env=variables, text=True, capture_output=True, check=False
        )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        print(
            f"{name}: exit status {done.returncode} after {len(lines)} lines\n{done.stderr[-2000:]}",
            file=sys.stderr,
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument(
        "--folder", type=Path, default=cache / "menv-peers", help="of the virtual environments"
    )
    parser.add_argument("--install", action="store_true", help="create those that are missing first")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES)
    )
    tasks = [*TASKS, "time_to_450"]
    parser.add_argument(
        "--tasks", nargs="+", choices=tasks, default=tasks, metavar="TASK", help=", ".join(tasks)
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="the machine does other work: count CPU time")
    parser.add_argument("--save", action="store_true", help="write the results and the page")
    args = parser.parse_args()
    for name in [one for one in args.only if args.install and one in NEEDS]:
        if not (args.folder / name).exists():
            install(args.folder, name)
    found: dict[str, Any] = {"busy": args.busy, "cpus": os.cpu_count(), "python": sys.version.split()[0]}
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in args.only}
    found["lines"] = lines
    for seed in range(args.rounds):
        for name in args.only[:: (1, -1)[seed % 2]]:
            gave_up = any(line.get("solved") is False for line in lines[name])
            tasks = [task for task in args.tasks if not (gave_up and task == "time_to_450")]
            lines[name] += run(args.folder, name, seed, tasks)
    print(render(found))
    if args.save:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(render(found))


if __name__ == "__main__":
    main()
