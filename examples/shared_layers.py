"""Two policies with different heads on the same hidden layers.

    python examples/shared_layers.py --seconds 10

Four agents balance a pole each. Two of them use "careful" and two use "hasty", which discounts more. Each policy makes
its own gradient steps; a step changes the shared layers for both. The outcome lists the weights of "hasty" that the
first steps of "careful" changed: the hidden layers, not the heads.
"""

from typing import Any

from menv import DefaultCallbacks, PolicySpec, make_multi_agent, register_env
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs

register_env("many_cartpoles", make_multi_agent("CartPole-v1"))

SHARED = {"shared_layers": "balance", "fcnet_hiddens": [64, 64]}


def policy_for(agent_id: int, *args: Any, **kwargs: Any) -> str:
    return "careful" if agent_id % 2 == 0 else "hasty"


class FirstWeights(DefaultCallbacks):
    """Keeps the weights of each policy from the moment before it learned for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[str, dict[str, Any]] = {}

    def on_learn_on_batch(self, *, policy: Any, **kwargs: Any) -> None:
        self.weights.setdefault(policy.policy_id, policy.get_weights())


def main(seconds: float = 10.0, seed: int = 0) -> dict[str, Any]:
    first = FirstWeights()
    config = {
        "env_config": {"num_agents": 4},
        "num_envs_per_worker": 8,
        "train_batch_size": 1024,
        "multiagent": {
            "policies": {
                "careful": PolicySpec(config={"model": SHARED, "gamma": 0.99}),
                "hasty": PolicySpec(config={"model": SHARED, "gamma": 0.95}),
            },
            "policy_mapping_fn": policy_for,
        },
        "callbacks": first,
        "seed": seed,
    }
    run_dir = next_run_dir("shared-layers", "PPO")
    with PPO(env="many_cartpoles", config=config) as algo:
        initial = algo.get_weights(["hasty"])["hasty"]
        algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))
    # "careful" learns first, so these changed before "hasty" made a step.
    changed = [name for name, value in first.weights["hasty"].items() if (value != initial[name]).any()]
    return {"changed": changed, "unchanged": [name for name in initial if name not in changed]}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
