"""How a sub-environment is created in another process: what `register_env` and gymnasium know here goes with it.

`menv.algorithms.rollouts.experience` and `menv.verify.backends` hand a `FarEnv` to `to_base_env`, which makes a
`FarCopies` of a user's own `make_env`. Both are pickled, and called in the other process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from menv.env_context import EnvContext
from menv.registry import make_env
from menv.scale.known_names import known_here
from menv.scale.log_level import set_log_level


class FarEnv:
    """Creates sub-environments of one kind elsewhere.

    Args:
        env: As in `menv.registry.make_env`.
        context: Of all of them, but for `vector_index`.
        log_level: Of what is logged in the process where they live; None leaves it alone.
    """

    def __init__(self, env: Any, context: EnvContext, log_level: str | None = None) -> None:
        self._env = env
        self._context = context
        self._log_level = log_level
        self._known = known_here(env, context)

    def __call__(self, vector_index: int) -> Any:
        set_log_level(self._log_level)
        self._known.tell()
        return make_env(self._env, self._context.copy_with_overrides(vector_index=vector_index, remote=True))


class FarCopies:
    """Creates sub-environments elsewhere by a function of their index, which may ask for names that are known here.

    Args:
        make_env: Creates sub-environment number `vector_index`.
    """

    def __init__(self, make_env: Callable[[int], Any]) -> None:
        self._make_env = make_env
        self._known = known_here(make_env)

    def __call__(self, vector_index: int) -> Any:
        self._known.tell()
        return self._make_env(vector_index)
