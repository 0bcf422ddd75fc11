"""What a network answers, in the form that the environment expects; and clipped rewards."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.connectors.action_output import ActionOutput
from menv.connectors.clip_reward import clip_reward
from menv.errors import ConfigError

spaces = gym.spaces


def box(low: Any, high: Any, *values: Any, **settings: bool) -> list[Any]:
    space = spaces.Box(np.array(low, np.float32), np.array(high, np.float32), dtype=np.float32)
    flat = np.array(values, np.float32).reshape(len(values), -1)
    return [out.tolist() for out in ActionOutput(space, **settings)(flat)]


def test_a_half_is_three_quarters_of_the_way_between_the_bounds() -> None:
    assert box([0], [6], [0.5]) == [[4.5]]
    assert box([0], [6], [-1], [0], [1]) == [[0.0], [3.0], [6.0]]


def test_scaled_actions_stay_inside_the_bounds() -> None:
    assert box([0], [6], [8.8], [-3]) == [[6.0], [0.0]]


def test_without_scaling_actions_are_clipped_only_if_asked() -> None:
    assert box([0], [6], [8.8], normalize=False, clip=True) == [[6.0]]
    assert box([0], [6], [5.5], normalize=False, clip=True) == [[5.5]]
    np.testing.assert_allclose(box([0], [6], [8.8], normalize=False), [[8.8]])


def test_unbounded_dimensions_are_left_alone_and_one_sided_bounds_hold() -> None:
    (out,) = box([-np.inf, 0, 0, -np.inf], [np.inf, np.inf, 6, 6], [9, -5, 0.5, 9])
    assert out == [9, 0, 4.5, 6]
    (out,) = box([-np.inf, 0, 0, -np.inf], [np.inf, np.inf, 6, 6], [9, -5, 0.5, 9], clip=True)
    assert out == [9, 0, 4.5, 6]


def test_the_shape_and_dtype_of_the_space_come_back_and_nobody_may_write() -> None:
    space = spaces.Box(-2.0, 2.0, (2, 3), np.float64)
    out = ActionOutput(space)(np.zeros((4, 6), np.float32))
    assert len(out) == 4
    assert all(space.contains(action) for action in out)
    with pytest.raises(ValueError, match="read-only"):
        out[0][0] = 1.0


def test_discrete_actions_are_integers_from_the_start_on() -> None:
    space = spaces.Discrete(3, start=5)
    out = ActionOutput(space)(np.array([0, 2]))
    assert list(out) == [5, 7]
    assert all(space.contains(action) for action in out)
    assert {5: "left", 7: "right"}[out[1]] == "right"
    assert list(ActionOutput(spaces.Discrete(3))(np.array([0, 2]))) == [0, 2]


def test_multi_discrete_actions_are_shifted_and_read_only() -> None:
    space = spaces.MultiDiscrete([3, 4], start=[1, -1])
    out = ActionOutput(space)(np.array([[0, 0], [2, 3]]))
    assert [action.tolist() for action in out] == [[1, -1], [3, 2]]
    assert all(space.contains(action) for action in out)
    with pytest.raises(ValueError, match="read-only"):
        out[0][0] = 1


def test_the_networks_own_actions_are_not_changed() -> None:
    own = np.full((1, 1), 8.8, np.float32)
    ActionOutput(spaces.Box(0.0, 6.0, (1,), np.float32))(own)
    assert own.tolist() == [[np.float32(8.8)]]


def test_other_spaces_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"action space: Tuple of Box, Discrete, expected parts that are all discrete .* or all float",
    ):
        ActionOutput(spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)]))


def test_rewards_are_clipped_by_sign_or_to_a_limit() -> None:
    rewards = np.array([-3.0, -0.5, 0.0, 0.2, 9.0])
    assert clip_reward(rewards, True).tolist() == [-1, -1, 0, 1, 1]
    assert clip_reward(rewards, 1.5).tolist() == [-1.5, -0.5, 0.0, 0.2, 1.5]
    assert clip_reward(rewards, 1).tolist() == [-1.0, -0.5, 0.0, 0.2, 1.0]
