"""You against a policy, on a page in your browser: TicTacToe after half a minute of self-play.

    python examples/person_against_policy.py
    python examples/person_against_policy.py --run runs/tictactoe-PPO-001

Open the address that it prints and click on a square; Ctrl-C ends. The colour of a square says how likely the policy
takes it. `menv play RUN --browser` does the same for any run, and `menv play RUN --as player2` in the terminal.
"""

from pathlib import Path
from typing import Any

from menv.algorithms import PPO
from menv.playing import Game
from menv.playing.browser import PlayServer
from menv.tracking import next_run_dir, plot_runs

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


def train(seconds: float, seed: int) -> Path:
    """Train one policy that plays both players and return the run folder."""
    run_dir = next_run_dir("tictactoe", "PPO")
    with PPO(env="tictactoe", config={**CONFIG, "seed": seed}) as algo:
        algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir], key="episode_len_mean"))
    return run_dir


def main(run: str = "", seconds: float = 30.0, port: int = 8765, seed: int = 0) -> dict[str, Any]:
    run_dir = Path(run) if run else train(seconds, seed)
    server = PlayServer(Game(run_dir), title=str(run_dir), port=port)
    print(f"Open {server.url} in a browser; Ctrl-C ends", flush=True)
    server.run()
    return {"run": str(run_dir)}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
