"""QMIX teaches two agents to trust each other: the team earns 8, where independent learners settle for a sure 7.

    python examples/two_step_game.py --seconds 10

QMIX trains both agents as one group. Its mixing network also reads the state that `TwoStepGame.state()` returns.
"""

from typing import Any

from menv.algorithms import DQN, QMIX
from menv.envs import TwoStepGame
from menv.tracking import next_run_dir, plot_runs

AGENTS = ["agent_1", "agent_2"]
CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 8,
    "evaluation_interval": 5,
    "evaluation_duration": 1,
    "evaluation_config": {"explore": False},
}


def train(kind: Any, config: dict[str, Any], seconds: float, seed: int) -> float:
    run_dir = next_run_dir("two-step-game", kind.__name__)
    with kind(env=TwoStepGame, config={**CONFIG, **config, "seed": seed}) as algo:
        algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
        mean = float(algo.evaluate()["evaluation"]["episode_reward_mean"])
    print("wrote", plot_runs([run_dir]))
    return mean


def main(seconds: float = 10.0, seed: int = 0) -> dict[str, Any]:
    independent = {
        "multiagent": {
            "policies": AGENTS,
            "policy_mapping_fn": lambda agent_id, **kwargs: agent_id,
        }
    }
    return {
        "qmix": train(QMIX, {}, seconds, seed),
        "independent": train(DQN, independent, seconds, seed),
    }


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
