"""Patience: what a sampler does while polls return nothing, which is to wait a little, and to give up in the end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from menv.adapters.custom import CustomEnvs
from menv.base_env import BaseEnv, EnvId, Ready
from menv.errors import ContractError

_EMPTY_POLLS = 10_000


class Patience:
    """How long it is that one environment has had nothing to tell.

    Attributes:
        left: Seconds that the next poll may wait, None for ever.
    """

    def __init__(self, base_env: BaseEnv) -> None:
        self.left = self._limit = base_env.idle_timeout
        self._starves = not base_env.external
        self._custom = base_env if isinstance(base_env, CustomEnvs) else None
        self._moved = time.monotonic()
        # Polls in a row that returned nothing.
        self._idle = 0

    def ends(self, ready: Ready, answered: bool) -> bool:
        """Return whether nobody has called for too long.

        Args:
            ready: What the last poll returned.
            answered: Whether somebody had been answered before it.

        Raises:
            ContractError: It was the last of too many that returned nothing, and nobody else could change that.
        """
        self._idle = 0 if answered or len(ready.slots) or ready.played else self._idle + 1
        if self._limit is not None:
            if not self._idle or ready.episodes or ready.ended:
                # An end has no rows; an episode in which nobody acted leaves nothing at all.
                self._moved = time.monotonic()
            self.left = self._moved + self._limit - time.monotonic()
            return self.left <= 0
        if self._idle and self._starves:
            starve(self._idle, self._custom.gone if self._custom is not None else ())
        return False


def starve(idle: int, gone: Sequence[EnvId] = ()) -> None:
    """Wait, after so many polls in a row that returned nothing.

    Args:
        idle: How many.
        gone: The sub-environments that ended for good.

    Raises:
        ContractError: They were too many.
    """
    if idle >= _EMPTY_POLLS:
        if gone:
            raise ContractError(
                f"sample: env {gone[0]} ended for good, because try_reset returned (None, None), and {idle} polls in a "
                "row brought no new env id, expected one in its place; return its obs from try_reset, or a new env id "
                "from poll, or leave num_envs out, so that those that are left fill the fragment"
            )
        raise ContractError(
            f"sample: {idle} polls in a row returned nothing and nobody waits, expected rows; "
            "check that the environment's poll returns observations after its send_actions"
        )
    if idle > 100:
        time.sleep(0.001)
