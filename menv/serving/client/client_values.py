"""Values of an application as messages hold them, and answered actions as elements of their space.

Clients write observations, actions and infos with it. It knows no messages.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from msgspec import Raw

from menv.acting.action_head import in_a_line
from menv.errors import ContractError
from menv.serving.wire.dialect import Dialect
from menv.serving.wire.packed import to_raw

_SMALL = 64


def written(value: Any, where: str) -> Raw:
    """Return a value as it goes into a message.

    Args:
        value: Numbers, texts, numpy arrays and scalars, and lists, tuples and dicts of them.
        where: Begins the message of an error.

    Raises:
        ContractError: It holds something else.
    """
    if type(value) is np.ndarray and value.size <= _SMALL:
        # A few numbers are written and read sooner than an array around them.
        value = value.tolist()
    try:
        return to_raw(value, Dialect.MSGPACK)
    except (TypeError, NotImplementedError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise ContractError(
            f"{where}: got something that has no form on the wire ({error!s:.80}), expected numbers, texts, arrays, "
            "and lists and dicts of these; leave the rest out"
        ) from None


def element_of(space: gym.Space[Any] | None, value: Any) -> Any:
    """Return an action as `space.sample()` gives it.

    Args:
        space: Its space; None if nobody told, lists are then arrays.
        value: Decoded from a message.

    Raises:
        ContractError: It is no such element; numbers of a Box may be outside its bounds, where actions are not clipped.
    """
    try:
        return _element(space, value)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ContractError(
            f"PolicyClient: the server answers with an action that is none ({ascii(str(error))[1:-1]:.100}), expected "
            f"an element of {in_a_line(space) if space is not None else 'a space'}; look at the server's policy"
        ) from error


def _element(space: gym.Space[Any] | None, value: Any) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {key: _element(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_element(part, one) for part, one in zip(space.spaces, value, strict=True))
    if isinstance(space, gym.spaces.Discrete):
        choice = space.dtype.type(value)
        if choice != value or not space.contains(choice):
            raise ValueError(f"{value!r:.40} is no choice")
        return choice
    if isinstance(space, gym.spaces.Box | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        array = np.array(value, space.dtype).reshape(space.shape)
        fits = np.isfinite(array).all() if isinstance(space, gym.spaces.Box) else space.contains(array)
        if not fits:
            raise ValueError("its numbers are outside")
        return array
    if space is None and isinstance(value, list) and value and isinstance(value[0], int | float):
        return np.array(value, np.float32 if isinstance(value[0], float) else np.int64)
    return value
