"""`Adapter`: a `BaseEnv` as the sampler sees it.

Each adapter returns tables and declares what it can do. Code that samples asks these attributes and never the class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from menv.base_env import AgentId, BaseEnv, EnvId, IntArray
from menv.errors import ConfigError, EnvCrashError, MenvError, in_words


class Adapter(BaseEnv):
    """A `BaseEnv` that returns tables and declares its capabilities.

    Attributes:
        can_restart: Whether all sub-environments can begin again, so that an interrupted fragment can be dropped.
        counts_steps: Whether `start_from` sets its env steps; the ones of clients' episodes cannot be set.
        events_have_order: Whether ends of sub-environments are sorted by env step; otherwise they count in the order in
            which polls return them.
        possible_agents: The agents that may ever appear, empty or None if unknown.
        only_agent: The agent of each sub-environment, if it has one and the slot and the env id are the index.
        pauses_at_ends: Set by a sampler whose callbacks look at environments: a poll in which episodes ended returns
            their ends alone, and the next one resets their sub-environments and returns everything else.
        paused: Whether the last poll did so.
    """

    returns_table = True
    can_restart: bool = False
    counts_steps: bool = True
    events_have_order: bool = False
    possible_agents: Collection[AgentId] | None = None
    only_agent: AgentId | None = None
    pauses_at_ends: bool = False
    paused: bool = False

    @property
    def replayable(self) -> CreatedEnvs | None:
        """This adapter, if a running episode can be repeated from its seed and actions."""
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
        """Begin new episodes, and count env steps on from [E] `env_steps`, so that no random number is used twice."""

    def limit_steps(self, steps: float, by_agent_steps: bool) -> None:
        """Deliver at most this many further steps that clients played themselves."""

    def episodes_at(self, env_indices: Iterable[int]) -> list[EnvId]:
        """Return the ids of clients' open episodes at some indices."""
        return []


class CreatedEnvs(Protocol):
    """Sub-environments that menv created and can create again, here or in other processes.

    Attributes:
        num_envs: E, the number of sub-environments.
        env_steps: [E] env steps of each sub-environment since its start.
        seed: With `first_index` and the env steps at a reset it gives the seed of that reset; None gives none.
        first_index: Index of the first sub-environment among the sub-environments of all workers.
        on_created: Called with the index and the sub-environment whenever one is replaced.
    """

    num_envs: int
    env_steps: IntArray
    seed: int | None
    first_index: int
    on_created: Callable[[int, Any], None] | None

    def episode_start(self, index: int) -> int:
        """Return the env steps of a sub-environment at its last reset."""


def call_env(env: BaseEnv, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a user's `BaseEnv`; what it raises is the cause of an `EnvCrashError`."""
    try:
        return getattr(env, method)(*args, **kwargs)
    except MenvError:
        raise
    except Exception as error:
        raise EnvCrashError(
            f"{type(env).__name__}.{method}: raised {in_words(error)}; "
            "the environment's own traceback is above"
        ) from error


def reset_base_env(
    env: BaseEnv, env_id: EnvId | None, seed: int | None, options: dict[str, Any] | None
) -> Any:
    """Call `try_reset` of a user's `BaseEnv`."""
    # The classic signature is `try_reset(env_id)`: other arguments are passed only if they are given.
    given = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
    return call_env(env, "try_reset", env_id, **given)
