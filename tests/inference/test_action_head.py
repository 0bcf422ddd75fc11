"""How action spaces become heads."""

import json

import gymnasium as gym
import numpy as np
import pytest

from menv.errors import ConfigError
from menv.inference.heads.categorical import Categorical, MultiCategorical
from menv.inference.heads.gaussian import Gaussian
from menv.inference.heads.head import ILLEGAL, ActionHead
from menv.inference.heads.known import head_for_space, head_from_json
from menv.inference.heads.mixed import Mixed
from menv.inference.heads.q_values import MultiQValues, QValues


def test_q_values_of_several_components_need_two_uniforms_each_and_equal_sizes() -> None:
    head = MultiQValues((4, 4, 4))
    assert (head.inputs, head.outputs, head.mask_width, head.noise_width) == (12, 12, 12, 6)
    assert (head.action_shape, head.returns_dist_inputs, head.is_value_based) == ((3,), False, True)
    assert head.action_dtype == np.int64
    assert MultiQValues((2,)).action_shape == (1,)
    assert head_from_json(json.loads(json.dumps(head.to_json()))) == head
    with pytest.raises(ConfigError, match=r"'multi_q_values' .*\(4, 2\)"):
        MultiQValues((4, 2))


def test_choices_and_numbers_are_one_row_of_floats_in_the_order_of_the_space() -> None:
    space = gym.spaces.Tuple(
        [gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(3), gym.spaces.Box(0, 1, ())]
    )
    head = head_for_space(space)
    assert (head.kind, head.sizes, head.choices, head.numbers) == ("mixed", (0, 0, 3, 0), (3,), 3)
    # Logits, means, log_stds; log_stds are no outputs of the last layer.
    assert (head.inputs, head.outputs, head.mask_width) == (9, 6, 3)
    assert (head.action_shape, head.action_dtype, head.returns_dist_inputs) == (
        (4,),
        np.dtype(np.float32),
        True,
    )
    assert head.normal.tolist() == [True, True, False, True]
    assert head.draw(np.array([7], np.uint64), np.array([0]), 4).shape == (1, 4)


def test_the_log_probability_of_a_mixed_action_is_the_sum_of_those_of_its_parts() -> None:
    head = Mixed((0, 2))
    # Choice 1 has 3 of 4 chances; 2.0 is one deviation of 0.5 above 1.5.
    inputs = np.array([[0.0, np.log(3.0), 1.5, np.log(0.5)]], np.float32)
    density = -0.5 - np.log(0.5) - 0.5 * np.log(2.0 * np.pi)
    found = head.logp(inputs, np.array([[2.0, 1.0]], np.float32))
    np.testing.assert_allclose(found, [np.log(0.75) + density], rtol=1e-6)


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
        head_for_space(space)


@pytest.mark.parametrize("head", [MultiCategorical((3, 2)), Gaussian((2,)), QValues((3,)), Mixed((0, 3))])
def test_a_head_is_unchanged_after_json(head: ActionHead) -> None:
    assert head_from_json(json.loads(json.dumps(head.to_json()))) == head


@pytest.mark.parametrize(
    "head",
    [Categorical((2,)), Categorical((3,)), MultiCategorical((2,)), MultiCategorical((2, 4, 3))],
    ids=str,
)
def test_log_probabilities_of_choices_are_those_of_a_softmax(head: Categorical) -> None:
    sizes = head.sizes
    rng = np.random.default_rng(0)
    inputs = (5 * rng.standard_normal((60, sum(sizes)))).astype(np.float32)
    inputs[:20, 0] = ILLEGAL
    actions = np.stack([rng.integers(1, size, 60) for size in sizes], axis=1)
    expected = np.zeros(60)
    start = 0
    for column, size in enumerate(sizes):
        part = inputs[:, start : start + size].astype(np.float64)
        chances = np.exp(part - part.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        expected += np.log(chances[np.arange(60), actions[:, column]])
        start += size
    found = head.logp(inputs, actions.reshape(60, *head.action_shape))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-5)
