"""Copies of an environment that declare other spaces than the first one, wherever they live."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.errors import ContractError
from tests.workers.crews import Counting, running

PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "here": ({"num_workers": 0}, "^env 1: "),
    "workers": ({"num_workers": 2, "num_envs_per_worker": 1}, "^worker 2: "),
    "remote": ({"num_workers": 0, "remote_worker_envs": True}, "^env 1: "),
}
SPACES: dict[str, Any] = {
    "action_space": gym.spaces.Discrete(5),
    "observation_space": gym.spaces.Box(-1, 1, (3,), np.float32),
}


class Odd(Counting):
    """The second copy declares another space."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if max(config.worker_index - 1, config.vector_index) == 1:
            setattr(self, config["name"], SPACES[config["name"]])

    def _obs(self) -> Any:
        return np.zeros(self.observation_space.shape or (), np.float32)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("place", PLACES)
def test_a_copy_that_declares_another_space_is_named_before_anybody_acts_in_it(place: str, name: str) -> None:
    settings, whose = PLACES[place]
    said = f"{whose}its {name} is .*, expected one like that of the first environment"
    with (
        pytest.raises(ContractError, match=said),
        running(**settings, env=f"{__name__}:Odd", env_config={"name": name}) as algo,
    ):
        algo.train()


class Wide(Counting):
    """Each copy has bounds of its own, within those of the first."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.vector_index:
            self.observation_space = gym.spaces.Box(-0.5, 0.5, (2,), np.float32)

    def _obs(self) -> Any:
        return np.zeros(2, np.float32)


def test_copies_may_have_bounds_of_their_own() -> None:
    with running(0, env=f"{__name__}:Wide") as algo:
        assert algo.train()["num_env_steps_sampled"] == 128
