"""Two agents whose critics see both of them learn to trust each other: the team gets 8 instead of a sure 7.

`--way critic_obs` is a setting; `--way postprocess` writes the same by hand: it adds what both saw and the other one
did to each trajectory, values that by a network of its own and learns it. Independent Q-learners, printed beside,
settle for 7. (Independent learners of PPO find the 8 here too.)
"""

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from menv.algorithms import DQN, PPO, PPOPolicy, compute_advantages
from menv.envs import TwoStepGame

SIZES: dict[str, Any] = {"num_envs_per_worker": 32, "train_batch_size": 512, "entropy_coeff": 0.01}
GREEDY: dict[str, Any] = {"gamma": 1.0, "evaluation_duration": 1, "evaluation_config": {"explore": False}}


class CentralCritic(PPOPolicy):
    def make_modules(self) -> dict[str, nn.Module]:
        return {"critic": nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1), nn.Flatten(0))}

    def postprocess_trajectory(self, batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        (other,) = other_agent_batches.values()
        batch["seen"] = np.hstack((batch["obs"], other["obs"], np.eye(2, dtype="f")[other["actions"]]))
        with torch.no_grad():
            batch["vf_preds"] = self.modules["critic"](torch.from_numpy(batch["seen"])).numpy()
        return compute_advantages(batch, batch["vf_preds"][-1], gamma=self.settings.gamma, lambda_=0.95)

    def loss(self, batch: Any) -> Any:
        return self.ppo_loss(batch, values=self.modules["critic"](batch["seen"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=["postprocess", "critic_obs"], default="critic_obs")
    parser.add_argument("--seconds", type=float, default=5.0, help="time to train, each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args, start, returns = parser.parse_args(), time.perf_counter(), {}
    cls, way = (CentralCritic, {}) if args.way == "postprocess" else (None, {"critic_obs": "all_agents"})
    runs = ((args.way, PPO, cls, {**SIZES, **way, **GREEDY}), ("independent", DQN, None, GREEDY))
    for name, algorithm, spec, own in runs:
        agents = {"policies": {"agent_1": spec, "agent_2": spec}, "policy_mapping_fn": lambda a, **kw: a}
        with algorithm(env=TwoStepGame, config={**own, "multiagent": agents, "seed": args.seed}) as algo:
            while algo.train()["time_total_s"] < args.seconds:
                pass
            returns[name] = algo.evaluate()["evaluation"]["episode_reward_mean"]
            print(f"{name}: return {returns[name]:.2f} after {algo.iteration} iterations")
    if args.json:
        print(json.dumps({"returns": returns, "seconds": time.perf_counter() - start, "seed": args.seed}))


if __name__ == "__main__":
    main()
