"""DQN learns CartPole from recorded episodes alone; it never chooses an action while it trains.

    python examples/offline_logs.py --seconds 30

One episode in six was played by a good policy, the others by a careless one. `record` writes them, and `input` names
the files. At the end the mean returns of the three policies are compared.
"""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from menv.algorithms import DQN
from menv.offline import record
from menv.tracking import next_run_dir, plot_runs


def good(obs: Any) -> int:
    position, speed, angle, rotation = obs
    return int(angle + 0.3 * rotation + 0.05 * position + 0.1 * speed > 0)


def careless(obs: Any) -> int:
    return random.randrange(2) if random.random() < 0.6 else good(obs)


def mean_return(choose: Callable[[Any], int], episodes: int, path: Path, seed: int) -> float:
    """Record episodes and return their mean return."""
    return record(choose, "CartPole-v1", path, episodes=episodes, seed=seed)["agent0"]


def main(seconds: float = 30.0, seed: int = 0) -> dict[str, Any]:
    random.seed(seed)
    run_dir = next_run_dir("offline-logs", "DQN")
    with tempfile.TemporaryDirectory() as folder:
        returns = {
            "good": mean_return(good, 20, Path(folder, "good.parquet"), seed),
            "careless": mean_return(careless, 100, Path(folder, "careless.parquet"), seed + 1),
        }
        config = {
            "input": f"{folder}/*.parquet",
            # Long returns bootstrap less from actions that no episode shows, whose values would grow without bound.
            "n_step": 20,
            "target_network_update_freq": 4000,
            "evaluation_duration": 20,
            "evaluation_config": {"explore": False},
            "seed": seed,
        }
        with DQN(env="CartPole-v1", config=config) as algo:
            algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
            learned = algo.evaluate()["evaluation"]["episode_reward_mean"]
    # The returns in the results come from the recording; the loss shows what was learned.
    print("wrote", plot_runs([run_dir], key="info/learner/default_policy/learner_stats/mean_q"))
    return {"learned": learned, **returns}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
