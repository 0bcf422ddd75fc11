"""Sends the registered environments of this process to other processes.

A creator of environments may ask for any registered name, so all names travel that other processes do not have.
Creators are unpickled when they are used, since that may import a lot. Creators of megabytes travel only if something
else names them; they would fill the memory of every worker.
"""

from __future__ import annotations

import copy
import marshal
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import gymnasium as gym

from menv.env_context import EnvContext
from menv.errors import ConfigError
from menv.registry import RegisteredEnv, make_env, named_creator
from menv.workers.pipe_channel import UnsendableError, can_be_pickled, dumps, pack, unpack
from menv.workers.worker_process import set_log_level

_BUILT_IN = "gymnasium."
_LARGE = 4 << 20
"""Size in bytes from which a creator travels only if it is named."""


class PickledCreator:
    """A class or function that is unpickled when it is used; UnsendableError if it cannot be pickled."""

    def __init__(self, creator: Callable[..., Any]) -> None:
        self._parts = [bytes(part) for part in pack(creator)]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(map(len, self._parts))

    @property
    def pickled(self) -> bytes:
        """The pickle, without its arrays."""
        return self._parts[0]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return unpack(self._parts)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # gymnasium looks at the metadata of a class.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(unpack(self._parts), name)


def _refuse_unsent(name: str, size: int, _context: object) -> Any:
    """Stand for a creator that was too large to send."""
    raise ConfigError(
        f"env {name!r}: its creator holds {size / 1e6:.0f} MB and was not sent to this process, "
        "because nothing that was names it, expected less; load inside the creator what it needs, or name it in "
        "env_config"
    )


def known_here(env: object, settings: object = None) -> RegisteredEnv:
    """Return what `env` means here, and all other names that can travel.

    `settings` is what the other process creates environments with; names in it may be asked for.
    """
    own, every = RegisteredEnv.of(env), RegisteredEnv.everything()
    others = {name: creator for name, creator in every.creators.items() if name not in own.creators}
    pickled_creators = {
        name: one for name, creator in others.items() if (one := _pickled_creator(creator)) is not None
    }
    specs = {name: _light(spec) for name, spec in every.gym_specs.items() if not _is_built_in(spec)}
    large = {name for name, one in pickled_creators.items() if one.size > _LARGE}
    if large:
        creator = named_creator(env) if isinstance(env, str) else env
        small = [others[name] for name in pickled_creators.keys() - large]
        sent = [_pickled((env, own, settings)), *map(_code_of, [creator, *small])]
        large -= _named(
            large,
            [*sent, *(pickled_creators[name].pickled for name in pickled_creators.keys() - large)],
            pickled_creators,
        )
    creators: dict[str, Callable[..., Any]] = {
        name: partial(_refuse_unsent, name, one.size) if name in large else one
        for name, one in pickled_creators.items()
    }
    return RegisteredEnv({**creators, **own.creators}, {**_sendable(specs), **own.gym_specs})


def _named(
    large: Iterable[str], sent: list[bytes], pickled_creators: Mapping[str, PickledCreator]
) -> set[str]:
    """Return the names that occur in the sent pickles, or in the creators named there."""
    named: set[str] = set()
    while more := {name for name in large if name not in named and any(name.encode() in one for one in sent)}:
        named |= more
        sent = [pickled_creators[name].pickled for name in more]
    return named


def _pickled(value: object) -> bytes:
    try:
        return dumps(value, lambda _buffer: None)
    except Exception:
        # Sending it raises a better error.
        return b""


def _code_of(creator: object) -> bytes:
    """Return the code of a function or of a class's methods, which other processes import."""
    kinds = creator.__mro__ if isinstance(creator, type) else ()
    parts = [creator, *(part for kind in kinds for part in vars(kind).values())]
    return b"".join(marshal.dumps(part.__code__) for part in parts if isinstance(part, FunctionType))


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

    `context` is that of all of them except for `vector_index`.
    """

    def __init__(self, env: Any, context: EnvContext, log_level: str | None = None) -> None:
        self._env = env
        self._context = context
        self._log_level = log_level
        self._known = known_here(env, context)

    def __call__(self, vector_index: int) -> Any:
        set_log_level(self._log_level)
        self._known.register()
        return make_env(self._env, self._context.copy_with_overrides(vector_index=vector_index, remote=True))


def remote_creator(make_env: Callable[[int], Any]) -> Callable[[int], Any]:
    """Return what calls a user's `make_env` in another process, with the names registered here."""
    return partial(_make_registered, known_here(make_env), make_env)


def _make_registered(known: RegisteredEnv, make_env: Callable[[int], Any], vector_index: int) -> Any:
    known.register()
    return make_env(vector_index)
