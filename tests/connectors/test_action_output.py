"""What a network answers, in the form that the environment expects; and clipped rewards."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.connectors.action_output import ActionOutput
from menv.connectors.built_in import clip_reward

spaces = gym.spaces


def box(low: Any, high: Any, *values: Any, **settings: bool) -> list[Any]:
    space = spaces.Box(np.array(low, np.float32), np.array(high, np.float32), dtype=np.float32)
    flat = np.array(values, np.float32).reshape(len(values), -1)
    return [out.tolist() for out in ActionOutput(space, **settings)(flat)]


def test_a_half_is_three_quarters_of_the_way_between_the_bounds() -> None:
    assert box([0], [6], [0.5]) == [[4.5]]
    assert box([0], [6], [-1], [0], [1]) == [[0.0], [3.0], [6.0]]


def test_without_scaling_actions_are_clipped_only_if_asked() -> None:
    assert box([0], [6], [8.8], normalize=False, clip=True) == [[6.0]]
    assert box([0], [6], [5.5], normalize=False, clip=True) == [[5.5]]
    np.testing.assert_allclose(box([0], [6], [8.8], normalize=False), [[8.8]])


def test_unbounded_dimensions_are_left_alone_and_one_sided_bounds_hold() -> None:
    (out,) = box([-np.inf, 0, 0, -np.inf], [np.inf, np.inf, 6, 6], [9, -5, 0.5, 9])
    assert out == [9, 0, 4.5, 6]
    (out,) = box([-np.inf, 0, 0, -np.inf], [np.inf, np.inf, 6, 6], [9, -5, 0.5, 9], clip=True)
    assert out == [9, 0, 4.5, 6]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounds_too_far_apart_for_scaling_count_as_unbounded(dtype: Any) -> None:
    most = np.finfo(dtype).max
    output = ActionOutput(spaces.Box(-most, most, (2,), dtype))
    assert output(np.array([[0.5, -7.0]], np.float32))[0].tolist() == [0.5, -7.0]
    assert output.log_scale.tolist() == [0.0, 0.0]


def test_the_shape_and_dtype_of_the_space_come_back_write_protected() -> None:
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


def test_rewards_are_clipped_by_sign_or_to_a_limit() -> None:
    rewards = np.array([-3.0, -0.5, 0.0, 0.2, 9.0])
    assert clip_reward(rewards, True).tolist() == [-1, -1, 0, 1, 1]
    assert clip_reward(rewards, 1.5).tolist() == [-1.5, -0.5, 0.0, 0.2, 1.5]
    assert clip_reward(rewards, 1).tolist() == [-1.0, -0.5, 0.0, 0.2, 1.0]


BOXES = [
    spaces.Box(-2.0, 6.0, (2, 3), np.float32),
    spaces.Box(0.0, 1e-3, (2,), np.float64),
    spaces.Box(np.array([-np.inf, 0, 0, -np.inf], np.float32), np.array([np.inf, np.inf, 6, 6], np.float32)),
    spaces.Box(-1.0, 3.0, (), np.float32),
    spaces.Tuple([spaces.Box(0.0, 6.0, (2,)), spaces.Dict({"x": spaces.Box(-1.0, 2.0, (), np.float64)})]),
]


def flattened(actions: Any) -> Any:
    return np.concatenate([spread(action) for action in actions])


def spread(action: Any) -> Any:
    if isinstance(action, dict | tuple):
        parts = action.values() if isinstance(action, dict) else action
        return np.concatenate([spread(part) for part in parts])
    return np.asarray(action, np.float64).reshape(-1)


@pytest.mark.parametrize("settings", [{}, {"normalize": False}, {"normalize": False, "clip": True}])
@pytest.mark.parametrize("space", BOXES)
def test_numbers_are_unchanged_by_a_round_trip(space: Any, settings: dict[str, bool]) -> None:
    space.seed(1)
    output, taken = ActionOutput(space, **settings), [space.sample() for _ in range(50)]
    own = output.inverse(taken)
    assert own.dtype == np.float32
    assert own.shape == (50, len(spread(taken[0])))
    out = output(own)
    assert all(space.contains(action) for action in out)
    scale = 1e-3 if space is BOXES[1] else 1.0
    np.testing.assert_allclose(flattened(out), flattened(taken), rtol=1e-6, atol=1e-6 * scale)
    np.testing.assert_allclose(output.inverse(out), own, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("space", [
    spaces.Discrete(4, start=-1),
    spaces.MultiDiscrete([3, 4], start=[1, -1]),
    spaces.Dict({"x": spaces.Discrete(2, start=3), "y": spaces.MultiDiscrete([2, 3], dtype=np.int32)}),
])  # fmt: skip
def test_choices_are_unchanged_by_a_round_trip(space: Any) -> None:
    space.seed(1)
    output, taken = ActionOutput(space), [space.sample() for _ in range(30)]
    own = output.inverse(taken)
    assert own.dtype == np.int64
    assert own.min() == 0
    assert flattened(output(own)).tolist() == flattened(taken).tolist()
    assert output.inverse(output(own)).tolist() == own.tolist()
    assert output.log_scale.shape == (0,)
    logits = np.zeros((1, 7), np.float32)
    assert output.inverse_inputs(logits) is logits


def density(actions: Any, inputs: Any) -> Any:
    mean, log_std = np.split(inputs.astype(np.float64), 2, 1)
    z = (actions - mean) / np.exp(log_std)
    return (-0.5 * z * z - log_std - 0.5 * np.log(2 * np.pi)).sum(1)


def test_densities_of_both_forms_differ_by_the_log_of_the_scale() -> None:
    low, high = np.array([0.0, -np.inf, -2.0], np.float32), np.array([6.0, 1.0, 2.0], np.float32)
    output = ActionOutput(spaces.Box(low, high))
    np.testing.assert_allclose(output.log_scale, [np.log(3), 0, np.log(2)], rtol=1e-6)
    rng = np.random.default_rng(0)
    taken = rng.uniform(-1, 7, (20, 3))
    told = rng.standard_normal((20, 6)).astype(np.float32)
    own = output.inverse_inputs(told)
    np.testing.assert_allclose(own[:, [0, 1, 2]], told[:, :3] / [3, 1, 2] - [1, 0, 0], atol=1e-6)
    found = density(output.inverse(taken).astype(np.float64), own)
    np.testing.assert_allclose(found, density(taken, told) + output.log_scale.sum(), rtol=1e-4, atol=1e-4)
