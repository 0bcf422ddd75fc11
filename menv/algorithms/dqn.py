"""DQN: deep Q-learning (Mnih et al. 2015, "Human-level control through deep reinforcement learning")."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.acting.action_head import ActionHead
from menv.acting.backend import ActingBackend
from menv.algorithms.algorithm import Algorithm
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.dqn_config import DQNConfig
from menv.algorithms.networks.network_choice import chosen_network
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock import EPSILON, StockSpec
from menv.algorithms.recipe import Learner, Weights
from menv.connectors.clip_reward import clip_reward
from menv.errors import ConfigError
from menv.sample_batch import SampleBatch


class DQNRecipe:
    """How a DQN policy is trained: by Q-values of discrete actions, from replayed rows."""

    name = "DQN"
    config_class: type[AlgorithmConfig] = DQNConfig

    def network(
        self, obs_size: int, action_space: gym.Space[Any], config: DQNConfig, observation_space: Any = None
    ) -> NetworkSpec:
        """Return the network of one policy.

        Args:
            obs_size: F, numbers in a flat observation.
            action_space: Of the policy.
            config: Its settings.
            observation_space: Of the policy, for networks that follow its structure.

        Raises:
            ConfigError: The actions are not Discrete.
        """
        if not isinstance(action_space, gym.spaces.Discrete):
            kind = "continuous" if isinstance(action_space, gym.spaces.Box) else type(action_space).__name__
            raise ConfigError(
                f"DQN: {kind} action space {action_space}, expected Discrete; train this policy with PPO"
            )
        head = ActionHead("q_values", (int(action_space.n),))
        model = config.model
        stock = StockSpec(
            obs_size, head, tuple(model.fcnet_hiddens), model.fcnet_activation, dueling=config.dueling
        )
        return chosen_network(stock, model, observation_space)

    def first_weights(self, network: NetworkSpec, config: DQNConfig, seed: int) -> dict[str, Any]:
        """Return the weights that a policy begins with, epsilon among them."""
        weights = network.first_weights(seed)
        weights[EPSILON][:] = config.epsilon_at(0)
        return weights

    def complete(self, batch: SampleBatch, backend: ActingBackend, index: int, config: DQNConfig) -> None:
        """Clip the rewards if the settings say so; targets are made when rows are learned from."""
        if config.clip_rewards:
            segments = batch.segments
            batch[SampleBatch.REWARDS] = clip_reward(batch["rewards"], config.clip_rewards)
            segments.prev_reward = clip_reward(segments.prev_reward, config.clip_rewards)

    def make_learner(
        self,
        network: NetworkSpec,
        policy_id: str,
        weights: Weights,
        config: DQNConfig,
        seed: int,
    ) -> Learner:
        """Return a `DQNLearner`."""
        from menv.algorithms.dqn_learner import DQNLearner

        return DQNLearner(network, config, weights, seed)


class DQN(Algorithm):
    """Q-learning from replayed experience: double, dueling, n-step, with priorities if asked.

    Built as `DQN(env=..., config={...classic keys...})` or `DQNConfig(env=..., ...).build()`.
    """

    recipe = DQNRecipe()
