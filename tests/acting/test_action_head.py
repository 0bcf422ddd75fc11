"""How action spaces become heads."""

import json

import gymnasium as gym
import numpy as np
import pytest

from menv.acting.action_head import ActionHead
from menv.errors import ConfigError


def test_a_discrete_space_needs_one_logit_and_one_flag_a_choice_and_one_uniform_a_row() -> None:
    head = ActionHead.for_space(gym.spaces.Discrete(9, start=3))
    assert (head.kind, head.sizes, head.inputs, head.mask_width) == ("categorical", (9,), 9, 9)
    assert (head.noise, head.noise_width, head.action_shape) == ("uniform", 1, ())
    assert head.action_dtype == np.int64


def test_q_values_need_one_flag_a_choice_and_two_uniforms_a_row() -> None:
    head = ActionHead("q_values", (4,))
    assert (head.inputs, head.outputs, head.mask_width, head.noise_width) == (4, 4, 4, 2)
    assert (head.noise, head.action_shape) == ("uniform", ())
    assert head.action_dtype == np.int64
    with pytest.raises(ConfigError, match="exactly one unless multi_categorical"):
        ActionHead("q_values", (4, 2))


def test_a_multi_discrete_space_needs_one_uniform_a_component() -> None:
    head = ActionHead.for_space(gym.spaces.MultiDiscrete([3, 2, 4]))
    assert (head.kind, head.sizes, head.inputs, head.mask_width) == ("multi_categorical", (3, 2, 4), 9, 9)
    assert (head.noise, head.noise_width, head.action_shape) == ("uniform", 3, (3,))


def test_a_box_of_any_shape_needs_a_mean_and_a_log_std_a_dimension_and_has_no_mask() -> None:
    head = ActionHead.for_space(gym.spaces.Box(-1.0, 1.0, (2, 3)))
    assert (head.kind, head.sizes, head.inputs, head.outputs) == ("gaussian", (6,), 12, 6)
    assert (head.noise, head.noise_width, head.mask_width, head.action_shape) == ("normal", 6, 0, (6,))
    assert head.action_dtype == np.float32


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Tuple([gym.spaces.Discrete(2)]),
        gym.spaces.Dict({"a": gym.spaces.Discrete(2)}),
        gym.spaces.MultiDiscrete(np.full((2, 2), 2)),
        gym.spaces.MultiBinary(3),
        gym.spaces.Box(0, 255, (2,), np.uint8),
    ],
)
def test_a_space_without_a_head_is_refused_by_name(space: gym.Space[object]) -> None:
    with pytest.raises(ConfigError, match=type(space).__name__):
        ActionHead.for_space(space)


@pytest.mark.parametrize(
    "head",
    [ActionHead("multi_categorical", (3, 2)), ActionHead("gaussian", (2,)), ActionHead("q_values", (3,))],
)
def test_a_head_survives_the_way_through_json(head: ActionHead) -> None:
    assert ActionHead.from_json(json.loads(json.dumps(head.to_json()))) == head


@pytest.mark.parametrize(
    "value", [{"kind": "categorical"}, {"kind": "poisson", "sizes": [2]}, {"kind": "gaussian", "sizes": 3}]
)
def test_json_that_describes_no_head_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="ActionHead"):
        ActionHead.from_json(value)
