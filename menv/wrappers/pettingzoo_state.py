"""Where a game keeps whose turn it is, beneath PettingZoo's own wrappers, and how to step it from there.

An attribute that is read through three of those wrappers costs a tenth of a small game's whole step, and every
step reads a dozen. The two PettingZoo wrappers ask once and go there directly. It knows modules by name and
imports no PettingZoo.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

_STATE = (
    "agents", "agent_selection", "terminations", "truncations", "infos", "rewards", "_cumulative_rewards"
)  # fmt: skip
_WRAPPERS = "pettingzoo.utils.wrappers"
_ORDER = ("order_enforcing", "OrderEnforcingWrapper")
_PLAIN = {
    _ORDER,
    ("assert_out_of_bounds", "AssertOutOfBoundsWrapper"),
    ("clip_out_of_bounds", "ClipOutOfBoundsWrapper"),
    ("terminate_illegal", "TerminateIllegalWrapper"),
}
"""PettingZoo's wrappers that pass the state on as it is and care for nothing beyond a single step."""


def state_holder(env: Any) -> Any:
    """Return the object that holds the turn's state, or None if `env.last` has to be asked.

    PettingZoo's wrappers only pass the state on; a wrapper of anybody else may show another one, so nothing
    beneath it is looked at. `last` is asked where somebody wrote one of their own.
    """
    game = env
    while _passes_on(game):
        game = vars(game)["env"]
    return game if _is_pettingzoos(type(game), "last") else None


def inside_order_checks(env: Any) -> Any:
    """Return the environment within PettingZoo's check of the order of calls, which costs more than it tells.

    `PettingZooEnv` refuses a call out of order itself.
    """
    return vars(env)["env"] if _passes_on(env) and _name(type(env)) == _ORDER else env


def observer(env: Any) -> Callable[[Any], Any]:
    """Return `env.observe` without the wrappers around it that only hand the call on."""
    game = env
    while _passes_on(game) and (_name(type(game)) == _ORDER or _hands_on(type(game), "observe")):
        game = vars(game)["env"]
    observe: Callable[[Any], Any] = game.observe
    return observe


def parallel_stepper(env: Any) -> Callable[[Any], Any]:
    """Return `env.step` of a parallel game, for one made of an AEC game without that game's checks of order."""
    kind = type(env)
    step: Callable[[Any], Any] = env.step
    if (kind.__module__, kind.__name__) != ("pettingzoo.utils.conversions", "aec_to_parallel_wrapper"):
        return step
    inner = inside_order_checks(env.aec_env)
    return step if inner is env.aec_env or "step" in vars(env) else _Shortened(env, inner).step


class _Shortened:
    """PettingZoo's AEC game made parallel, stepped on a shallow copy that holds the game without its order checks."""

    def __init__(self, env: Any, inner: Any) -> None:
        self._env = env
        self._copy = copy.copy(env)
        self._copy.aec_env = inner

    def step(self, actions: Any) -> Any:
        result = self._copy.step(actions)
        # As its own step would have done.
        self._env.agents = self._copy.agents
        return result


def _passes_on(env: Any) -> bool:
    """Return whether `env` is a wrapper of PettingZoo's without a state or a method of its own."""
    if _name(type(env)) not in _PLAIN or "env" not in vars(env):
        return False
    # Somebody may have put a method on the object itself, to watch it.
    own = vars(env).keys() & {*_STATE, "step", "observe", "last"}
    return not own and not any(hasattr(type(env), name) for name in _STATE)


def _hands_on(kind: type, method: str) -> bool:
    """Return whether a wrapper has the method from PettingZoo's base class of wrappers."""
    return bool(getattr(kind, method).__module__ == f"{_WRAPPERS}.base")


def _name(kind: type) -> tuple[str, str] | None:
    package, _, module = kind.__module__.rpartition(".")
    return (module, kind.__name__) if package == _WRAPPERS else None


def _is_pettingzoos(kind: type, method: str) -> bool:
    written = getattr(kind, method, None)
    return str(getattr(written, "__module__", "")).partition(".")[0] == "pettingzoo"
