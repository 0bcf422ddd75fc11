"""SAC: soft actor-critic (Haarnoja et al. 2018b, "Soft actor-critic algorithms and applications")."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from menv.algorithms.algorithm import Algorithm
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.off_policy.recipe import ReplayRecipe, refuse_layers
from menv.algorithms.recipe import Learner, Weights
from menv.algorithms.sac.config import SACConfig
from menv.algorithms.sac.network import LOG_ALPHA, SACSpec
from menv.connectors.action_output import flat_action_space
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError
from menv.inference.heads.gaussian import Gaussian
from menv.inference.heads.head import in_a_line
from menv.inference.heads.squashed_gaussian import SquashedGaussian


class SACRecipe(ReplayRecipe):
    """How SAC builds and trains a policy of continuous actions."""

    name = "SAC"
    config_class: type[AlgorithmConfig] = SACConfig

    def network(
        self, obs_size: int, action_space: gym.Space[Any], config: SACConfig, observation_space: Any = None
    ) -> NetworkSpec:
        numbers = Gaussian.for_space(flat_action_space(action_space))
        if numbers is None:
            raise ConfigError(
                f"SAC: action space {in_a_line(action_space)}, expected a float Box; train this policy with PPO or, if "
                "its actions are Discrete, with DQN"
            )
        if observation_space is not None and ObsPreprocessor(observation_space).dtype == np.uint8:
            raise ConfigError(
                f"SAC: observation space {in_a_line(observation_space)}, expected numbers, not bytes of an image; "
                "train this policy with PPO"
            )
        refuse_layers("SAC", config.model, "use_lstm", "use_gru", "custom_model", "conv_filters")
        model, head = config.model, SquashedGaussian(numbers.sizes)
        return SACSpec(
            obs_size, head, tuple(model.fcnet_hiddens), model.fcnet_activation or "relu",
            critic_size=config.critic_obs_size or 0,
        )  # fmt: skip

    def first_weights(self, network: NetworkSpec, config: SACConfig, seed: int) -> dict[str, Any]:
        weights = network.first_weights(seed)
        weights[LOG_ALPHA][:] = math.log(config.initial_alpha)
        return weights

    def make_learner(self, network: NetworkSpec, weights: Weights, config: SACConfig, seed: int) -> Learner:
        from menv.algorithms.sac.learner import SACLearner

        assert isinstance(network, SACSpec)
        return SACLearner(network, config, weights, seed)


class SAC(Algorithm):
    """Soft actor-critic for continuous actions: a stochastic policy, two critics, and a temperature that adapts.

    Built as `SAC(env=..., config={...classic keys...})` or `SACConfig(env=..., ...).build()`.
    """

    recipe = SACRecipe()
