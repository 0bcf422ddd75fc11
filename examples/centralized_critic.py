"""Centralized training, decentralized execution: critics that see both agents, actors that see their own observation.

    python examples/centralized_critic.py --way critic_obs

The two-step game pays a sure 7, or 8 if both agents trust each other. `critic_obs` is a setting, as in MAPPO.
`--way postprocess` writes the same by hand: it adds both observations and the other agent's action to each trajectory,
computes values with a separate network and trains that network. Independent Q-learners settle for 7.
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from menv.algorithms import DQN, PPO, PPOPolicy, compute_advantages
from menv.envs import TwoStepGame
from menv.tracking import next_run_dir, plot_runs

AGENTS = ["agent_1", "agent_2"]
CONFIG: dict[str, Any] = {
    "gamma": 1.0,
    "evaluation_interval": 5,
    "evaluation_duration": 1,
    "evaluation_config": {"explore": False},
}
PPO_CONFIG: dict[str, Any] = {"num_envs_per_worker": 32, "train_batch_size": 512, "entropy_coeff": 0.01}


class CentralCritic(PPOPolicy):
    def make_modules(self) -> dict[str, nn.Module]:
        # Two observations of 5 numbers, and one of 2 actions.
        critic = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1), nn.Flatten(0))
        return {"critic": critic}

    def postprocess_trajectory(self, batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        (other,) = other_agent_batches.values()
        action = np.eye(2, dtype=np.float32)[other["actions"]]
        batch["all_agents"] = np.hstack((batch["obs"], other["obs"], action))
        with torch.no_grad():
            batch["vf_preds"] = self.modules["critic"](torch.from_numpy(batch["all_agents"])).numpy()
        return compute_advantages(batch, batch["vf_preds"][-1], gamma=self.settings.gamma, lambda_=0.95)

    def loss(self, batch: Any) -> Any:
        return self.ppo_loss(batch, values=self.modules["critic"](batch["all_agents"]))


def train(kind: Any, config: dict[str, Any], policy: Any, name: str, seconds: float, seed: int) -> float:
    multiagent = {
        "policies": dict.fromkeys(AGENTS, policy),
        "policy_mapping_fn": lambda agent_id, **kwargs: agent_id,
    }
    run_dir = next_run_dir(f"centralized-critic-{name}", kind.__name__)
    config = {**CONFIG, **config, "multiagent": multiagent, "seed": seed}
    with kind(env=TwoStepGame, config=config) as algo:
        algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
        mean = float(algo.evaluate()["evaluation"]["episode_reward_mean"])
    print("wrote", plot_runs([run_dir]))
    return mean


def main(
    way: Literal["critic_obs", "postprocess"] = "critic_obs", seconds: float = 5.0, seed: int = 0
) -> dict[str, Any]:
    if way == "postprocess":
        central = train(PPO, PPO_CONFIG, CentralCritic, way, seconds, seed)
    else:
        central = train(PPO, {**PPO_CONFIG, "critic_obs": "all_agents"}, None, way, seconds, seed)
    independent = train(DQN, {}, None, "independent", seconds, seed)
    return {"central": central, "independent": independent}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
