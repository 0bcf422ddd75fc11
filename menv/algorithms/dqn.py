"""DQN: deep Q-learning (Mnih et al. 2015, "Human-level control through deep reinforcement learning")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.acting.action_head import ActionHead
from menv.acting.backend import ActingBackend
from menv.algorithms.config.dqn_config import DQNConfig
from menv.algorithms.networks.mlp import MlpSpec
from menv.connectors.clip_reward import clip_reward
from menv.errors import ConfigError
from menv.sample_batch import SampleBatch

if TYPE_CHECKING:
    from menv.algorithms.dqn_learner import DQNLearner


class DQNRecipe:
    """How a DQN policy is trained: by Q-values of discrete actions, from replayed rows."""

    config_class = DQNConfig

    def network(self, observation_size: int, action_space: gym.Space[Any], config: DQNConfig) -> MlpSpec:
        """Return the network of one policy.

        Args:
            observation_size: F, numbers in a flat observation.
            action_space: Of the policy.
            config: Its settings.

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
        return MlpSpec(
            observation_size, head, tuple(model.fcnet_hiddens), model.fcnet_activation, dueling=config.dueling
        )

    def complete(self, batch: SampleBatch, backend: ActingBackend, index: int, config: DQNConfig) -> None:
        """Clip the rewards if the settings say so; targets are made when rows are learned from."""
        if config.clip_rewards:
            segments = batch.segments
            batch[SampleBatch.REWARDS] = clip_reward(batch["rewards"], config.clip_rewards)
            segments.prev_reward = clip_reward(segments.prev_reward, config.clip_rewards)

    def make_learner(
        self,
        network: MlpSpec,
        policy_id: str,
        weights: Mapping[str, npt.NDArray[np.float32]],
        config: DQNConfig,
        seed: int,
    ) -> DQNLearner:
        """Return a `DQNLearner`."""
        from menv.algorithms.dqn_learner import DQNLearner

        return DQNLearner(network, config, weights, seed)
