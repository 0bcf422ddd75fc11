"""The state of a VMAS simulator while some of its worlds are reset.

`menv.wrappers.vmas_env` resets all worlds in one call, and restores the worlds that continue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]


class VmasState:
    """The attributes and entries of a simulator and of all its objects, with copies of the tensors [W, ...]."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._entries: dict[int, tuple[Any, dict[Any, Any]]] = {}

    @classmethod
    def of(cls, env: Any, count: int) -> VmasState | None:
        """Return the state of W worlds; None if some of it may be no tensor [W, ...]."""
        state, left = cls(env), [env]
        while left:
            holder = left.pop()
            if id(holder) in state._entries:
                continue
            entries = dict(_entries_of(holder))
            state._entries[id(holder)] = holder, entries
            for name, part in entries.items():
                if shape := _shape_of(part):
                    is_state = shape[:1] == (count,) and hasattr(part, "clone")
                    if shape.count(count) != is_state:
                        return None
                    if is_state:
                        entries[name] = part.clone()
                elif (
                    isinstance(part, list | tuple)
                    and len(part) == count
                    and isinstance(part[0], int | float | None)
                ):
                    return None
                else:
                    left.append(part)
        return state

    def give_back(self, kept: Flags) -> None:
        """Give the worlds that are `kept` [W] their rows of the tensors, and all worlds what they share."""
        # Objects with the ones that they have replaced.
        left, known = [(self._env, self._env)], set[int]()
        while left:
            holder, old = left.pop()
            if id(holder) in known or id(old) not in self._entries:
                continue
            known.add(id(holder))
            _, before = self._entries[id(old)]
            for name, part in _entries_of(holder):
                if name not in before:
                    continue
                was = before[name]
                if _shape_of(part)[:1] == (len(kept),):
                    if part.stride(0):  # 0: one value for all worlds
                        part[kept] = was[kept]
                elif part is not was and not isinstance(holder, tuple) and self._is_shared(part):
                    (holder if isinstance(holder, dict | list) else vars(holder))[name] = was
                    left.append((was, was))
                else:
                    left.append((part, part if id(part) in self._entries else was))

    def _is_shared(self, part: Any) -> bool:
        """Return whether an object has no separate state or is not new."""
        return id(part) in self._entries or not _entries_of(part)


def _shape_of(part: Any) -> tuple[int, ...]:
    shape = getattr(part, "shape", None)
    return shape if isinstance(shape, tuple) else ()


def _entries_of(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, list | tuple):
        return list(enumerate(holder))
    if isinstance(holder, type) or callable(holder):
        return []
    parts = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
    return [(name, part) for name, part in parts.items() if name != "viewer"]
