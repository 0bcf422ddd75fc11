"""Two algorithms on one road: a PPO trains the cars, a DQN trains the traffic lights, and they exchange weights.

    python examples/two_trainers.py --seconds 20

Each knows both policies and trains its own. After each round it gets the new weights of the other policy. Where one run
can train both, `ppo_and_dqn.py` is simpler; two trainers may run at different speeds or on different machines.
"""

import time
from typing import Any

from menv import PolicySpec
from menv.algorithms import DQN, PPO, plot_curves
from menv.tracking import next_run_dir

POLICIES = {"cars": PolicySpec(algorithm="PPO"), "lights": PolicySpec(algorithm="DQN")}


def policy_for(agent_id: str, *args: Any, **kwargs: Any) -> str:
    return "cars" if agent_id.startswith("car") else "lights"


def config(trained: str, seed: int) -> dict[str, Any]:
    return {
        "env_config": {"num_cars": 4, "num_traffic_lights": 2},
        "num_envs_per_worker": 16,
        "multiagent": {
            "policies": POLICIES,
            "policy_mapping_fn": policy_for,
            "policies_to_train": [trained],
        },
        "seed": seed,
    }


def main(seconds: float = 20.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("traffic", "two-trainers")
    curves: dict[str, list[tuple[float, float]]] = {"cars": [], "lights": []}
    start = time.perf_counter()
    with (
        PPO(env="traffic", config={**config("cars", seed), "train_batch_size": 2048}) as cars,
        DQN(
            env="traffic", config={**config("lights", seed), "min_sample_timesteps_per_iteration": 2048}
        ) as lights,
    ):
        while not curves["cars"] or time.perf_counter() - start < seconds:
            result = cars.train()
            lights.train()
            cars.set_weights(lights.get_weights(["lights"]))
            lights.set_weights(cars.get_weights(["cars"]))
            print(result["num_env_steps_sampled"], "env steps", result["policy_reward_mean"])
            for policy, mean in result["policy_reward_mean"].items():
                curves[policy].append((result["num_env_steps_sampled"], mean))
    plot_curves(run_dir / "curves.png", curves, title="traffic", y_label="policy_reward_mean")
    print("wrote", run_dir / "curves.png")
    return result["policy_reward_mean"]


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
