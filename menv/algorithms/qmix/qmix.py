"""QMIX: a group of agents learns from a shared reward.

Rashid et al. 2018, "QMIX: monotonic value function factorisation for deep multi-agent reinforcement learning".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import gymnasium as gym

from menv.algorithms.algorithm import Algorithm
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.setting import by_name, setting
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock_spec import MOST_SIZE
from menv.algorithms.off_policy.config import OffPolicyConfig
from menv.algorithms.off_policy.recipe import OffPolicyRecipe, refuse_layers
from menv.algorithms.qmix.network import GroupSpec, Mixer, group_layout
from menv.algorithms.recipe import Learner, Weights
from menv.errors import ConfigError


@by_name
@dataclass(frozen=True, kw_only=True)
class QMIXConfig(OffPolicyConfig):
    """Settings of QMIX: the settings of DQN, per timestep of the whole group, and the mixing of Q-values."""

    _where: ClassVar[str] = "QMIX"
    _usual_update_freq: ClassVar[int] = 2000
    groups_agents: ClassVar[bool] = True

    mixer: Mixer = "qmix"
    """How the group's Q-value is computed from the members' Q-values: "qmix" by a network that is monotonic in each of
    them and reads the global state; "vdn" as their sum; None trains each member independently on the group's reward."""
    mixing_embed_dim: int = setting(32, high=MOST_SIZE)
    """Width of the mixing network's hidden layer."""
    lr: float = 1e-3
    """Learning rate of Adam, unless `lr_schedule` is set."""
    train_batch_size: int = 64
    """Number of timesteps per gradient step, sampled from the replay buffer; `training_intensity` sets how many steps
    are made."""
    training_intensity: float = 8.0
    """Number of timesteps to learn from per sampled timestep; divided by `train_batch_size`, the number of gradient
    steps."""
    dueling: bool = False
    """Whether to use a dueling network: a member's Q-values are the sum of the state's value and the actions'
    advantages."""
    td_error_loss_fn: Literal["huber", "mse"] = "mse"
    """Loss of the TD errors, as for DQN. The default "mse" is the loss of Rashid et al. 2018."""
    n_step: int | Literal["auto"] = 1
    """Maximum number of rewards in a target before it bootstraps from the target network; "auto" as for DQN."""
    td_lambda: float | None = setting(None, low=0, high=1)
    """Lambda of TD(lambda) targets (Peng and Williams 1996), for "qmix", "vdn" and None alike: 0 bootstraps after each
    reward, 1 at the end of a sequence alone. The replay buffer then holds sequences of at most `model.max_seq_len`
    timesteps, and targets end with them. EPyMARL and PyMARL use 0.6 or so. None uses `n_step`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.td_lambda is not None and self.n_step not in (1, "auto"):
            raise ConfigError(
                f"QMIX: td_lambda is {self.td_lambda} with n_step {self.n_step}, expected one of them; leave n_step out"
            )

    @property
    def replays_sequences(self) -> bool:
        return super().replays_sequences or self.td_lambda is not None

    def target_steps(self) -> int:
        return super().target_steps() if self.td_lambda is None else 1


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
