"""What the adapters of a user's own `BaseEnv` have in common: it is called, and what it raises is chained.

`custom` and `table` build on it. It knows nothing of what a poll returns.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from menv.base_env import BaseEnv, EnvId, IntArray
from menv.errors import EnvCrashError, MenvError
from menv.fault import raised_by_envs


class InnerEnvs(BaseEnv):
    """Stands before another `BaseEnv`, which is not touched before the first poll.

    Attributes:
        inner: The other one.
        possible_agents: The agents that may ever appear, None if it does not say.
    """

    returns_table = True

    def __init__(self, inner: BaseEnv) -> None:
        self.inner = inner
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space
        self.possible_agents = getattr(inner, "possible_agents", None)
        self.num_envs = inner.num_envs or 0

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the inner environment's own answer."""
        return self.inner.get_sub_environments(as_dict)

    def try_render(self, env_id: EnvId | None = None) -> Any:
        """Render through the inner environment."""
        return self.inner.try_render(env_id)

    def stop(self) -> None:
        """Stop the inner environment."""
        self.inner.stop()

    @abstractmethod
    def start_over(self, env_steps: IntArray) -> None:
        """Count env steps on from [E] these, so that nothing is drawn twice; nobody has polled yet."""

    def _inner_reset(self, env_id: EnvId | None, seed: int | None, options: dict[str, Any] | None) -> Any:
        # The classic signature is `try_reset(env_id)`: nothing is passed that was not asked for.
        given = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
        return self._call("try_reset", env_id, **given)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.inner, method)(*args, **kwargs)
        except MenvError:
            raise
        except raised_by_envs() as error:
            raise EnvCrashError(
                f"{type(self.inner).__name__}.{method}: raised {type(error).__name__}: {error}; "
                "the environment's own traceback is above"
            ) from error
