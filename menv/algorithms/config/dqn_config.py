"""Settings of DQN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from menv.algorithms.config.keys import by_name
from menv.algorithms.config.off_policy_config import OffPolicyConfig

if TYPE_CHECKING:
    from menv.algorithms.dqn import DQN


@by_name
@dataclass(frozen=True, kw_only=True)
class DQNConfig(OffPolicyConfig):
    """What `AlgorithmConfig` says about sampling and `DQNSettings` about learning; `docs/settings.md` explains both."""

    def build(self, env: Any = None) -> DQN:
        """Return the algorithm, its environments created; `env` overrides the config's own."""
        from menv.algorithms.dqn import DQN

        return DQN(config=self, env=env)
