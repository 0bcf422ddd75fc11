"""Two agents with critics that see both of them learn to trust each other in the two-step game.

    python examples/centralized_critic.py --way postprocess

`critic_obs` is the built-in setting; `postprocess` writes the same by hand: a policy class adds what both agents saw
and the other one did to each trajectory, values it by a network of its own and learns that from its `loss`. The team
can have 7 for sure or 8 together. Independent learners are trained beside; with PPO they find the 8 here as well.
"""

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from menv import PolicySpec
from menv.algorithms import PPO, PPOPolicy, compute_advantages
from menv.envs import TwoStepGame

SIZES = {
    "num_envs_per_worker": 32,
    "train_batch_size": 512,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 6,
    "gamma": 1.0,
}
GREEDY = {"evaluation_duration": 1, "evaluation_config": {"explore": False}, "entropy_coeff": 0.01}


class CentralCritic(PPOPolicy):
    def make_modules(self) -> dict[str, nn.Module]:
        return {"critic": nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1), nn.Flatten(0))}

    def postprocess_trajectory(self, batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        (other,) = other_agent_batches.values()
        batch["seen"] = np.hstack((batch["obs"], other["obs"], np.eye(2, dtype=np.float32)[other["actions"]]))
        with torch.no_grad():
            batch["vf_preds"] = self.modules["critic"](torch.from_numpy(batch["seen"])).numpy()
        return compute_advantages(batch, batch["vf_preds"][-1], gamma=1.0, lambda_=self.settings.lambda_)

    def loss(self, batch: Any) -> Any:
        return self.ppo_loss(batch, values=self.modules["critic"](batch["seen"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--way", choices=["postprocess", "critic_obs"], default="critic_obs")
    parser.add_argument("--seconds", type=float, default=5.0, help="time to train, each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    central = {"critic_obs": "all_agents"} if args.way == "critic_obs" else {}
    returns, start = {}, time.perf_counter()
    for name, settings in ((args.way, central), ("independent", {})):
        spec = PolicySpec(CentralCritic if name == "postprocess" else None)
        policies = {
            "policies": {"agent_1": spec, "agent_2": spec},
            "policy_mapping_fn": lambda agent_id, **kw: agent_id,
        }
        config = {**SIZES, **GREEDY, **settings, "multiagent": policies, "seed": args.seed}
        with PPO(env=TwoStepGame, config=config) as algo:
            began = time.perf_counter()
            while algo.iteration == 0 or time.perf_counter() - began < args.seconds:
                algo.train()
            returns[name] = algo.evaluate()["evaluation"]["episode_reward_mean"]
            print(f"{name}: return {returns[name]:.2f} after {algo.iteration} iterations")
    if args.json:
        print(
            json.dumps(
                {
                    "returns": returns,
                    "way": args.way,
                    "seconds": time.perf_counter() - start,
                    "seed": args.seed,
                }
            )
        )


if __name__ == "__main__":
    main()
