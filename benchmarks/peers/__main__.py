"""menv against other libraries, in one run; `make benchmark-peers` runs it.

    python -m benchmarks.peers [--install] [--only NAME ...] [--rounds N] [--busy] [--save]

Each library has a virtual environment and a script of its own. A round runs every script once, the next round in the
other order; the figures are medians over the rounds. A library that gave up learning is not trained again.
`--save` writes `results.json` and the page in `docs`, if no script failed. A run of some libraries and tasks gets a
section of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path
from typing import Any

from benchmarks.peers.page import LIBRARIES, PAGE, RESULTS, TASKS, render
from benchmarks.processes import ROOT

TEAMS = ["pettingzoo", "mpe2", "pygame-ce"]
NEEDS = {
    "pufferlib": ["pufferlib", "pettingzoo", "pygame-ce"],
    "sb3": ["stable-baselines3", "supersuit", *TEAMS],
    "tianshou": ["tianshou", *TEAMS],
    "rllib": ["ray[rllib]", *TEAMS],
    "torchrl": ["torchrl", "benchmarl", "vmas", *TEAMS],
    # What its extra for algorithms has besides is not needed here, and keeps pip searching.
    "jaxmarl": ["jaxmarl", "distrax", "optax", "hydra-core", "omegaconf", "wandb", *TEAMS],
}
"""What is installed for each library; `menv` and `bare` run in the interpreter of this process."""
SHARED = {"benchmarl": "torchrl"}
"""Libraries that run in the environment of another."""
IPPO = "https://raw.githubusercontent.com/FLAIROx/JaxMARL/c793d095618c6d3edfb5632802348f57b70a4b94/baselines/IPPO/"
"""Where JaxMARL has its IPPO scripts, which its package does not bring."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
ALL_TASKS = [*TASKS, "time_to_450", "spread_training"]


def install(folder: Path) -> None:
    """Create the environment of the library that the folder is named after."""
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install"]
    limits = ["-c", str(Path(__file__).parent / "constraints.txt")]
    subprocess.run([*pip, *limits, "torch", "numpy", "setuptools", "wheel", "Cython"], check=True)
    apart: list[str] = []
    if folder.name == "pufferlib":
        # It compiles against the torch that is already there. Its environments in C need downloads and are left out;
        # the setup.py of 3.0.0 then uses a name that it has not defined.
        apart = ["--no-build-isolation", "--no-binary", "pufferlib"]
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "without_ocean.pth").write_text("import builtins; builtins.c_extension_paths = []\n")
    # Without the rest of PATH, in which a CUDA compiler may be.
    variables = {**os.environ, "NO_OCEAN": "1", "PATH": f"{folder / 'bin'}:/usr/bin:/bin"}
    subprocess.run([*pip, *limits, *apart, *NEEDS[folder.name]], env=variables, check=True)
    for name in ("ippo_ff_mpe.py", "config/ippo_ff_mpe.yaml") if folder.name == "jaxmarl" else ():
        urllib.request.urlretrieve(IPPO + name, folder / Path(name).name)


def run(folder: Path, name: str, seed: int, tasks: list[str]) -> list[dict[str, Any]]:
    """Run the script of a library and return its lines."""
    home = folder / SHARED.get(name, name) / "bin" / "python"
    python = home if SHARED.get(name, name) in NEEDS else sys.executable
    command = [str(python), "-m", f"benchmarks.peers.scripts.{name}", "--seed", str(seed), *tasks]
    variables = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    # Some write into the working folder.
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(command, cwd=scratch, env=variables, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{name}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.peers", description=__doc__, formatter_class=form)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "menv-peers"
    parser.add_argument("--folder", type=Path, default=cache, help="of the virtual environments")
    parser.add_argument("--install", action="store_true", help="create those that are missing first")
    for flag, names in (("--only", list(LIBRARIES)), ("--tasks", ALL_TASKS)):
        parser.add_argument(
            flag, nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
        )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="the machine does other work: count CPU time")
    parser.add_argument("--save", action="store_true", help="write the results and the page")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    for name in NEEDS:
        wanted = args.install and name in [SHARED.get(one, one) for one in args.only]
        if wanted and not (args.folder / name).exists():
            install(args.folder / name)
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in args.only}
    for seed in range(args.rounds):
        for name in args.only[:: (1, -1)[seed % 2]]:
            gave_up = any(line.get("solved") is False for line in lines[name])
            tasks = [task for task in args.tasks if not (gave_up and task == "time_to_450")]
            lines[name] += run(args.folder, name, seed, tasks)
    found = {
        "flags": shlex.join(word for word in sys.argv[1:] if word not in ("--install", "--save")),
        "busy": args.busy,
        "cpus": os.cpu_count(),
        "python": sys.version.split()[0],
        "rounds": args.rounds,
        "lines": lines,
    }
    print(render([found]))
    if args.save:
        runs = [one for one in json.loads(RESULTS.read_text()) if one["flags"] != found["flags"]]
        # The run of all libraries comes first.
        runs = sorted([*runs, found], key=lambda one: -len(one["lines"]))
        RESULTS.write_text(json.dumps(runs, indent=1) + "\n")
        PAGE.write_text(render(runs))


if __name__ == "__main__":
    main()
