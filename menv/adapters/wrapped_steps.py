"""The step of an environment of `gymnasium.make`, without a call for each wrapper that only passes on.

`gymnasium.make` puts three wrappers around an environment. Two have done their work after a few steps, the third
counts. Their calls cost 4 to 6 % of a step of Pendulum or CartPole. Nothing here resets, or checks what a step returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

Step = Callable[[Any], Any]

# All that the `step` of a version whose work is known may touch.
_TOUCHED: dict[type, set[str]] = {
    TimeLimit: {"env", "step", "_elapsed_steps", "_max_episode_steps"},
    OrderEnforcing: {"_has_reset", "ResetNeeded", "super", "step"},
    PassiveEnvChecker: {
        "env", "step", "checked_step", "checked_data_reuse", "_previous_data",
        "env_step_passive_checker", "env_data_reuse_passive_checker",
    },
    gym.Wrapper: {"env", "step"},
}  # fmt: skip


def _known_steps() -> dict[type, Any]:
    """Return `step` of the wrappers that can be passed by; none where this gymnasium has others."""
    for kind, names in _TOUCHED.items():
        code = getattr(kind.__dict__.get("step"), "__code__", None)
        if code is None or not names.issuperset(code.co_names):
            return {}
    return {kind: kind.__dict__["step"] for kind in _TOUCHED if kind is not gym.Wrapper}


_KNOWN = _known_steps()


def direct_step(env: Any) -> Step:
    """Return what steps an environment and returns, raises and counts as its `step` does.

    It is good until the next reset; ask again after it, for wrappers may be changed between episodes.

    Args:
        env: It has been reset.

    Returns:
        `env.step` itself where its outer wrappers are others, or still have something to look at.
    """
    core, limit = env, None
    while type(core) in _KNOWN and _only_passes_on(core, limit is None):
        limit = core if type(core) is TimeLimit else limit
        core = core.env
    if limit is not None:
        return _limited(core, limit)
    step: Step = core.step
    return step


def _only_passes_on(wrapper: Any, may_count: bool) -> bool:
    """Return whether a wrapper passes steps on as they are, or counts them where one may."""
    kind = type(wrapper)
    if kind.step is not _KNOWN[kind] or "step" in vars(wrapper):
        return False
    if kind is OrderEnforcing:
        return wrapper._has_reset is True
    if kind is PassiveEnvChecker:
        return wrapper.checked_step is True and getattr(wrapper, "checked_data_reuse", True) is True
    return may_count


def _limited(core: Any, limit: Any) -> Step:
    """Return a step of `core` that a `TimeLimit` counts."""

    def step(action: Any) -> Any:
        obs, reward, terminated, truncated, info = core.step(action)
        limit._elapsed_steps += 1
        if limit._elapsed_steps >= limit._max_episode_steps:
            truncated = True
        return obs, reward, terminated, truncated, info

    return step
