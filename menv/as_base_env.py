"""What every kind of environment has: the method that makes a `BaseEnv` of it.

`MultiAgentEnv`, `VectorEnv`, `BaseEnv` and the external ones build on it. It knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from menv.base_env import BaseEnv


class AsBaseEnv:
    """An environment of a kind that menv can step."""

    @property
    def unwrapped(self) -> Any:
        """The innermost environment, as in gymnasium: that of a wrapper's `env`, or this one."""
        inner = getattr(self, "env", self)
        return self if inner is self else getattr(inner, "unwrapped", inner)

    def to_base_env(
        self,
        make_env: Callable[[int], Any] | None = None,
        num_envs: int = 1,
        remote_envs: bool = False,
        remote_env_batch_wait_ms: float = 0,
        restart_failed_sub_environments: bool = True,
        num_consecutive_env_failures_tolerance: int = 2,
    ) -> BaseEnv:
        """Return this environment and `num_envs - 1` more of its kind as one `BaseEnv`.

        One that holds several already, a `VectorEnv` or a `BaseEnv`, is taken alone: `num_envs`, if given, must be
        the number of a `VectorEnv`'s sub-environments; what this returned before is returned as it is.

        Args:
            make_env: Makes the sub-environment of a given index; this one has index 0.
            num_envs: Sub-environments in all.
            remote_envs: Whether each lives in a process of its own; all are made by `make_env` then, there, and this
                one only tells spaces and agents, and is closed.
            remote_env_batch_wait_ms: Milliseconds that a poll waits for more of them once one has answered.
            restart_failed_sub_environments: Whether one that raises is closed and made anew by `make_env`, at the cost
                of its episode; False ends the run.
            num_consecutive_env_failures_tolerance: So many crashes of one sub-environment in a row, each in a reset or
                in the first 10 env steps of an episode, do not end the run; the next one does.
        """
        from menv.scale.convert import to_base_env

        return to_base_env(
            self, make_env, num_envs, remote_envs=remote_envs, remote_env_batch_wait_ms=remote_env_batch_wait_ms,
            restart_failed_sub_environments=restart_failed_sub_environments,
            num_consecutive_env_failures_tolerance=num_consecutive_env_failures_tolerance,
        )  # fmt: skip
