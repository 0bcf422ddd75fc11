"""Several CartPoles in one environment; a mapping function assigns them to several policies.

    python examples/policy_mapping.py --num-agents 4 --num-policies 2

Agent 0 has policy_0, agent 1 has policy_1, and so on in turn. Each policy learns from its own agents and has its own
discount. With --num-policies 1 all agents share one policy (parameter sharing).
"""

from typing import Any

from menv import Episode, PolicySpec, make_multi_agent, register_env
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs

register_env("many_cartpoles", make_multi_agent("CartPole-v1"))


def main(num_agents: int = 4, num_policies: int = 2, seconds: float = 15.0, seed: int = 0) -> dict[str, Any]:
    def policy_for(agent_id: int, episode: Episode, **kwargs: Any) -> str:
        return f"policy_{agent_id % num_policies}"

    policies = {
        f"policy_{number}": PolicySpec(config={"gamma": 0.99 - 0.005 * number})
        for number in range(num_policies)
    }
    config = {
        "env_config": {"num_agents": num_agents},
        "num_envs_per_worker": 16,
        "train_batch_size": 1024,
        "multiagent": {"policies": policies, "policy_mapping_fn": policy_for},
        "seed": seed,
    }
    run_dir = next_run_dir("many-cartpoles", "PPO")
    with PPO(env="many_cartpoles", config=config) as algo:
        result = algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))
    return result["policy_reward_mean"]


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
