"""How action spaces become heads."""

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.errors import ConfigError
from menv.inference.action_heads import ILLEGAL, ActionHead


def test_q_values_of_several_components_need_two_uniforms_each_and_equal_sizes() -> None:
    head = ActionHead("multi_q_values", (4, 4, 4))
    assert (head.inputs, head.outputs, head.mask_width, head.noise_width) == (12, 12, 12, 6)
    assert (head.noise, head.action_shape, head.returns_dist_inputs, head.is_value_based) == (
        "uniform",
        (3,),
        False,
        True,
    )
    assert head.action_dtype == np.int64
    assert ActionHead("multi_q_values", (2,)).action_shape == (1,)
    assert ActionHead.from_json(json.loads(json.dumps(head.to_json()))) == head
    with pytest.raises(ConfigError, match="equal ones for multi_q_values"):
        ActionHead("multi_q_values", (4, 2))


def test_choices_beside_numbers_are_one_row_of_floats_in_the_order_of_the_space() -> None:
    space = gym.spaces.Tuple(
        [gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(3), gym.spaces.Box(0, 1, ())]
    )
    head = ActionHead.for_space(space)
    assert (head.kind, head.sizes, head.choices, head.numbers) == ("mixed", (0, 0, 3, 0), (3,), 3)
    # Logits, means, log_stds; log_stds are no outputs of the last layer.
    assert (head.inputs, head.outputs, head.mask_width) == (9, 6, 3)
    assert (head.action_shape, head.action_dtype, head.returns_dist_inputs) == (
        (4,),
        np.dtype(np.float32),
        True,
    )
    assert (head.noise, head.normal.tolist()) == ("mixed", [True, True, False, True])
    assert head.draw(np.array([7], np.uint64), np.array([0]), 4).shape == (1, 4)


def test_the_log_probability_of_a_mixed_action_is_the_sum_of_those_of_its_parts() -> None:
    head = ActionHead("mixed", (0, 2))
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
        ActionHead.for_space(space)


@pytest.mark.parametrize(
    "head",
    [
        ActionHead("multi_categorical", (3, 2)),
        ActionHead("gaussian", (2,)),
        ActionHead("q_values", (3,)),
        ActionHead("mixed", (0, 3)),
    ],
)
def test_a_head_survives_the_way_through_json(head: ActionHead) -> None:
    assert ActionHead.from_json(json.loads(json.dumps(head.to_json()))) == head


@pytest.mark.parametrize(
    "value", [{"kind": "categorical"}, {"kind": "poisson", "sizes": [2]}, {"kind": "gaussian", "sizes": 3}]
)
def test_json_that_describes_no_head_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="ActionHead"):
        ActionHead.from_json(value)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("categorical", (2,)),
        ("categorical", (3,)),
        ("multi_categorical", (2,)),
        ("multi_categorical", (2, 4, 3)),
    ],
)
def test_log_probabilities_of_choices_are_those_of_a_softmax(kind: Any, sizes: tuple[int, ...]) -> None:
    head = ActionHead(kind, sizes)
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
    found = head.logp(inputs, actions[:, 0] if kind == "categorical" else actions)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-5)
