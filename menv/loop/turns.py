"""Turns: what two threads must not do at once with one object, they do one after the other.

`NetPolicy` takes them, because buffers, connectors and draws are for one caller at a time. Nothing here knows what is
done in a turn.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Turn:
    """A lock that a pickle, a copy or a forked process has anew; whoever holds it may take it again.

    Attributes:
        lock: Held by whoever's turn it is.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _TURNS.add(self)

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()


class TakesTurns(Protocol):
    """What has a turn."""

    turn: Turn


T = TypeVar("T", bound=TakesTurns)


def in_turn(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Return a method that one thread at a time is in."""

    @functools.wraps(method)
    def alone(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.turn.lock:
            return method(self, *args, **kwargs)

    return alone


_TURNS: weakref.WeakSet[Turn] = weakref.WeakSet()


def _renew() -> None:
    """Free all turns: in a forked process there is nobody who would give back those of other threads."""
    for turn in list(_TURNS):
        turn.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
