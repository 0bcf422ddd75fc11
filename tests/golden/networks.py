"""Custom networks of the golden runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from menv.algorithms import PPOPolicy, compute_advantages


class Net(nn.Module):
    """A custom model without a state."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.body = nn.Linear(int(np.prod(obs_space.shape)), 8)
        self.policy, self.value = nn.Linear(8, num_outputs), nn.Linear(8, 1)

    def forward(self, obs: Tensor) -> Any:
        features = torch.tanh(self.body(obs.flatten(1)))
        return self.policy(features), self.value(features)[:, 0]


class RecurrentNet(Net):
    """A custom model with one."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__(obs_space, num_outputs)
        self.cell = nn.GRU(8, 8, batch_first=True)

    def get_initial_state(self) -> list[Tensor]:
        return [torch.ones(8)]

    def forward(self, obs: Tensor, state: Any = None) -> Any:
        features, after = self.cell(torch.tanh(self.body(obs.flatten(2))), state[0][None].contiguous())
        return self.policy(features), self.value(features)[..., 0], [after[0]]


class CentralCritic(PPOPolicy):
    """A policy with a critic of its own, which sees the other agent too."""

    def make_modules(self) -> dict[str, nn.Module]:
        return {"critic": nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))}

    def postprocess_trajectory(self, batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        (other,) = other_agent_batches.values()
        batch["seen"] = np.hstack((batch["obs"], other["obs"], np.eye(2, dtype="f")[other["actions"]]))
        with torch.no_grad():
            batch["vf_preds"] = self.modules["critic"](torch.from_numpy(batch["seen"])).numpy()
        return compute_advantages(batch, batch["vf_preds"][-1], gamma=self.settings.gamma, lambda_=0.95)

    def loss(self, batch: Any) -> Any:
        return self.ppo_loss(batch, values=self.modules["critic"](batch["seen"]))
