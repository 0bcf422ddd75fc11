"""Arrays on the wire: what msgpack may hold instead of a list of numbers, and numpy values as plain ones.

Readers of columns unpack with it; whoever sends arrays packs with it. It knows no spaces and no messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Raw

from menv.serving.wire.bad_message import Code
from menv.serving.wire.bad_value import BadValueError
from menv.serving.wire.dialect import Dialect

Array = npt.NDArray[Any]

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        name: np.dtype(name)
        for name in ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f4", "<f8")
    }
)
"""All types of packed numbers: little-endian, by numpy's short names."""

_Size = Annotated[int, Meta(ge=0, le=2**32)]


class Packed(msgspec.Struct, frozen=True, gc=False):
    """Numbers in C order: `shape` of them, `dtype` each, in `data`."""

    dtype: str
    shape: Annotated[list[_Size], Meta(max_length=32)]
    data: bytes


def unpacked(packed: Packed) -> Array:
    """Return the array, read-only and without a copy.

    Raises:
        BadValueError: The dtype is none of `DTYPES`, or data and shape do not fit.
    """
    dtype = DTYPES.get(packed.dtype)
    if dtype is None:
        raise BadValueError(
            Code.WRONG_TYPE, f"got another type of packed numbers, expected one of {', '.join(DTYPES)}"
        )
    expected = math.prod(packed.shape) * dtype.itemsize
    if len(packed.data) != expected:
        raise BadValueError(
            Code.WRONG_LENGTH,
            f"got {len(packed.data)} bytes of packed numbers, expected {expected} for their dtype and shape",
        )
    return np.frombuffer(packed.data, dtype).reshape(packed.shape)


def as_integers(array: Array) -> Array:
    """Return packed floats as integers where all of them are whole; anything else as it is."""
    if array.dtype.kind == "f" and bool((np.abs(array) < 2.0**63).all() and (array == np.trunc(array)).all()):
        return array.astype(np.int64)
    return array


def packed(array: Array) -> Packed:
    """Return an array in the form that msgpack may hold.

    Raises:
        KeyError: Its dtype is none of `DTYPES`, in whatever byte order.
    """
    dtype = DTYPES[array.dtype.newbyteorder("<").str]
    return Packed(dtype.str, list(array.shape), np.ascontiguousarray(array, dtype).tobytes())


def plain_array(value: Any) -> Any:
    """Return a numpy array or scalar as lists and numbers; what an encoder asks for values that it does not know.

    Raises:
        NotImplementedError: It is neither.
    """
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(type(value).__name__)


def _packed_array(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.newbyteorder("<").str in DTYPES:
        return packed(value)
    return plain_array(value)


_JSON = msgspec.json.Encoder(enc_hook=plain_array)
_MSGPACK = msgspec.msgpack.Encoder(enc_hook=_packed_array)


def to_raw(value: Any, dialect: Dialect) -> Raw:
    """Return an observation, an action, an episode or any part of one as it goes into a message.

    Args:
        value: Numbers, texts, numpy arrays and scalars, and lists, tuples and dicts of them.
        dialect: With msgpack, arrays are packed.

    Raises:
        NotImplementedError: It holds something else.
    """
    return Raw(_JSON.encode(value) if dialect is Dialect.JSON else _MSGPACK.encode(value))
