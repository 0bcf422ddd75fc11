"""How often a policy acts at random while it learns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from menv.algorithms.config.keys import section_named
from menv.algorithms.config.numbers import check_number, shown
from menv.errors import ConfigError


@section_named("exploration_config")
@dataclass(frozen=True, kw_only=True)
class ExplorationConfig:
    """The `exploration_config` section: epsilon falls on a straight line, then stays."""

    type: str = "EpsilonGreedy"
    """The only kind in this version."""
    initial_epsilon: float = 1.0
    """Share of random actions at the start of a run."""
    final_epsilon: float = 0.02
    """Share of random actions from `epsilon_timesteps` on."""
    epsilon_timesteps: int = 10_000
    """Env steps of the run until then; infinity keeps the share of the start. A policy that `policies_to_train`
    leaves out keeps the share it has: a new one that of the start."""

    def __post_init__(self) -> None:
        if self.type != "EpsilonGreedy":
            raise ConfigError(
                f"exploration_config: type is {shown(self.type)}, expected 'EpsilonGreedy' in this version; "
                "leave it out"
            )
        for name, most in (("initial_epsilon", 1.0), ("final_epsilon", 1.0), ("epsilon_timesteps", np.inf)):
            endless = name == "epsilon_timesteps"
            check_number("exploration_config", name, getattr(self, name), 0.0, most, endless=endless)

    def epsilon_at(self, env_steps: int) -> float:
        """Return epsilon after `env_steps` env steps of the run."""
        if env_steps >= self.epsilon_timesteps:
            return float(self.final_epsilon)
        ends = (self.initial_epsilon, self.final_epsilon)
        return float(np.interp(env_steps, (0, max(1, self.epsilon_timesteps)), ends))
