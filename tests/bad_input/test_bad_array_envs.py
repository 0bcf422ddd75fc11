"""Vectorised gymnasium environments that return arrays, of another shape or kind than they should: each is named."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from menv import to_base_env
from menv.algorithms import PPO
from menv.errors import ContractError
from tests.bad_input.broken_envs import SMALL, checked, told


class Arrays(gym.vector.VectorEnv[Any, Any, Any]):
    """Three sub-environments whose episodes never end; subclasses step."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 3

    def __init__(self) -> None:
        self.single_observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 3)
        self.action_space = batch_space(self.single_action_space, 3)
        self.at = 0

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros((3, 2), np.float32), {}


def test_a_reward_that_is_not_a_number_is_named_with_its_step() -> None:
    class Spoilt(Arrays):
        def step(self, actions: Any) -> Any:
            self.at += 1
            rewards = np.array([1.0, np.nan if self.at == 4 else 1.0, 1.0])
            return np.zeros((3, 2), np.float32), rewards, np.zeros(3, bool), np.zeros(3, bool), {}

    algo = PPO(env=lambda context: Spoilt(), config={"rollout_fragment_length": 8})
    message = "env step 4: the reward of env 1 is nan"
    with algo, pytest.raises(ContractError, match=message) as caught:
        algo.sample()
    checked(str(caught.value))


@pytest.mark.parametrize("shape", [(3, 1), (1, 3), (2,)])
def test_flags_of_another_shape_are_named(shape: tuple[int, ...]) -> None:
    class Columns(Arrays):
        def step(self, actions: Any) -> Any:
            flags = np.zeros(shape, np.bool_)
            return np.zeros((3, 2), np.float32), np.ones(3), flags, flags, {}

    message = told(lambda: PPO(env=lambda context: Columns(), config=SMALL).sample(), ContractError)
    got = f"an array of shape {shape}" if len(shape) > 1 else "2 values"
    assert f"Columns.step: returned {got} as terminations, expected 3" in message


ODD: dict[str, tuple[int, Any, str]] = {
    "one_obs": (0, np.zeros((1, 2), np.float32), "returned 1 values as obs, expected 3"),
    "four_obs": (0, np.zeros((4, 2), np.float32), "returned 4 values as obs, expected 3"),
    "two_obs_in_a_list": (0, [np.zeros(2, np.float32)] * 2, "returned 2 values as obs, expected 3"),
    "no_obs": (0, None, "returned None (is a `return` missing?) as obs, expected 3"),
    "one_reward": (1, 1.0, "returned a single float as rewards, expected 3"),
    "two_rewards": (1, np.ones(2), "returned 2 values as rewards, expected 3"),
    "no_rewards": (1, None, "returned None (is a `return` missing?) as rewards, expected 3"),
    "one_flag": (2, False, "returned a single bool as terminations, expected 3"),
    "no_flags": (3, None, "returned None (is a `return` missing?) as truncations, expected 3"),
    "two_flags": (3, np.zeros(2, np.bool_), "returned 2 values as truncations, expected 3"),
    "flags_of_objects": (
        2,
        np.full(3, None),
        "Odd.step: terminations of env 0 is NoneType, expected True or False",
    ),
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("frames", [True, False])
def test_another_number_of_values_of_an_array_environment_is_named(case: str, frames: bool) -> None:
    place, value, message = ODD[case]

    class Odd(Arrays):
        def step(self, actions: Any) -> Any:
            nobody = np.zeros(3, np.bool_)
            result = [np.zeros((3, 2), np.float32), np.ones(3), nobody, nobody, {}]
            result[place] = value
            return tuple(result)

    def run() -> None:
        if frames:
            PPO(env=lambda context: Odd(), config=SMALL).sample()
            return
        base = to_base_env(Odd())
        base.send_actions(base.poll().slots, [0, 0, 0])
        base.poll()

    assert message in told(run, ContractError)


@pytest.mark.parametrize(("dtype", "number"), [(np.float64, 1e300), (np.int64, 2**40 + 1)])
@pytest.mark.parametrize("nested", [False, True])
def test_batches_whose_numbers_the_space_cannot_hold_are_named_as_single_observations_are(
    dtype: Any, number: Any, nested: bool
) -> None:
    class Wide(Arrays):
        def __init__(self) -> None:
            super().__init__()
            if nested:
                self.single_observation_space = gym.spaces.Dict(x=self.single_observation_space)
                self.observation_space = batch_space(self.single_observation_space, 3)

        def reset(self, **kwargs: Any) -> Any:
            obs = np.full((3, 2), number, dtype)
            return {"x": obs} if nested else obs, {}

    message = told(lambda: PPO(env=lambda context: Wide(), config=SMALL).sample(), ContractError)
    assert (
        f"expected float32 of shape (2,), got {np.dtype(dtype)} with numbers that float32 cannot hold"
        in message
    )
