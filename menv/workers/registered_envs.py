"""Sends the registered environments of this process to other processes.

A creator of environments may ask for any registered name, so all names travel that other processes do not have.
Creators are unpickled when they are used, since that may import a lot.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym

from menv.env_context import EnvContext
from menv.registry import RegisteredEnv, make_env
from menv.workers.messages import UnsendableError, can_be_pickled, pack, unpack
from menv.workers.worker_process import set_log_level
from menv.wrappers.team import as_team

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
    creators: dict[str, Callable[..., Any]] = {
        name: one
        for name, creator in every.creators.items()
        if name not in own.creators and (one := _pickled_creator(creator)) is not None
    }
    specs = {name: _light(spec) for name, spec in every.gym_specs.items() if not _is_built_in(spec)}
    return RegisteredEnv({**creators, **own.creators}, {**_sendable(specs), **own.gym_specs})


def _pickled_creator(creator: Callable[..., Any]) -> PickledCreator | None:
    try:
        return PickledCreator(creator)
    except UnsendableError:
        return None


def _is_built_in(spec: Any) -> bool:
    """Return whether gymnasium itself registers the spec."""
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith(_BUILT_IN)


def _light(spec: gym.envs.registration.EnvSpec) -> gym.envs.registration.EnvSpec:
    """Return a spec that imports nothing when it is unpickled."""
    spec = copy.copy(spec)
    for name in ("entry_point", "vector_entry_point"):
        creator = getattr(spec, name)
        if callable(creator):
            setattr(spec, name, _pickled_creator(creator) or creator)
    return spec


def _sendable(specs: Mapping[str, Any]) -> Mapping[str, Any]:
    if can_be_pickled(specs):
        return specs
    return {name: spec for name, spec in specs.items() if can_be_pickled(spec)}


class RemoteEnvSpec:
    """Creates sub-environments in another process, with the names that are registered here.

    `context` is that of all of them except for `vector_index`, and `team` are arguments of `as_team`.
    """

    def __init__(
        self,
        env: Any,
        context: EnvContext,
        log_level: str | None = None,
        *,
        team: Mapping[str, Any],
    ) -> None:
        self._env = env
        self._team = team
        self._context = context
        self._log_level = log_level
        self._known = known_here(env)

    def __call__(self, vector_index: int) -> Any:
        set_log_level(self._log_level)
        self._known.register()
        context = self._context.copy_with_overrides(vector_index=vector_index, remote=True)
        return as_team(make_env(self._env, context), **self._team)


def remote_creator(make_env: Callable[[int], Any]) -> Callable[[int], Any]:
    """Return what calls a user's `make_env` in another process, with the names registered here."""
    return partial(_make_registered, known_here(make_env), make_env)


def _make_registered(known: RegisteredEnv, make_env: Callable[[int], Any], vector_index: int) -> Any:
    known.register()
    return make_env(vector_index)
