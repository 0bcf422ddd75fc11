"""Copies of an environment that declare other spaces than the first one, wherever they live."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.errors import ConfigError, ContractError
from tests.workers.crews import Counting, running


class Odd(Counting):
    """The second copy declares another space."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if max(config.worker_index - 1, config.vector_index) == 1:
            setattr(self, config["name"], SPACES[config["name"]])

    def see(self) -> Any:
        return np.zeros(self.observation_space.shape or (), np.float32)


class Other(Counting):
    """Declares other actions."""

    action_space = gym.spaces.Discrete(5)


def odd_pairs(config: Any) -> Any:
    """Return two environments that step together; those of the second worker are odd."""
    return gym.vector.SyncVectorEnv([lambda: Odd(config)] * 2)


def odd_numbers(config: Any) -> Any:
    """Return two environments that step together, and one more in the second worker."""
    return gym.vector.SyncVectorEnv([lambda: Counting(config)] * (3 if config.worker_index == 2 else 2))


PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "here": ({"num_workers": 0}, "^env 1: "),
    "workers": ({"num_workers": 2, "num_envs_per_worker": 1}, "^worker 2: "),
    "remote": ({"num_workers": 0, "remote_worker_envs": True}, "^env 1: "),
}
SPACES: dict[str, Any] = {
    "action_space": gym.spaces.Discrete(5),
    "observation_space": gym.spaces.Box(-1, 1, (3,), np.float32),
}


@pytest.mark.slow_unless("here-*", "workers-observation_space", "remote-action_space")
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("place", PLACES)
def test_a_copy_that_declares_another_space_is_named_before_any_agent_acts_in_it(
    place: str, name: str
) -> None:
    settings, whose = PLACES[place]
    said = f"{whose}.*{name}"
    with (
        pytest.raises(ContractError, match=said),
        running(**settings, env=f"{__name__}:Odd", env_config={"name": name}) as algo,
    ):
        algo.train()


@pytest.mark.slow_unless("observation_space")
@pytest.mark.parametrize("name", SPACES)
def test_a_vectorised_environment_with_other_spaces_is_named_in_its_worker(name: str) -> None:
    said = f"^worker 2: .*{name}"
    with (
        pytest.raises(ContractError, match=said),
        running(2, env=odd_pairs, num_envs_per_worker=1, env_config={"name": name}) as algo,
    ):
        algo.train()


def test_a_worker_with_another_number_of_sub_environments_than_the_driver_is_named() -> None:
    said = "^worker 2: SyncVectorEnv of 3 .* 2 "
    with pytest.raises(ContractError, match=said), running(2, env=odd_numbers, num_envs_per_worker=1) as algo:
        algo.train()


@pytest.mark.parametrize("evaluation_num_workers", [0, 1])
def test_an_environment_of_evaluations_that_no_policy_can_play_in_is_refused_when_one_is_asked_for(
    evaluation_num_workers: int,
) -> None:
    config = {"env": Counting, "evaluation_config": {"env": Other}}
    said = "^evaluation_config: .*action space.*'agent0' is Discrete"
    with running(0, evaluation_num_workers=evaluation_num_workers, **config) as algo:
        for _ in range(2):
            with pytest.raises(ConfigError, match=said):
                algo.evaluate()
