"""What custom policies return reaches the environment unchanged, and must be within the space."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from menv import ContractError, Policy, PolicySpec, VectorEnv
from menv.algorithms import PPO
from tests.worlds import Alone, Several


def array(values: Any) -> Any:
    return np.array(values, np.float32)


BOX = gym.spaces.Box(array([0.0, -2.0]), array([6.0, 2.0]))
NESTED = gym.spaces.Dict({"steer": BOX, "gear": gym.spaces.Discrete(3)})


class Track(Alone):
    """Keeps the actions that it is given; pays 10."""

    length = 5
    given: ClassVar[list[Any]] = []

    def __init__(self, context: Any = None) -> None:
        super().__init__(context)
        self.action_space = self.config.get("space", BOX)

    def pay(self, action: Any) -> float:
        self.given.append(action)
        return 10.0


class Cars(Several):
    length = 5

    def __init__(self, context: Any = None) -> None:
        super().__init__(context)
        self.action_space = self.config.get("space", BOX)

    def pay(self, actions: Any) -> Any:
        Track.given.append(actions["a"])
        return dict.fromkeys(actions, 10.0)


class Fixed(Policy):
    """Answers the value in its config, always in the same array."""

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
        return [self.config["value"]] * len(obs_batch), [], {}


KINDS: dict[str, Any] = {
    "gym": Track,
    "agents": Cars,
    "vector": lambda context: VectorEnv.vectorize_gym_envs(existing_envs=[Track(context)], num_envs=1),
    "gymnasium.vector": lambda context: SyncVectorEnv([lambda: Track(context)]),
}


def play(value: Any, kind: Any, space: Any, **config: Any) -> tuple[Any, Any]:
    """Return the first action that the environment was given, and the batch."""
    Track.given.clear()
    spec = PolicySpec(policy_class=Fixed, config={"value": value})
    settings = {"rollout_fragment_length": 10, "env_config": {"space": space}, **config}
    with PPO(env=kind, config={**settings, "multiagent": {"policies": {"default_policy": spec}}}) as algo:
        batch = algo.sample()["default_policy"]
    return (Track.given[0] if Track.given else None), batch


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX, array([8.8, 0.0])),
        (NESTED, {"steer": array([8.8, 0.0]), "gear": 1}),
        (NESTED, {"steer": array([1.0, 0.0]), "gear": 3}),
        (gym.spaces.MultiDiscrete([3, 4]), np.array([0, 4])),
        (gym.spaces.Discrete(3, start=1), 0),
        (gym.spaces.MultiBinary(2), np.array([0, 2], np.int8)),
    ],
)
def test_an_action_outside_the_space_is_an_error_that_names_the_policy(
    kind: str, space: Any, value: Any
) -> None:
    with pytest.raises(ContractError, match="'default_policy'"):
        play(value, KINDS[kind], space)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX, array([3.0, 1.0])),
        (gym.spaces.MultiDiscrete([3, 4]), np.array([1, 2])),
        (NESTED, {"steer": array([3.0, 1.0]), "gear": 1}),
        (gym.spaces.MultiBinary(2), np.array([0, 1], np.int8)),
    ],
)
def test_the_environment_gets_write_protected_copies_of_the_space(kind: str, space: Any, value: Any) -> None:
    # Settings of networks change nothing.
    action, batch = play(value, KINDS[kind], space, clip_rewards=True, normalize_actions=True)
    assert set(batch["rewards"].tolist()) == {10.0}
    assert space.contains(action)
    arrays = [action["steer"]] if isinstance(action, dict) else [action]
    own = value["steer"] if isinstance(value, dict) else value
    np.testing.assert_array_equal(arrays[0], own)
    for array in arrays:
        assert not np.shares_memory(array, own)
        # gymnasium takes the actions of its copies out of a batch, which is its own.
        if kind != "gymnasium.vector":
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
    own[0] = own[0]
