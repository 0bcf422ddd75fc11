"""`Adapter`: a `BaseEnv` as the sampler sees it.

Each adapter returns tables and declares what it can do. Code that samples asks these attributes and never the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from menv.base_env import BaseEnv, EnvId, IntArray
from menv.errors import ConfigError

if TYPE_CHECKING:
    from menv.adapters.gym import GymEnvs
    from menv.adapters.local_envs import CreatedEnvs
    from menv.adapters.vector_base import LockstepEnvs


class Adapter(BaseEnv):
    """A `BaseEnv` that returns tables and declares its capabilities.

    Attributes:
        can_restart: Whether all sub-environments can begin again, so that an interrupted fragment can be dropped.
        counts_steps: Whether `start_from` sets its env steps; those of clients' episodes cannot be set.
        events_have_order: Whether ends of sub-environments are sorted by env step; otherwise they count in the order in
            which polls return them.
    """

    returns_table = True
    can_restart: bool = False
    counts_steps: bool = True
    events_have_order: bool = False

    @property
    def replayable(self) -> CreatedEnvs | None:
        """This adapter, if a running episode can be repeated from its seed and actions."""
        return None

    @property
    def vector_steps(self) -> LockstepEnvs | GymEnvs | None:
        """This adapter, if all sub-environments can step as one `VectorStep`: always, or while all of them wait."""
        return None

    @property
    def gone(self) -> Sequence[EnvId]:
        """Sub-environments that ended for good and were not replaced."""
        return ()

    def index_of(self, env_id: EnvId) -> int:
        """Return the index of a sub-environment; ids are indices unless a subclass says otherwise."""
        if not isinstance(env_id, int | np.integer) or not 0 <= env_id < self.num_envs:
            raise ConfigError(
                f"env id {env_id!r}: expected an integer from 0 to {self.num_envs - 1}; use the ids that poll returned"
            )
        return int(env_id)

    def indices(self, env_id: EnvId | None) -> Sequence[int]:
        """Return the index of one sub-environment, or of all."""
        return range(self.num_envs) if env_id is None else [self.index_of(env_id)]

    def start_from(self, env_steps: IntArray) -> None:
        """Count env steps on from [E] `env_steps`, so that no random number is used twice; before the first poll."""

    def limit_steps(self, steps: float, by_agent_steps: bool) -> None:
        """Deliver at most so many more steps that clients took themselves."""

    def episodes_at(self, env_indices: Iterable[int]) -> list[EnvId]:
        """Return the ids of clients' open episodes at some indices."""
        return []
