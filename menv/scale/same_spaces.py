"""Copies of a single-agent environment that declare other spaces than the first: refused before anybody acts in them.

`menv.scale.convert` looks at each copy where it is created, workers at the first one of theirs. Policies have the
spaces of the first, so that actions would be chosen from another space. What agents of a `MultiAgentEnv` declare is not
compared: copies may be other games, whose agents the mapping gives other policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from menv.base_env import BaseEnv
from menv.errors import ContractError
from menv.multi_agent_env import MultiAgentEnv
from menv.spaces import alike
from menv.vector_env import VectorEnv

Declared = Mapping[str, Any]
"""Spaces by the name of the attribute."""


def declared(env: Any) -> Declared:
    """Return what a single-agent environment declares, or one of those in a vectorised one; nothing of others."""
    vectorised = isinstance(env, gym.vector.VectorEnv)
    if isinstance(env, MultiAgentEnv) or not (vectorised or isinstance(env, gym.Env | VectorEnv)):
        return {}
    names = ("observation_space", "action_space")
    found = {name: getattr(env, f"single_{name}" if vectorised else name, None) for name in names}
    # One that is built in its first reset may have none yet.
    return {name: space for name, space in found.items() if isinstance(space, gym.Space)}


def check_spaces(whose: str, env: Any, first: Declared) -> None:
    """Refuse an environment whose spaces are of another kind or shape than those that the first declares.

    Raises:
        ContractError: They are.
    """
    for name, space in declared(env).items():
        if name in first and not alike(space, first[name]):
            raise ContractError(
                f"{whose}: its {name} is {space!s:.160}, expected one like that of the first environment, "
                f"{first[name]!s:.160}; declare the same in every copy, whatever its worker_index and vector_index"
            )


def check_worker(whose: str, base_env: BaseEnv, first: Any, like: Declared, num_envs: int = 0) -> None:
    """Refuse the environments of a worker that are not like those of the driver, and close them.

    Args:
        whose: What messages call the worker.
        base_env: They.
        first: The first of them.
        like: What that of the driver declares.
        num_envs: How many each worker has; 0 if that makes no difference.

    Raises:
        ContractError: They declare other spaces, or are more or fewer.
    """
    try:
        check_spaces(whose, first, like)
        if num_envs and base_env.num_envs not in (0, num_envs):
            raise ContractError(
                f"{whose}: {type(first).__name__} of {base_env.num_envs} sub-environments, expected {num_envs} as in "
                "the driver; create the same number of them whatever the worker_index"
            )
    except ContractError:
        base_env.stop()
        raise


class SameSpaces:
    """Creates copies of an environment, and refuses those that declare something else.

    Args:
        make_env: Creates copy number `vector_index`.
        first: What was created before.
    """

    def __init__(self, make_env: Callable[[int], Any], first: Any) -> None:
        self._make_env = make_env
        self._declared = declared(first)

    def __call__(self, vector_index: int) -> Any:
        env = self._make_env(vector_index)
        check_spaces(f"env {vector_index}", env, self._declared)
        return env
