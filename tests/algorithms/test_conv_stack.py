"""Which convolutions a setting means, and which observations get some."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import ModelConfig
from menv.algorithms.networks.network_choice import chosen_network
from menv.algorithms.networks.stock_spec import (
    ConvFilter,
    ConvStack,
    StockSpec,
    default_filters,
    read_filters,
)
from menv.errors import ConfigError
from menv.inference.heads.categorical import Categorical

IMAGE = gym.spaces.Box(0, 255, (36, 24, 3), np.uint8)
MASK = gym.spaces.MultiBinary(3)


def network_for(space: gym.Space[Any], **model: Any) -> StockSpec:
    flat = gym.spaces.flatten_space(space).shape
    assert flat is not None
    size = int(np.prod(flat)) - (3 if isinstance(space, gym.spaces.Dict) else 0)
    stock = StockSpec(size, Categorical((3,)))
    network = chosen_network(stock, ModelConfig(**model), space)
    assert isinstance(network, StockSpec)
    return network


def test_kernels_and_strides_are_numbers_or_pairs() -> None:
    assert read_filters([[16, [8, 6], 4], (32, 4, [2, 1])]) == (
        ConvFilter(16, (8, 6), (4, 4)),
        ConvFilter(32, (4, 4), (2, 1)),
    )
    assert read_filters([]) == ()
    assert read_filters(read_filters([[1, 2, 3]])) == (ConvFilter(1, (2, 2), (3, 3)),)


@pytest.mark.parametrize(
    "wrong",
    [7, "16", [16, 8, 4], [[16, 8]], [[16, 8, 0]], [[16, [8, 8, 8], 4]], [[1.5, 8, 4]], [[True, 8, 4]]],
)
def test_anything_else_is_refused_with_an_example(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="conv_filters"):
        ModelConfig(conv_filters=wrong)


def test_large_enough_images_get_convolutions_unasked_and_others_stay_flat() -> None:
    assert network_for(IMAGE).conv == ConvStack((36, 24, 3), default_filters((36, 24, 3)))
    assert network_for(gym.spaces.Box(0.0, 1.0, (24, 24, 1), np.float32)).conv is not None
    assert network_for(gym.spaces.Dict({"observation": IMAGE, "action_mask": MASK})).conv is not None
    for shape in ((23, 24, 3), (3, 36, 24), (36, 24), (2, 30, 30, 3)):
        assert network_for(gym.spaces.Box(0, 255, shape, np.uint8)).conv is None
    assert network_for(IMAGE, conv_filters=[]).conv is None


@pytest.mark.parametrize("space", [gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Tuple([IMAGE, MASK])])
def test_conv_filters_for_other_observations_than_images_are_refused(space: gym.Space[Any]) -> None:
    with pytest.raises(ConfigError, match="conv_filters"):
        network_for(space, conv_filters=[[4, 3, 1]])


def test_an_image_among_other_parts_gets_no_convolutions_but_a_warning() -> None:
    space = gym.spaces.Dict({"camera": IMAGE, "speed": gym.spaces.Box(-1.0, 1.0, (4,))})
    with pytest.warns(UserWarning, match="custom_model"):
        assert network_for(space).conv is None
    assert network_for(space, conv_filters=[]).conv is None
    small = gym.spaces.Dict(
        {"map": gym.spaces.Box(0, 255, (9, 9, 3), np.uint8), "at": gym.spaces.Discrete(4)}
    )
    assert network_for(small).conv is None


def test_filters_that_leave_nothing_of_the_image_are_refused_with_the_sizes() -> None:
    with pytest.raises(ConfigError, match="kernel"):
        network_for(IMAGE, conv_filters=[[16, 8, 4], [32, 11, 1]])
