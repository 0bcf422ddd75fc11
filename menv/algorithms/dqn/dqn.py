"""DQN: deep Q-learning (Mnih et al. 2015, "Human-level control through deep reinforcement learning")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from menv.algorithms.algorithm import Algorithm
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.setting import by_name
from menv.algorithms.networks.network_choice import chosen_network
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock_spec import StockSpec
from menv.algorithms.off_policy.config import OffPolicyConfig
from menv.algorithms.off_policy.recipe import OffPolicyRecipe, instead
from menv.algorithms.recipe import Learner, Weights
from menv.errors import ConfigError
from menv.inference.heads.head import in_a_line
from menv.inference.heads.q_values import QValues


@by_name
@dataclass(frozen=True, kw_only=True)
class DQNConfig(OffPolicyConfig):
    """Settings of DQN; see `docs/reference/settings.md`."""


class DQNRecipe(OffPolicyRecipe):
    """How DQN builds and trains a policy: Q-values of discrete actions, learned from a replay buffer."""

    name = "DQN"
    config_class: type[AlgorithmConfig] = DQNConfig

    def network(
        self, obs_size: int, action_space: gym.Space[Any], config: DQNConfig, observation_space: Any = None
    ) -> NetworkSpec:
        if not isinstance(action_space, gym.spaces.Discrete):
            kind = "continuous" if isinstance(action_space, gym.spaces.Box) else type(action_space).__name__
            raise ConfigError(
                f"DQN: {kind} action space {in_a_line(action_space)}, expected Discrete; {instead(action_space)}"
            )
        head = QValues((int(action_space.n),))
        model = config.model
        stock = StockSpec(
            obs_size, head, tuple(model.fcnet_hiddens), model.fcnet_activation or "relu",
            dueling=config.dueling, cell=model.cell,
        )  # fmt: skip
        return chosen_network(stock, model, observation_space)

    def make_learner(
        self,
        network: NetworkSpec,
        weights: Weights,
        config: DQNConfig,
        seed: int,
    ) -> Learner:
        """Return a `DQNLearner`, a `RecurrentDQNLearner` if the network is recurrent."""
        from menv.algorithms.dqn import learner

        kind = learner.RecurrentDQNLearner if network.state_sizes else learner.DQNLearner
        return kind(network, config, weights, seed)


DEFAULT_CONFIG = DQNConfig()
"""The default settings; `DEFAULT_CONFIG.copy()` returns them as a dict."""


class DQN(Algorithm):
    """Q-learning from a replay buffer: double, dueling, n-step, optionally prioritized.

    Built as `DQN(env=..., config={...classic keys...})` or `DQNConfig(env=..., ...).build()`.
    """

    recipe = DQNRecipe()
