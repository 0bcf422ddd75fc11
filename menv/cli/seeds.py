"""`menv train --seeds N`: a run for each seed, each a `menv train` in another process with its run folder."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from menv.algorithms.training.learn import env_name
from menv.cli.arguments import print_error
from menv.errors import ConfigError
from menv.interrupts import Terminations
from menv.plain_files import opened
from menv.serialization import shell_word
from menv.tracking.run_folder import next_run_dir


def train_seeds(args: argparse.Namespace) -> int:
    """Train with the seeds 0, 1, ... and return the highest exit status."""
    if args.seed is not None or args.resume is not None or args.no_save:
        raise ConfigError(
            "--seeds: given with --seed, --resume or --no-save, expected none of them, because each seed is a run with "
            "its own folder; leave them out"
        )
    env = args.env or args.named or args.config.get("env")
    base = Path(args.run_dir) if args.run_dir else next_run_dir(env_name(env), args.run or "PPO")
    base.mkdir(parents=True, exist_ok=True)
    folders = [base / f"seed-{seed}" for seed in range(args.seeds)]
    # The options that say which seeds there are, and where.
    own = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name in ("--seeds", "--jobs", "--run-dir"):
        own.add_argument(name)
    words = [sys.executable, "-m", "menv.cli", "train", *own.parse_known_args(args.typed[2:])[1]]
    commands = [
        [*words, "--seed", str(seed), "--run-dir", str(folder)] for seed, folder in enumerate(folders)
    ]
    running: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(args.jobs) as pool, Terminations(program=True) as termination:
        try:
            statuses = list(pool.map(partial(_trained, running), commands, folders))
        except KeyboardInterrupt:
            # They save what they have learned.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            return 128 + (termination.number or signal.SIGINT)
    print_error(f"plot: menv plot {shell_word(str(base))}/seed-*[0-9] -o {shell_word(base.name)}.png")
    return max(statuses)


def _trained(running: list[subprocess.Popen[bytes]], command: Sequence[str], folder: Path) -> int:
    log = folder.with_suffix(".log")
    with opened(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        running.append(process)
        status = process.wait()
    print_error(f"{folder}: {'trained' if status == 0 else f'exit status {status}, see {log}'}")
    return status
