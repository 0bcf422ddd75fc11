"""What the recipes of all algorithms have in common that choose by replayed Q-values.

`DQNRecipe` and its siblings derive from it and add the network and the learner.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.acting.action_head import ActionHead
from menv.acting.backend import ActingBackend
from menv.algorithms.config.off_policy_config import OffPolicyConfig
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock import EPSILON
from menv.connectors.clip_reward import clip_rewards_of
from menv.connectors.flat_actions import flat_action_space
from menv.errors import ConfigError
from menv.sample_batch import SampleBatch


class OffPolicyRecipe:
    """First weights, and what a batch lacks."""

    off_policy = True

    def first_weights(self, network: NetworkSpec, config: OffPolicyConfig, seed: int) -> dict[str, Any]:
        """Return the weights that a policy begins with, epsilon among them."""
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
        """Clip the rewards if the settings say so; targets are made when rows are learned from."""
        clip_rewards_of(batch, config.clip_rewards)


def instead(action_space: gym.Space[Any]) -> str:
    """Return what to do about actions that are not chosen by their worth."""
    try:
        ActionHead.for_space(flat_action_space(action_space))
    except ConfigError:
        return "wrap the environment so that its actions are Discrete"
    if isinstance(action_space, gym.spaces.Tuple):
        return "train the policy of a group of agents with QMIX, any other with PPO"
    return "train this policy with PPO"
