"""Sends the registered environments of this process to other processes.

A creator of environments may ask for any registered name, so all names travel that other processes do not have.
Creators are unpickled when they are used, since that may import a lot.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from menv.registry import RegisteredEnv
from menv.workers.messages import UnsendableError, can_be_pickled, pack, unpack
from menv.workers.worker_process import set_log_level

_BUILT_IN = "gymnasium."


class PickledCreator:
    """A class or function that is unpickled when it is used; UnsendableError if it cannot be pickled."""

    def __init__(self, creator: Callable[..., Any]) -> None:
        self._parts = [bytes(part) for part in pack(creator)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return unpack(self._parts)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # gymnasium looks at the metadata of a class.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(unpack(self._parts), name)


def known_here(env: object) -> RegisteredEnv:
    """Return what `env` means here, and all other names that can travel."""
    own, every = RegisteredEnv.of(env), RegisteredEnv.everything()
    creators = {name: _pickled(one) for name, one in every.creators.items() if name not in own.creators}
    specs = {
        name: _light(spec)
        for name, spec in every.gym_specs.items()
        if not str(spec.entry_point).startswith(_BUILT_IN)
    }
    if not can_be_pickled(specs):
        specs = {name: spec for name, spec in specs.items() if can_be_pickled(spec)}
    there = {name: one for name, one in creators.items() if one is not None}
    return RegisteredEnv({**there, **own.creators}, {**specs, **own.gym_specs})


def _pickled(creator: Callable[..., Any]) -> PickledCreator | None:
    try:
        return PickledCreator(creator)
    except UnsendableError:
        return None


def _light(spec: gym.envs.registration.EnvSpec) -> gym.envs.registration.EnvSpec:
    """Return a spec that imports nothing when it is unpickled."""
    spec = copy.copy(spec)
    for name in ("entry_point", "vector_entry_point"):
        creator = getattr(spec, name)
        if callable(creator):
            setattr(spec, name, _pickled(creator) or creator)
    return spec


class RemoteCreator:
    """Calls `make_env` in another process, with the names that are registered here; `env` may be one of them."""

    def __init__(
        self, make_env: Callable[[int], Any], env: object = None, log_level: str | None = None
    ) -> None:
        self._make_env, self._log_level = make_env, log_level
        self._known = known_here(env)

    def __call__(self, vector_index: int) -> Any:
        set_log_level(self._log_level)
        self._known.register()
        return self._make_env(vector_index)
