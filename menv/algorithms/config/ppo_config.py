"""Settings of PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.ppo_settings import PPOSettings

if TYPE_CHECKING:
    from menv.algorithms.ppo import PPO


@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgorithmConfig, PPOSettings):
    """What `AlgorithmConfig` says about sampling and `PPOSettings` about learning."""

    def __post_init__(self) -> None:
        """Check both halves."""
        AlgorithmConfig.__post_init__(self)
        PPOSettings.__post_init__(self)

    def build(self) -> PPO:
        """Return the algorithm, its environments created."""
        from menv.algorithms.ppo import PPO

        return PPO(config=self)
