"""Settings of networks, critics, groups, callbacks and evaluations that are wrong, or nearly right: one line each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from menv import DefaultCallbacks
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


def test_callbacks_in_lists_and_none_among_them_wake_no_hook_that_nobody_overrides() -> None:
    from menv.callbacks import overrides, read_callbacks

    class Ends(DefaultCallbacks):
        def on_episode_end(self, **kwargs: Any) -> None:
            """Does something."""

    found = read_callbacks([None, DefaultCallbacks, [Ends()]])
    assert overrides(found, "on_episode_end")
    assert not overrides(found, "on_episode_step")


def test_an_evaluation_may_have_callbacks_of_its_own() -> None:
    ended: list[str] = []

    def noting(name: str) -> type[DefaultCallbacks]:
        class Notes(DefaultCallbacks):
            def on_episode_end(self, **kwargs: Any) -> None:
                ended.append(name)

        return Notes

    own = {"evaluation_duration": 2, "evaluation_config": {"callbacks": noting("evaluation")}}
    with PPO(env=Comings, config={**SMALL, **own, "callbacks": noting("training")}) as algorithm:
        algorithm.train()
        assert set(ended) == {"training"}
        ended.clear()
        algorithm.evaluate()
    assert ended == ["evaluation"] * 2
