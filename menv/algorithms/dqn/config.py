"""Settings of DQN."""

from __future__ import annotations

from dataclasses import dataclass

from menv.algorithms.config.setting import by_name
from menv.algorithms.off_policy.config import OffPolicyConfig


@by_name
@dataclass(frozen=True, kw_only=True)
class DQNConfig(OffPolicyConfig):
    """Settings of DQN; see `docs/reference/settings.md`."""
