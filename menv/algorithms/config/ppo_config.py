"""Settings of PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.keys import by_name
from menv.algorithms.config.ppo_settings import PPOSettings
from menv.errors import ConfigError

if TYPE_CHECKING:
    from menv.algorithms.ppo import PPO


@by_name
@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgorithmConfig, PPOSettings):
    """What `AlgorithmConfig` says about sampling and `PPOSettings` about learning; `docs/settings.md` explains both."""

    def __post_init__(self) -> None:
        AlgorithmConfig.__post_init__(self)
        PPOSettings.__post_init__(self)
        if self.critic_obs is not None and self.model.vf_share_layers:
            raise ConfigError(
                "config: critic_obs with model.vf_share_layers, expected a value network of its own, because the "
                "policy must not see what the critic does; set vf_share_layers to False"
            )

    def rows_of_a_step(self) -> int:
        """Return the rows of one gradient step."""
        return min(self.sgd_minibatch_size, self.train_batch_size)

    def build(self, env: Any = None) -> PPO:
        """Return the algorithm, its environments created; `env` overrides the config's own."""
        from menv.algorithms.ppo import PPO

        return PPO(config=self, env=env)
