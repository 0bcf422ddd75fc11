"""SAC: soft actor-critic (Haarnoja et al. 2018b, "Soft actor-critic algorithms and applications")."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from menv.algorithms.algorithm import Algorithm
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.setting import FASTEST, LARGEST, by_name, setting
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.off_policy.config import ReplayConfig
from menv.algorithms.off_policy.recipe import ReplayRecipe, refuse_layers
from menv.algorithms.recipe import Learner, Weights
from menv.algorithms.sac.network import LOG_ALPHA, SACSpec
from menv.connectors.action_output import flat_action_space
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError
from menv.inference.heads.gaussian import Gaussian
from menv.inference.heads.head import in_a_line
from menv.inference.heads.squashed_gaussian import SquashedGaussian


@by_name
@dataclass(frozen=True, kw_only=True)
class SACConfig(ReplayConfig):
    """Settings of SAC, in addition to the settings of every algorithm that replays experience."""

    _where: ClassVar[str] = "SAC"

    lr: float = setting(1e-3, low=0, high=FASTEST, old="learning_rate")
    """Learning rate of Adam for the policy, both critics and the temperature, unless `lr_schedule` is set."""
    tau: float | None = setting(0.005, positive=True, high=1)
    """Share of the critics' weights that moves into the target network with each gradient step. None copies them all
    every `target_network_update_freq` timesteps."""
    training_intensity: float = setting(256.0, low=0, high=1e6)
    """Number of timesteps to learn from per sampled timestep; divided by `train_batch_size`, the number of gradient
    steps. The default makes one gradient step for each sampled timestep."""
    n_step: int | Literal["auto"] = 1
    """Maximum number of rewards in a target before it bootstraps from the target network; "auto" as for DQN."""
    grad_clip: float | None = setting(None, positive=True, old="max_grad_norm")
    """Maximum global norm of the gradient; None disables clipping."""
    td_error_loss_fn: Literal["huber", "mse"] = "mse"
    """Loss of the TD errors, as for DQN."""
    target_entropy: float | Literal["auto"] = setting("auto", low=-LARGEST, high=LARGEST)
    """Entropy in nats that the temperature keeps the policy at, of actions scaled to [-1, 1]. "auto" means minus the
    number of dimensions of an action."""
    initial_alpha: float = setting(0.1, positive=True, high=LARGEST)
    """Temperature before learning: the worth of one nat of entropy, in the unit of the rewards' root mean square."""
    critic_obs: Literal["state", "all_agents"] | None = None
    """Input of the critics, for centralized ones, as for PPO: "state", "all_agents", or None for the observations of
    the agent. The policy never sees this input."""
    critic_obs_size: int | None = None
    """The size of that input, which these set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic_obs is None and self.critic_obs_size is not None:
            raise ConfigError(
                f"SAC: critic_obs_size is {self.critic_obs_size} without critic_obs, expected None; leave it out, or "
                'set critic_obs to "state" or "all_agents"'
            )


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
