"""Run by `test_kills`: saves in a loop, in child processes that are killed at random moments.

Usage: python saving_until_killed.py FOLDER KILLS SEED
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from menv import Policy
from menv.algorithms import PPO
from tests.checkpoints.runs import SMALL, weights_of

# Seconds that a child lives at most; saving once takes about a tenth of that.
LONGEST = 0.12


def save_for_ever(algo: PPO, root: Path, numbers: list[int]) -> None:
    """Save under new numbers, and every other time under the same one again."""
    while True:
        for number in numbers:
            algo.iteration = number
            algo.save(root, keep_last=2)
        numbers = [number + len(numbers) // 2 for number in numbers]


def main() -> None:
    root, kills, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        algo.train()
        algo.save(root)
        wanted, interrupted = weights_of(algo), 0
        for _ in range(kills):
            latest = int((root / "LATEST").read_text())
            child = os.fork()
            if child == 0:
                save_for_ever(algo, root, [latest, latest + 1, latest + 1, latest + 2])
            time.sleep(rng.uniform(0.0, LONGEST))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            interrupted += any(path.name.startswith(".") for path in root.iterdir())
            loaded: Any = Policy.from_checkpoint(root)
            assert {
                f"{name}/{part}": array.tobytes()
                for name, policy in loaded.items()
                for part, array in policy.get_weights().items()
            } == wanted
            with PPO.from_checkpoint(root) as again:
                assert weights_of(again) == wanted
                assert again.iteration >= latest
                again.sample()
    sys.stdout.write(f"{kills} {interrupted}\n")


if __name__ == "__main__":
    main()
