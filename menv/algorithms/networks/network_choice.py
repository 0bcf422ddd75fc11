"""Chooses the network of a policy from `model` and the observation space: stock, with convolutions, or custom."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from menv.algorithms.config.algorithm_config import ModelConfig
from menv.algorithms.networks.custom_model import CustomSpec
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock_spec import LEAST_SIDE, ConvStack, StockSpec, default_filters
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError


def chosen_network(
    stock: StockSpec, model: ModelConfig, observation_space: gym.Space[Any] | None
) -> NetworkSpec:
    """Return the network of one policy."""
    if observation_space is None:
        return stock
    if model.custom_model is not None:
        _check_alone(stock)
        return CustomSpec(observation_space, stock.head, model.custom_model, dict(model.custom_model_config))
    preprocessor = ObsPreprocessor(observation_space)
    if model.conv_filters is None:
        _warn_of_plain_images(preprocessor)
    conv = _conv_stack(model, preprocessor.image, observation_space)
    return replace(stock, conv=conv, pixels=preprocessor.dtype == np.uint8)


def _check_alone(stock: StockSpec) -> None:
    if stock.cell or stock.critic_size:
        stray = "use_lstm or use_gru" if stock.cell else "critic_obs"
        raise ConfigError(
            f"model: {stray} with custom_model, expected one of them; leave it out, and give the module a state or a "
            "value function"
        )


def _warn_of_plain_images(preprocessor: ObsPreprocessor) -> None:
    """Warn of an image that gets no convolutions, because it is not all that is observed."""
    for leaf in preprocessor.leaves if len(preprocessor.leaves) > 1 else ():
        if isinstance(leaf.space, gym.spaces.Box) and _is_image(leaf.space.shape):
            warnings.warn(
                f"model: {leaf.path} is an image of shape {leaf.space.shape} among other parts of the observations, "
                f"which the stock network reads as {leaf.width} plain numbers, expected an image alone or with an "
                "action_mask; write a custom_model that convolves it, or set conv_filters=[] to keep plain numbers",
                stacklevel=2,
            )


def _is_image(shape: tuple[int, ...] | None) -> bool:
    return shape is not None and len(shape) == 3 and min(shape[:2]) >= LEAST_SIDE


def _conv_stack(model: ModelConfig, image: tuple[int, int, int] | None, space: object) -> ConvStack | None:
    filters = model.conv_filters
    if filters is None:
        if image is None or not _is_image(image):
            return None
        filters = default_filters(image)
    elif filters and image is None:
        raise ConfigError(
            f"model: conv_filters for the observation space {space}, expected an image: a Box of shape (height, width, "
            'channels), alone or with an action_mask; leave conv_filters out, put {"conv_filters": None} into the '
            "model of this policy's own config, or write a custom_model that convolves a part of its observations"
        )
    assert image is not None or not filters
    return ConvStack(image, filters, model.conv_activation) if image is not None and filters else None
