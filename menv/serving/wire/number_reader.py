"""Arrays of numbers on the wire: the type to decode them with, and whole columns to arrays of one dtype and shape.

`space_readers` makes one for every leaf of a space that holds numbers, `episodes` those of rewards and the like.
Types and lengths are checked by msgspec while it decodes, numbers on whole arrays afterwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from menv.serving.wire.bad_message import Code
from menv.serving.wire.bad_value import BadValueError
from menv.serving.wire.packed import Array, Packed, as_integers, unpacked

_INT64 = np.iinfo(np.int64)
_LONGEST_TUPLE = 128
_CASTS = {"f": "fiu", "i": "iub", "u": "iub", "b": "iub"}
"""Kinds of packed numbers that each kind of dtype takes."""

_FEW = 16


class NumberReader:
    """Reads arrays of numbers.

    Args:
        dtype: Of what comes out.
        shape: Of one element.
        low: Least element, [*shape], None without bounds.
        high: Greatest element.
        flags: Whether true and false stand for 1 and 0.
        path: Where in an element of the whole space this lies, for messages.

    Attributes:
        json: Type of an element in JSON, for msgspec.
        msgpack: The same in msgpack, where arrays may be packed.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        shape: tuple[int, ...] = (),
        low: Array | None = None,
        high: Array | None = None,
        flags: bool = False,
        path: str = "",
    ) -> None:
        self._dtype, self._shape, self._path = dtype, shape, path
        self._size = math.prod(shape)
        self._low, self._high = low, high
        if dtype.kind == "f" and low is not None and high is not None and np.isinf([low, high]).all():
            self._low = self._high = None
        # The bounds of a few numbers are compared faster one by one than as arrays.
        self._bounds: list[tuple[Any, Any]] = []
        if self._low is not None and self._high is not None and 0 < self._size <= _FEW:
            bounds = (np.broadcast_to(bound, shape).ravel().tolist() for bound in (self._low, self._high))
            self._bounds = list(zip(*bounds, strict=True))
        # Integers between bounds that are the same everywhere need no look after they were decoded.
        self._settled = dtype.kind in "biu" and all(b is None or np.unique(b).size <= 1 for b in (low, high))
        self._widest = dtype.kind == "f" and dtype.itemsize >= 8
        kind = bool | Annotated[int, Meta(ge=0, le=1)] if flags else self._number()
        for size in reversed(shape):
            kind = _several(kind, size)
        self.json: Any = kind
        self.msgpack: Any = kind | Packed if shape else kind

    def _number(self) -> Any:
        if self._dtype.kind == "f":
            # Narrower types would overflow; of the widest, infinity and NaN are left to find.
            most = float(np.finfo(self._dtype).max)
            return float if self._widest else Annotated[float, Meta(ge=-most, le=most)]
        least, greatest = np.iinfo(self._dtype).min, np.iinfo(self._dtype).max
        if self._low is not None and self._high is not None and self._size:
            least, greatest = int(self._low.min()), int(self._high.max())
        # What msgspec can bound are 64 bits with a sign; a number beyond the dtype fails to convert.
        if greatest > _INT64.max:
            self._settled = False
            return Annotated[int, Meta(ge=max(least, _INT64.min))]
        return Annotated[int, Meta(ge=least, le=greatest)]

    def column(self, values: Sequence[Any]) -> Array:
        """Return [R, *shape] of R decoded values.

        Raises:
            BadValueError: One of them is not finite, outside the bounds, or packed wrongly.
        """
        if self._shape and Packed in map(type, values):
            return self._stacked(values)
        flat: Iterable[Any] = values
        for _ in self._shape:
            flat = itertools.chain.from_iterable(flat)
        try:
            array = np.fromiter(flat, self._dtype, len(values) * self._size)
        except OverflowError:
            raise BadValueError(
                Code.OUT_OF_RANGE, f"got a number out of range, expected {self._dtype}", path=self._path
            ) from None
        array = array.reshape(len(values), *self._shape)
        if self._widest:
            self._check_finite(array)
        if not self._settled:
            self._check_bounds(array)
        return array

    def packed_column(self, packed: Packed) -> Array:
        """Return [R, *shape] of numbers that were packed together.

        Raises:
            BadValueError: Dtype or shape is not what can be taken, or one of the numbers is not.
        """
        array = unpacked(packed)
        if array.ndim != 1 + len(self._shape) or array.shape[1:] != self._shape:
            raise BadValueError(
                Code.WRONG_LENGTH,
                f"got packed numbers of shape {array.shape}, expected one row for each of "
                f"{self._shape or 'a number'}",
            )
        return self._checked(self._cast(array))

    def _stacked(self, values: Sequence[Any]) -> Array:
        rows = np.empty((len(values), *self._shape), self._dtype)
        for row, value in enumerate(values):
            if not isinstance(value, Packed):
                rows[row] = self.column([value])[0]
                continue
            try:
                array = unpacked(value)
                if array.shape != self._shape:
                    raise BadValueError(
                        Code.WRONG_LENGTH,
                        f"got packed numbers of shape {array.shape}, expected {self._shape}",
                    )
                rows[row] = self._cast(array)
            except BadValueError as error:
                raise BadValueError(error.code, error.text, row, self._path) from None
        return self._checked(rows)

    def _cast(self, array: Array) -> Array:
        """Return packed numbers with the dtype, if that loses no more than digits."""
        if array.dtype == self._dtype:
            return array
        kind = self._dtype.kind
        if kind != "f":
            array = as_integers(array)
        if array.dtype.kind not in _CASTS[kind]:
            raise BadValueError(
                Code.WRONG_TYPE, f"got packed {array.dtype}, expected numbers that fit {self._dtype}"
            )
        if kind != "f" and array.size:
            least, greatest = (
                (0, 1) if kind == "b" else (np.iinfo(self._dtype).min, np.iinfo(self._dtype).max)
            )
            if int(array.min()) < least or int(array.max()) > greatest:
                raise BadValueError(
                    Code.OUT_OF_RANGE, f"got packed numbers that do not fit, expected {self._dtype}"
                )
        with np.errstate(over="ignore"):
            return array.astype(self._dtype)

    def _checked(self, array: Array) -> Array:
        self._check_finite(array)
        self._check_bounds(array)
        return array

    def _check_finite(self, array: Array) -> None:
        if self._dtype.kind == "f" and np.count_nonzero(np.isfinite(array)) != array.size:
            row, at = _first(~np.isfinite(array))
            raise BadValueError(
                Code.NOT_FINITE, f"got a number that is not finite as {self._dtype}, expected a finite one",
                row, self._path + at,
            )  # fmt: skip

    def _check_bounds(self, array: Array) -> None:
        if self._low is None or self._high is None:
            return
        if self._bounds and len(array) == 1:
            numbers = zip(array.ravel().tolist(), self._bounds, strict=True)
            if all(low <= number <= high for number, (low, high) in numbers):
                return
        good = (array >= self._low) & (array <= self._high)
        if np.count_nonzero(good) != good.size:
            row, at = _first(~good)
            index = tuple(np.argwhere(~good)[0])
            low, high = (np.broadcast_to(bound, self._shape)[index[1:]] for bound in (self._low, self._high))
            raise BadValueError(
                Code.OUT_OF_RANGE, f"got {array[index]}, expected {low} to {high}", row, self._path + at
            )


def _several(kind: Any, size: int) -> Any:
    if size <= _LONGEST_TUPLE:
        # The garbage collector lets go of tuples of numbers, and looks at lists again and again.
        return tuple.__class_getitem__((kind,) * size or ((),))
    return Annotated[list[kind], Meta(min_length=size, max_length=size)]


def _first(bad: Array) -> tuple[int, str]:
    """Return the row of the first True and its place within the row."""
    row, *inner = np.argwhere(bad)[0]
    return int(row), "".join(f"[{i}]" for i in inner)
