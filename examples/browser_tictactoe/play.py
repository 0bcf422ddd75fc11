"""Trains TicTacToe by self-play for a moment, then serves a page where you play against the policies.

    python examples/browser_tictactoe/play.py
    python examples/browser_tictactoe/play.py --run runs/tictactoe-PPO-001

Open the address that it prints; Ctrl-C ends it.
"""

import argparse
from contextlib import suppress
from pathlib import Path
from typing import Any

from menv.algorithms import PPO
from menv.playing import Game
from menv.playing.browser import PlayServer
from menv.tracking import next_run_dir

CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 64,
    "train_batch_size": 2048,
    "sgd_minibatch_size": 512,
    "num_sgd_iter": 8,
    "lr": 3e-3,
    "gamma": 1.0,
    "lambda": 0.7,
    "entropy_coeff": 0.05,
    "model": {"fcnet_hiddens": [128, 128]},
}


def trained(seconds: float, seed: int) -> Path:
    """Train one policy that plays both players and return the run folder."""
    folder = next_run_dir("tictactoe", "PPO")
    with PPO(env="tictactoe", config={**CONFIG, "seed": seed}) as algo:
        algo.learn(stop={"time_total_s": seconds}, run_dir=folder, progress_bar=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", help="the folder of a run that was trained before")
    parser.add_argument("--seconds", type=float, default=30.0, help="time to train")
    parser.add_argument("--port", type=int, default=8765, help="0 takes one that is free")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    run = args.run or trained(args.seconds, args.seed)
    server = PlayServer(lambda: Game(run), title=str(run), port=args.port)
    print(f"Open {server.url} in a browser; Ctrl-C ends", flush=True)
    with suppress(KeyboardInterrupt):
        server.run()


if __name__ == "__main__":
    main()
