"""Pickles between a driver and the workers that it started itself: the one place where menv unpickles.

`link` and `far_error` use it, on what came over a socket that nobody else can open. Nothing else may: no file, no
network, no client.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle


def dumps(value: Any, take_buffer: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Return a value as a pickle that holds functions and classes of a script too.

    Args:
        value: What is to be sent.
        take_buffer: Is given the memory of each array, which is not in the pickle then.
    """
    data: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=take_buffer)
    return data


def loads(data: Any, buffers: Sequence[Any] = ()) -> Any:
    """Return the value in a pickle; raises whatever its classes do."""
    return pickle.loads(data, buffers=buffers)
