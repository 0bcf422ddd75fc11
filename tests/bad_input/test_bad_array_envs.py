"""Vectorised gymnasium environments that return arrays, of another shape or kind than they should: each is named."""

from __future__ import annotations

import re
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
from tests.worlds import like


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

    def step(self, actions: Any) -> Any:
        self.at += 1
        parts = [np.zeros((3, 2), np.float32), np.ones(3), np.zeros(3, np.bool_), np.zeros(3, np.bool_), {}]
        return tuple(self.changed(parts))

    def changed(self, parts: list[Any]) -> Any:
        return parts


def instead(place: int, value: Any) -> Any:
    """Return `Arrays` in which one part of a step is something else, a function of the env step among others."""

    def changed(self: Any, parts: list[Any]) -> Any:
        parts[place] = value(self.at) if callable(value) else value
        return parts

    return like(Arrays, changed=changed)


def test_a_reward_that_is_not_a_number_is_named_with_its_step() -> None:
    spoilt = instead(1, lambda at: np.array([1.0, np.nan if at == 4 else 1.0, 1.0]))
    algo = PPO(env=lambda context: spoilt(), config={"rollout_fragment_length": 8})
    with algo, pytest.raises(ContractError, match=r"env step 4: .*reward.*env 1.*nan") as caught:
        algo.sample()
    checked(str(caught.value))


@pytest.mark.parametrize("shape", [(3, 1), (1, 3), (2,)])
def test_flags_of_another_shape_are_named(shape: tuple[int, ...]) -> None:
    columns = instead(2, np.zeros(shape, np.bool_))
    message = told(lambda: PPO(env=lambda context: columns(), config=SMALL).sample(), ContractError)
    assert message.startswith("Arrays.step: ")
    assert "terminations" in message
    assert (str(shape) if len(shape) > 1 else "2 ") in message


ODD: dict[str, tuple[int, Any, str]] = {
    "one_obs": (0, np.zeros((1, 2), np.float32), "1 .*obs"),
    "four_obs": (0, np.zeros((4, 2), np.float32), "4 .*obs"),
    "two_obs_in_a_list": (0, [np.zeros(2, np.float32)] * 2, "2 .*obs"),
    "no_obs": (0, None, "None.*obs"),
    "one_reward": (1, 1.0, "float.*rewards"),
    "two_rewards": (1, np.ones(2), "2 .*rewards"),
    "no_rewards": (1, None, "None.*rewards"),
    "one_flag": (2, False, "bool.*terminations"),
    "no_flags": (3, None, "None.*truncations"),
    "two_flags": (3, np.zeros(2, np.bool_), "2 .*truncations"),
    "flags_of_objects": (2, np.full(3, None), "terminations of env 0 .*NoneType"),
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("frames", [True, False])
def test_another_number_of_values_of_an_array_environment_is_named(case: str, frames: bool) -> None:
    place, value, message = ODD[case]

    odd = instead(place, value)

    def run() -> None:
        if frames:
            PPO(env=lambda context: odd(), config=SMALL).sample()
            return
        base = to_base_env(odd())
        base.send_actions(base.poll().slots, [0, 0, 0])
        base.poll()

    assert re.match(f"Arrays.*: .*{message}", told(run, ContractError))


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
    assert re.search(rf"float32.*\(2,\).*{np.dtype(dtype)}", message)
