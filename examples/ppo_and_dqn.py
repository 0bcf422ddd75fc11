"""Cars that learn by PPO and traffic lights that learn by DQN, on one road and in one run.

    python examples/ppo_and_dqn.py --seconds 20

Cars arrive and leave at any time; an agent gets its policy when it first appears.
"""

from typing import Any

from menv import PolicySpec
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs


def policy_for(agent_id: str, *args: Any, **kwargs: Any) -> str:
    return "cars" if agent_id.startswith("car") else "lights"


CONFIG: dict[str, Any] = {
    "env_config": {"num_cars": 4, "num_traffic_lights": 2},
    "num_envs_per_worker": 16,
    "train_batch_size": 2048,
    "multiagent": {
        "policies": {"cars": PolicySpec(algorithm="PPO"), "lights": PolicySpec(algorithm="DQN")},
        "policy_mapping_fn": policy_for,
    },
}


def main(seconds: float = 20.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("traffic", "PPO-and-DQN")
    with PPO(env="traffic", config={**CONFIG, "seed": seed}) as algo:
        result = algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))
    return result["policy_reward_mean"]


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
