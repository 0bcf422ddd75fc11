"""Your own algorithm: A2C, which keeps PPO's sampling and advantages and brings another learner.

    python examples/own_algorithm.py

A recipe says what is special about an algorithm. `A2CRecipe` inherits the network and the advantages of PPO and
replaces one method, `make_learner`. The learner has five methods: `learn`, `weights` and `set_weights`, and for
checkpoints `state` and `set_state`. Workers, servers, evaluation, run folders and `menv watch` need no further code.

A2C takes one gradient step per batch (Mnih et al. 2016, arXiv:1602.01783, the synchronous form): with advantages A_t it
maximizes log pi(a_t | s_t) A_t, fits V(s_t) to its target, and adds the entropy of pi.
"""

from typing import Any

import numpy as np
import torch

from menv import SampleBatch
from menv.algorithms import PPO, PPOConfig, PPORecipe
from menv.tracking import next_run_dir, plot_runs


class A2CLearner:
    """Improves one policy's weights by RMSprop."""

    def __init__(self, network: Any, weights: dict[str, Any], config: PPOConfig) -> None:
        self.config = config
        self.head = network.head
        self.params = {name: torch.tensor(values, requires_grad=True) for name, values in weights.items()}
        self.network = network.torch_network(self.params)
        self.optimizer = torch.optim.RMSprop(self.params.values(), lr=config.lr, alpha=0.99, eps=1e-5)

    def learn(self, batch: SampleBatch, env_steps: int) -> dict[str, float]:
        """Take one gradient step; return statistics for the result."""
        with torch.inference_mode(False), torch.enable_grad():
            obs = torch.tensor(batch["obs"])
            actions = torch.tensor(batch["actions"])
            advantages = torch.tensor(batch["advantages"], dtype=torch.float32)
            targets = torch.tensor(batch["value_targets"], dtype=torch.float32)
            mask = torch.tensor(batch["action_mask"]) if "action_mask" in batch else None
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

            dist_inputs, values = self.network.both(obs, mask)
            inputs = self.head.standard(dist_inputs)
            logp = self.head.log_prob(inputs, actions)
            policy_loss = -(logp * advantages).mean()
            vf_loss = (values - targets).square().mean()
            entropy = self.head.entropy(inputs).mean()
            loss = policy_loss + self.config.vf_loss_coeff * vf_loss - self.config.entropy_coeff * entropy

            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.params.values(), 0.5)
            self.optimizer.step()
        return {"policy_loss": policy_loss.item(), "vf_loss": vf_loss.item(), "entropy": entropy.item()}

    def weights(self) -> dict[str, Any]:
        return {name: param.detach().numpy().copy() for name, param in self.params.items()}

    def set_weights(self, weights: Any) -> None:
        with torch.no_grad():
            for name, param in self.params.items():
                param.copy_(torch.from_numpy(np.array(weights[name])))

    def state(self) -> dict[str, Any]:
        """Return what the next step depends on, except the weights."""
        moments = self.optimizer.state
        return {name: moments[param]["square_avg"].numpy() for name, param in self.params.items() if moments}

    def set_state(self, state: Any) -> None:
        for name, moment in state.items():
            step = {"step": torch.tensor(0.0), "square_avg": torch.from_numpy(np.array(moment))}
            self.optimizer.state[self.params[name]] = step


class A2CRecipe(PPORecipe):
    name = "A2C"

    def make_learner(self, network: Any, weights: Any, config: Any, seed: int) -> A2CLearner:
        return A2CLearner(network, weights, config)


class A2C(PPO):
    recipe = A2CRecipe()


def main(seconds: float = 60.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("own-algorithm", "A2C")
    stop = {"episode_reward_mean": 450.0, "time_total_s": seconds}
    settings = PPOConfig(
        env="CartPole-v1",
        num_envs_per_worker=16,
        train_batch_size=80,
        rollout_fragment_length=5,
        lr=0.003,
        vf_loss_coeff=0.25,
        entropy_coeff=0.01,
        seed=seed,
    )
    with A2C(settings) as algo:
        result = algo.learn(stop=stop, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))
    return {"mean_return": result["episode_reward_mean"], "env_steps": result["timesteps_total"]}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
