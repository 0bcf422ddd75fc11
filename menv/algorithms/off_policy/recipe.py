"""The recipe that DQN and QMIX share."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock_spec import EPSILON
from menv.algorithms.off_policy.config import OffPolicyConfig
from menv.connectors.action_output import flat_action_space
from menv.errors import ConfigError
from menv.inference.action_heads import ActionHead
from menv.inference.backend import ActingBackend
from menv.sample_batch import SampleBatch


class OffPolicyRecipe:
    """The common part of recipes for algorithms that learn Q-values from replayed experience."""

    off_policy = True

    def first_weights(self, network: NetworkSpec, config: OffPolicyConfig, seed: int) -> dict[str, Any]:
        weights = network.first_weights(seed)
        weights[EPSILON][:] = config.epsilon_at(0)
        return weights

    def complete(
        self,
        batch: SampleBatch,
        backend: ActingBackend,
        index: int,
        config: OffPolicyConfig,
        *,
        later: bool = False,
    ) -> None:
        """Add nothing: targets are computed when rows are learned from."""


def instead(action_space: gym.Space[Any]) -> str:
    """Return the advice for action spaces without Q-values."""
    try:
        ActionHead.for_space(flat_action_space(action_space))
    except ConfigError:
        return "wrap the environment so that its actions are Discrete"
    if isinstance(action_space, gym.spaces.Tuple):
        return "train the policy of a group of agents with QMIX, any other with PPO"
    return "train this policy with PPO"
