"""Sub-environments that are numbered from 0, their number being their env id.

`created_envs` and `lockstep` build on it. It knows neither rows nor what an environment is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from menv.base_env import BaseEnv, EnvId
from menv.errors import ConfigError


class NumberedEnvs(BaseEnv):
    """E sub-environments with their index as env id.

    Attributes:
        num_envs: E.
    """

    returns_table = True
    num_envs: int

    def _index(self, env_id: Any) -> int:
        """Return the index of a sub-environment.

        Raises:
            ConfigError: There is none of this id.
        """
        if not isinstance(env_id, int | np.integer) or not 0 <= env_id < self.num_envs:
            raise ConfigError(
                f"env id {env_id!r}: expected an integer from 0 to {self.num_envs - 1}; use the ids that poll returned"
            )
        return int(env_id)

    def _indices(self, env_id: EnvId | None) -> Sequence[int]:
        return range(self.num_envs) if env_id is None else [self._index(env_id)]
