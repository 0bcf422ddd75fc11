"""QMIX: a group of agents learns from a shared reward.

Rashid et al. 2018, "QMIX: monotonic value function factorisation for deep multi-agent reinforcement learning".
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.algorithms.algorithm import Algorithm
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.off_policy.recipe import OffPolicyRecipe, refuse_layers
from menv.algorithms.qmix.config import QMIXConfig
from menv.algorithms.qmix.network import GroupSpec, group_layout
from menv.algorithms.recipe import Learner, Weights
from menv.errors import ConfigError


class QMIXRecipe(OffPolicyRecipe):
    """How QMIX builds and trains the policy of a group."""

    name = "QMIX"
    config_class: type[AlgorithmConfig] = QMIXConfig

    def network(
        self, obs_size: int, action_space: gym.Space[Any], config: QMIXConfig, observation_space: Any = None
    ) -> NetworkSpec:
        if config.agent_ids:
            raise ConfigError(
                "QMIX: agent_ids is True, expected False, because members always have codes; leave it out"
            )
        layout, model = group_layout(observation_space, action_space), config.model
        refuse_layers("QMIX", model, "custom_model", "conv_filters")
        return GroupSpec(
            obs_size, layout, tuple(model.fcnet_hiddens), model.fcnet_activation or "relu",
            dueling=config.dueling, mixer=config.mixer, embed_dim=config.mixing_embed_dim, marked=True,
            cell=model.cell,
        )  # fmt: skip

    def make_learner(self, network: NetworkSpec, weights: Weights, config: QMIXConfig, seed: int) -> Learner:
        from menv.algorithms.qmix import learner

        kind = learner.QMIXSequenceLearner if config.replays_sequences else learner.QMIXLearner
        return kind(network, config, weights, seed)


class QMIX(Algorithm):
    """Q-learning for groups of agents: each member acts on its observation, all learn from the group's reward.

    Built as `QMIX(env=..., config={...classic keys...})` or `QMIXConfig(env=..., ...).build()`. Agents with equal
    spaces are one group, and a policy on disk is the policy of one member; `with_agent_groups` forms other groups.
    """

    recipe = QMIXRecipe()
