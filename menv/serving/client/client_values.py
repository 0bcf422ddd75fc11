"""Values of an application as messages hold them, and answered actions as elements of their space.

Clients write observations, actions and infos with it. It knows no messages.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from msgspec import Raw

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
    except (TypeError, NotImplementedError, OverflowError, RecursionError) as error:
        raise ContractError(
            f"{where}: got something that has no form on the wire ({error!s:.80}), expected numbers, texts, arrays, "
            "and lists and dicts of these; leave the rest out"
        ) from None


def element_of(space: gym.Space[Any] | None, value: Any) -> Any:
    """Return an action as `space.sample()` gives it.

    Args:
        space: Its space; None if nobody told, lists are then arrays.
        value: Decoded from a message.
    """
    if isinstance(space, gym.spaces.Dict):
        return {key: element_of(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(element_of(part, one) for part, one in zip(space.spaces, value, strict=True))
    if isinstance(space, gym.spaces.Discrete):
        return space.dtype.type(value)
    if isinstance(space, gym.spaces.Box | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        return np.array(value, space.dtype).reshape(space.shape)
    if space is None and isinstance(value, list) and value and isinstance(value[0], int | float):
        return np.array(value, np.float32 if isinstance(value[0], float) else np.int64)
    return value
