"""What names of environments mean in this process, told to others.

Workers, remote environments and `menv.verify` send it along. `menv.registry.RegisteredEnv` holds what the name of a
run's own
environment means; but a creator may ask for other names, which nobody sees from outside. So all names go along that are
this process's alone, those others as pickles that nobody opens before they are asked for: they may import a lot. Those
of megabytes go only where something names them that goes along: others would fill the memory of every worker.
"""

from __future__ import annotations

import copy
import marshal
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

import gymnasium as gym

from menv.env_context import EnvContext
from menv.errors import ConfigError
from menv.registry import RegisteredEnv, make_env, resolve_env
from menv.workers.pipe_channel import UnsendableError, can_be_pickled, dumps, pack, unpack
from menv.workers.worker_process import set_log_level

_BUILT_IN = "gymnasium."
_BIG = 4 << 20
"""Bytes from which on a creator only goes where it is named."""


class RegisteredNames:
    """A class or function that is unpickled when it is used.

    Args:
        made: The class or function.

    Raises:
        UnsendableError: It cannot be pickled.
    """

    def __init__(self, made: Callable[..., Any]) -> None:
        self._parts = [bytes(part) for part in pack(made)]

    @property
    def size(self) -> int:
        """Bytes that travel."""
        return sum(map(len, self._parts))

    @property
    def pickled(self) -> bytes:
        """The pickle, without the arrays in it."""
        return self._parts[0]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return unpack(self._parts)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # gymnasium looks at the metadata of a class.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(unpack(self._parts), name)


class UnsentNames:
    """Stands for a creator that did not travel; whoever asks for it is told why.

    Args:
        name: What it was registered as.
        size: Bytes that would have travelled.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size

    def __call__(self, context: Any) -> Any:
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"env {self._name!r}: its creator holds {self._size / 1e6:.0f} MB and was not sent to this process, "
            "because nothing that was names it, expected less; load inside the creator what it needs, or name it in "
            "env_config"
        )


def known_here(env: Any, settings: Any = None) -> RegisteredEnv:
    """Return what `env` means here, and all other names that can travel.

    Args:
        env: What the other process creates environments from: a name, a class, or a function.
        settings: What it creates them with; a name in there is one that may be asked for.
    """
    own, every = RegisteredEnv.of(env), RegisteredEnv.everything()
    others = {name: creator for name, creator in every.creators.items() if name not in own.creators}
    kept = {name: one for name, creator in others.items() if (one := _kept(creator)) is not None}
    specs = {name: _light(spec) for name, spec in every.gym_specs.items() if not _is_built_in(spec)}
    big = {name for name, one in kept.items() if one.size > _BIG}
    if big:
        creator = resolve_env(env) if isinstance(env, str) else env
        small = [others[name] for name in kept.keys() - big]
        said = [_pickled((env, own, settings)), *map(_code_of, [creator, *small])]
        big -= _named(big, [*said, *(kept[name].pickled for name in kept.keys() - big)], kept)
    creators: dict[str, Callable[..., Any]] = {
        name: UnsentNames(name, one.size) if name in big else one for name, one in kept.items()
    }
    return RegisteredEnv({**creators, **own.creators}, {**_sendable(specs), **own.gym_specs})


def _named(big: Iterable[str], said: list[bytes], kept: Mapping[str, RegisteredNames]) -> set[str]:
    """Return those names that occur in what travels, or in what is named there."""
    named: set[str] = set()
    while more := {name for name in big if name not in named and any(name.encode() in one for one in said)}:
        named |= more
        said = [kept[name].pickled for name in more]
    return named


def _pickled(value: Any) -> bytes:
    try:
        return dumps(value, lambda _buffer: None)
    except Exception:
        # Whoever sends it says what is wrong with it.
        return b""


def _code_of(creator: Any) -> bytes:
    """Return the code of a function, or of a class's methods, which other processes import rather than are sent."""
    kinds = creator.__mro__ if isinstance(creator, type) else ()
    parts = [creator, *(part for kind in kinds for part in vars(kind).values())]
    return b"".join(marshal.dumps(part.__code__) for part in parts if isinstance(part, FunctionType))


def _kept(made: Callable[..., Any]) -> RegisteredNames | None:
    try:
        return RegisteredNames(made)
    except UnsendableError:
        return None


def _is_built_in(spec: Any) -> bool:
    """Return whether every process has this spec that imports gymnasium."""
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith(_BUILT_IN)


def _light(spec: gym.envs.registration.EnvSpec) -> gym.envs.registration.EnvSpec:
    """Return a spec that imports nothing when it arrives."""
    spec = copy.copy(spec)
    for name in ("entry_point", "vector_entry_point"):
        made = getattr(spec, name)
        if callable(made):
            setattr(spec, name, _kept(made) or made)
    return spec


def _sendable(specs: Mapping[str, Any]) -> Mapping[str, Any]:
    if can_be_pickled(specs):
        return specs
    return {name: spec for name, spec in specs.items() if can_be_pickled(spec)}


# SEAM menv.scale.far_env
# How a sub-environment is created in another process: what `register_env` and gymnasium know here goes with
# it.
#
# `menv.algorithms.fragments` and `menv.verify.backends` hand a `RemoteEnvSpec` to `to_base_env`, which makes
# a
# `RemoteCopiesSpec` of a user's own `make_env`. Both are pickled, and called in the other process.


class RemoteEnvSpec:
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
        self._known.register()
        return make_env(self._env, self._context.copy_with_overrides(vector_index=vector_index, remote=True))


class RemoteCopiesSpec:
    """Creates sub-environments elsewhere by a function of their index, which may ask for names that are known here.

    Args:
        make_env: Creates sub-environment number `vector_index`.
    """

    def __init__(self, make_env: Callable[[int], Any]) -> None:
        self._make_env = make_env
        self._known = known_here(make_env)

    def __call__(self, vector_index: int) -> Any:
        self._known.register()
        return self._make_env(vector_index)
