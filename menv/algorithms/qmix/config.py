"""Settings of QMIX. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from menv.algorithms.config.setting import by_name, setting
from menv.algorithms.networks.stock_spec import MOST_SIZE
from menv.algorithms.off_policy.config import OffPolicyConfig
from menv.algorithms.qmix.network import Mixer
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
