"""What names of environments mean in this process, told to others.

Workers, remote environments and `menv.verify` send it along. `menv.registry.Known` holds what the name of a run's own
environment means; but a creator may ask for other names, which nobody sees from outside. So all names go along that are
this process's alone, those others as pickles that nobody opens before they are asked for: they may import a lot.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from menv.registry import Known
from menv.scale.packing import UnsendableError, can_be_pickled, pack, unpack

_BUILT_IN = "gymnasium."


class Kept:
    """A class or function that is unpickled when it is used.

    Args:
        made: The class or function.

    Raises:
        UnsendableError: It cannot be pickled.
    """

    def __init__(self, made: Callable[..., Any]) -> None:
        self._parts = [bytes(part) for part in pack(made)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return unpack(self._parts)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # gymnasium looks at the metadata of a class.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(unpack(self._parts), name)


def known_here(env: Any) -> Known:
    """Return what `env` means here, and all other names that can travel."""
    own, every = Known.behind(env), Known.everything()
    creators = {name: _kept(creator) for name, creator in every.creators.items()}
    specs = {name: _light(spec) for name, spec in every.gym_specs.items() if not _is_built_in(spec)}
    return Known(
        {**{name: creator for name, creator in creators.items() if creator is not None}, **own.creators},
        {**_sendable(specs), **own.gym_specs},
    )


def _kept(made: Callable[..., Any]) -> Kept | None:
    """Return something as it travels, None where it cannot."""
    try:
        return Kept(made)
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
    """Return those that can be pickled."""
    if can_be_pickled(specs):
        return specs
    return {name: spec for name, spec in specs.items() if can_be_pickled(spec)}
