"""Tells PettingZoo's two kinds of environment from each other and from everything else.

The two PettingZoo wrappers ask it when they are made. It looks at methods only and imports no PettingZoo.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import gymnasium as gym

from menv.errors import ConfigError, MissingExtraError
from menv.multi_agent_env import MultiAgentEnv

_TURNS_AT_ONCE = "turn_based_aec_to_parallel_wrapper"
_WRAPPERS = {"AEC": "PettingZooEnv", "parallel": "ParallelPettingZooEnv"}
_MAKERS = {"AEC": "env", "parallel": "parallel_env"}


def check_kind(env: Any, wrapper: str, wanted: str) -> None:
    """Raise unless `env` is a PettingZoo environment of the wanted kind.

    Args:
        env: What the user passed.
        wrapper: The class that was called, for the message.
        wanted: "AEC" or "parallel".

    Raises:
        ConfigError: It is of the other kind, or no PettingZoo environment.
        MissingExtraError: It is none, and PettingZoo is not installed.
    """
    if isinstance(env, ModuleType):
        raise ConfigError(
            f"{wrapper}: got the module {env.__name__}, expected an environment; "
            f"pass {env.__name__.rpartition('.')[2]}.{_MAKERS[wanted]}()"
        )
    if isinstance(env, type) or (callable(env) and not hasattr(env, "step")):
        name = getattr(env, "__qualname__", type(env).__name__)
        raise ConfigError(
            f"{wrapper}: got {name} itself, expected the environment that it makes; pass {name}()"
        )
    if isinstance(env, MultiAgentEnv | gym.Env):
        kind = "MultiAgentEnv" if isinstance(env, MultiAgentEnv) else "gymnasium.Env"
        raise ConfigError(
            f"{wrapper}: {type(env).__name__} is a {kind}, expected a PettingZoo environment; use it as it is"
        )
    kind = kind_of(env)
    if kind == wanted:
        return
    if kind:
        # In the other wrapper agents would be asked that cannot act.
        turns = any(one.__name__ == _TURNS_AT_ONCE for one in type(env).__mro__)
        raise ConfigError(
            f"{wrapper}: {type(env).__name__} has PettingZoo's {kind} interface, expected the {wanted} one; "
            + (
                "pass the game as it was before turn_based_aec_to_parallel"
                if turns
                else f"use {_WRAPPERS[kind]}"
            )
        )
    if importlib.util.find_spec("pettingzoo") is None:
        raise MissingExtraError(
            f"{wrapper}: got {type(env).__name__} and PettingZoo is not installed, expected one of its environments; "
            'run pip install "menv[pettingzoo]"'
        )
    raise ConfigError(
        f"{wrapper}: {type(env).__name__} is no PettingZoo environment, expected one with the {wanted} interface; "
        "pass what a PettingZoo module's env() or parallel_env() returns"
    )


def kind_of(env: Any) -> str:
    """Return "AEC", "parallel", or "" if it is neither."""
    if not callable(getattr(env, "reset", None)) or not callable(getattr(env, "step", None)):
        return ""
    if callable(getattr(env, "last", None)) and callable(getattr(env, "observe", None)):
        return "AEC"
    # A parallel game has no turns; its spaces are by agent, where gymnasium has one.
    by_agent = callable(getattr(env, "observation_space", None)) or hasattr(env, "observation_spaces")
    return "parallel" if by_agent or hasattr(env, "possible_agents") else ""
