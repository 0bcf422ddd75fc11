"""Policies that look at the trajectories of all agents, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from menv import Policy, SampleBatch
from menv.algorithms import PPOPolicy
from tests.worlds import like

Others = Mapping[Any, SampleBatch] | None


def steps_of(batch: SampleBatch) -> list[int]:
    """Return the env step of each row within its episode, which `Shifts` shows."""
    steps: list[int] = batch["obs"][:, 1].astype(int).tolist()
    return steps


def watching(*, base: type[Policy] = PPOPolicy) -> tuple[type[Policy], list[Any]]:
    """Return a policy class that notes what its hook is given, and the notes."""
    seen: list[Any] = []

    class Watch(base):  # type: ignore[misc,valid-type]
        def postprocess_trajectory(
            self, batch: Any, other_agent_batches: Any = None, episode: Any = None
        ) -> Any:
            seen.append((batch, other_agent_batches, episode))
            found: SampleBatch = super().postprocess_trajectory(batch, other_agent_batches, episode)
            return found

    return Watch, seen


# Writes its loss itself, and calls PPO's.
OwnLoss = like(PPOPolicy, loss=lambda self, batch: self.ppo_loss(batch))


class WithCritic(PPOPolicy):
    """Learns a value of its own from what everybody saw first, padded to three agents."""

    def make_modules(self) -> dict[str, nn.Module]:
        return {"critic": nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))}

    def postprocess_trajectory(self, batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        others = other_agent_batches or {}
        joint = np.zeros((batch.count, 3), np.float32)
        joint[:, 0] = batch["obs"][:, 0]
        joint[:, 1 : 1 + len(others)] = [len(rows["obs"]) for rows in others.values()]
        batch["joint"] = joint
        with torch.no_grad():
            batch["vf_preds"] = self.modules["critic"](torch.from_numpy(joint)).numpy()
        return batch

    def loss(self, batch: Mapping[str, Tensor]) -> Any:
        return self.ppo_loss(batch, values=self.modules["critic"](batch["joint"]))


class Judge(PPOPolicy):
    """Keeps what its network says of each row."""

    def postprocess_trajectory(self, batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        with torch.no_grad():
            batch["judged"] = self.network.values(torch.from_numpy(batch["obs"])).numpy()
        return batch
