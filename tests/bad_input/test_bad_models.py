"""Settings of networks, critics, groups, callbacks and evaluations that are wrong, or nearly right: one line each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from menv.algorithms import PPO
from tests.algorithms_e2e.comings import Comings

SMALL: dict[str, Any] = {"train_batch_size": 16, "seed": 1}


class Line(nn.Module):
    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, num_outputs + 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layer(obs)
        return out[:, :-1], out[:, -1]


@pytest.mark.parametrize("remembers", [False, True])
def test_a_module_may_write_into_what_it_is_shown(remembers: bool) -> None:
    class Writing(Line):
        def forward(self, obs: Tensor, *state: Any) -> Any:
            obs *= 0.0
            out = self.layer(obs)
            found = out[..., :-1], out[..., -1]
            return (*found, *state) if remembers else found

    if remembers:
        Writing.get_initial_state = lambda self: [torch.zeros(1)]  # type: ignore[attr-defined]
    with PPO(env=Comings, config={**SMALL, "model": {"custom_model": Writing}}) as algorithm:
        assert algorithm.sample()["default_policy"]["obs"].any(1).all()
        algorithm.train()
        assert algorithm.sample()["default_policy"]["obs"].any(1).all()
