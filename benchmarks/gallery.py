"""`make gallery`: runs each example and copies its picture into docs/assets/gallery, for docs/gallery.md.

ARGS="cartpole shoal" runs these alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "assets" / "gallery"
SECONDS = {
    "adapt_policy": 5, "card_game": 30, "cartpole": 40, "centralized_critic": 8, "custom_env": 10, "frozen_server": 8,
    "hierarchical": 40, "leduc_poker": 40, "offline_logs": 20, "own_algorithm": 60, "pistonball": 40,
    "policy_mapping": 12, "ppo_and_dqn": 15, "rock_paper_scissors": 15, "self_play": 40, "shared_layers": 8,
    "shoal": 10, "sumo_traffic_lights": 150, "tictactoe": 40, "two_step_game": 8, "two_trainers": 15,
    "vmas_balance": 60, "workers": 15,
}  # fmt: skip
"""How long each example trains."""


def run(name: str, seconds: int) -> None:
    """Run an example in a folder of its own and copy the first picture that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--seconds", str(seconds)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True)
        lines = done.stdout.splitlines()
        picture = next(line.split()[-1] for line in lines if line.startswith("wrote "))
        shutil.copy(Path(folder, picture), PICTURES / f"{name}.png")
    print(f"{name}, {seconds} s: {lines[-1]}", flush=True)


if __name__ == "__main__":
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or SECONDS:
        run(name, SECONDS[name])
