"""Settings of SAC. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from menv.algorithms.config.field_checks import FASTEST, LARGEST
from menv.algorithms.config.setting import by_name, setting
from menv.algorithms.off_policy.config import ReplayConfig
from menv.errors import ConfigError


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
