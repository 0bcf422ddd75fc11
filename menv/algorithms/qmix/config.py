"""Settings of QMIX. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from menv.algorithms.config.setting import by_name, setting
from menv.algorithms.networks.stock_spec import MOST_SIZE
from menv.algorithms.off_policy.config import OffPolicyConfig
from menv.algorithms.qmix.network import Mixer


@by_name
@dataclass(frozen=True, kw_only=True)
class QMIXConfig(OffPolicyConfig):
    """Settings of QMIX: the settings of DQN, per timestep of the whole group, and the mixing of Q-values."""

    _where: ClassVar[str] = "QMIX"
    # Rows mark which members of a group are there.
    _marks_members: ClassVar[bool] = True

    mixer: Mixer = "qmix"
    """How the group's Q-value is computed from the members' Q-values: "qmix" by a network that is monotonic in each of
    them and reads the global state; "vdn" as their sum; None trains each member independently on the group's reward."""
    mixing_embed_dim: int = setting(32, high=MOST_SIZE)
    """Width of the mixing network's hidden layer."""
    lr: float = 1e-3
    """Learning rate of Adam."""
    train_batch_size: int = 64
    """Number of timesteps per gradient step, sampled from the replay buffer; `training_intensity` sets how many steps
    are made."""
    training_intensity: float = 8.0
    """Number of timesteps to learn from per sampled timestep; divided by `train_batch_size`, the number of gradient
    steps."""
    target_network_update_freq: int = 2000
    """Number of sampled timesteps between updates of the target network, as for DQN."""
    dueling: bool = False
    """Whether to use a dueling network: a member's Q-values are the sum of the state's value and the actions'
    advantages."""
    td_error_loss_fn: Literal["huber", "mse"] = "mse"
    """Loss of the TD errors, as for DQN. The default "mse" is the loss of Rashid et al. 2018."""
    n_step: int | Literal["auto"] = 1
    """Maximum number of rewards in a target before it bootstraps from the target network; "auto" as for DQN."""
