"""What the recipes of algorithms share that learn from a replay buffer."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.algorithms.config.algorithm_config import ModelConfig
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.off_policy.config import OffPolicyConfig, ReplayConfig
from menv.connectors.action_output import flat_action_space
from menv.errors import ConfigError
from menv.inference.backend import ActingBackend
from menv.inference.heads.known import head_for_space
from menv.inference.heads.q_values import EPSILON
from menv.sample_batch import SampleBatch


class ReplayRecipe:
    """The common part of recipes for algorithms that learn from replayed experience."""

    off_policy = True

    def complete(
        self,
        batch: SampleBatch,
        backend: ActingBackend,
        index: int,
        config: ReplayConfig,
        *,
        later: bool = False,
    ) -> None:
        """Add nothing: targets are computed when rows are learned from."""


class OffPolicyRecipe(ReplayRecipe):
    """The common part of recipes for algorithms that learn Q-values of choices."""

    def first_weights(self, network: NetworkSpec, config: OffPolicyConfig, seed: int) -> dict[str, Any]:
        weights = network.first_weights(seed)
        weights[EPSILON][:] = config.epsilon_at(0)
        return weights


def refuse_layers(algorithm: str, model: ModelConfig, *names: str) -> None:
    """Refuse settings of layers that an algorithm does not have."""
    for name in names:
        if getattr(model, name):
            off = False if name.startswith("use_") else None
            raise ConfigError(
                f"{algorithm}: model.{name} is set, expected none of {', '.join(names)}; leave it out, or put "
                f'{{"{name}": {off}}} into the model of this policy\'s own config'
            )


def instead(action_space: gym.Space[Any]) -> str:
    """Return the advice for action spaces without Q-values."""
    try:
        head_for_space(flat_action_space(action_space))
    except ConfigError:
        return "wrap the environment so that its actions are Discrete"
    if isinstance(action_space, gym.spaces.Tuple):
        return "train the policy of a group of agents with QMIX, any other with PPO"
    return "train this policy with PPO" + (" or SAC" if isinstance(action_space, gym.spaces.Box) else "")
