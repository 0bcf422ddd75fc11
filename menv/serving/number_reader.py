"""Numbers in messages: the msgspec type to decode them with, and columns of decoded values as numpy arrays.

`NumberReader` reads the numeric leaves of spaces. The functions below read the columns of episodes that no space
describes: log-probabilities, distribution inputs, hidden states and env steps. msgspec checks types and lengths while
it decodes; values are checked on whole arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from menv.serving.codec import (
    Array,
    BadMessageError,
    BadValueError,
    ErrorCode,
    PackedArray,
    as_integers,
    unpacked,
)

_INT64 = np.iinfo(np.int64)
_LONGEST_TUPLE = 128
_CASTS = {"f": "fiu", "i": "iub", "u": "iub", "b": "iub"}
"""Kinds of packed numbers that can be cast to each kind of dtype."""


class NumberReader:
    """Reads arrays of numbers of one dtype and shape.

    `low` and `high` are bounds [*shape] or None. `flags` allows true and false for 1 and 0. `path` is the place of
    this leaf in the space.

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
        # Integers with the same bounds everywhere are checked by msgspec.
        self._checked_by_type = dtype.kind in "biu" and all(
            b is None or np.unique(b).size <= 1 for b in (low, high)
        )
        self._is_float64 = dtype.kind == "f" and dtype.itemsize >= 8
        kind = bool | Annotated[int, Meta(ge=0, le=1)] if flags else self._number()
        for size in reversed(shape):
            kind = _several(kind, size)
        self.json: Any = kind
        self.msgpack: Any = kind | PackedArray if shape else kind

    def _number(self) -> Any:
        if self._dtype.kind == "f":
            # Bounds exclude overflows of narrower types; for float64 NaN and infinity are checked later.
            most = float(np.finfo(self._dtype).max)
            return float if self._is_float64 else Annotated[float, Meta(ge=-most, le=most)]
        least, greatest = np.iinfo(self._dtype).min, np.iinfo(self._dtype).max
        if self._low is not None and self._high is not None and self._size:
            least, greatest = int(self._low.min()), int(self._high.max())
        # msgspec can bound signed 64-bit integers only; larger numbers fail in the conversion.
        if greatest > _INT64.max:
            self._checked_by_type = False
            return Annotated[int, Meta(ge=max(least, _INT64.min))]
        return Annotated[int, Meta(ge=least, le=greatest)]

    def column(self, values: Sequence[Any]) -> Array:
        """Return [R, *shape] of R decoded values, or raise `BadValueError`."""
        if self._shape and PackedArray in map(type, values):
            return self._stacked(values)
        flat: Iterable[Any] = values
        for _ in self._shape:
            flat = itertools.chain.from_iterable(flat)
        try:
            array = np.fromiter(flat, self._dtype, len(values) * self._size)
        except OverflowError:
            raise BadValueError(
                ErrorCode.OUT_OF_RANGE, f"got a number out of range, expected {self._dtype}", path=self._path
            ) from None
        array = array.reshape(len(values), *self._shape)
        if self._is_float64:
            self._check_finite(array)
        if not self._checked_by_type:
            self._check_bounds(array)
        return array

    def packed_column(self, packed: PackedArray) -> Array:
        """Return [R, *shape] of numbers that were packed together."""
        array = unpacked(packed)
        if array.ndim != 1 + len(self._shape) or array.shape[1:] != self._shape:
            raise BadValueError(
                ErrorCode.WRONG_LENGTH,
                f"got packed numbers of shape {array.shape}, expected one row for each of "
                f"{self._shape or 'a number'}",
            )
        return self._checked(self._cast(array))

    def _stacked(self, values: Sequence[Any]) -> Array:
        rows = np.empty((len(values), *self._shape), self._dtype)
        for row, value in enumerate(values):
            if not isinstance(value, PackedArray):
                rows[row] = self.column([value])[0]
                continue
            try:
                array = unpacked(value)
                if array.shape != self._shape:
                    raise BadValueError(
                        ErrorCode.WRONG_LENGTH,
                        f"got packed numbers of shape {array.shape}, expected {self._shape}",
                    )
                rows[row] = self._cast(array)
            except BadValueError as error:
                raise BadValueError(error.code, error.text, row, self._path) from None
        return self._checked(rows)

    def _cast(self, array: Array) -> Array:
        """Convert packed numbers to the dtype, if only digits are lost."""
        if array.dtype == self._dtype:
            return array
        kind = self._dtype.kind
        if kind != "f":
            array = as_integers(array)
        if array.dtype.kind not in _CASTS[kind]:
            raise BadValueError(
                ErrorCode.WRONG_TYPE, f"got packed {array.dtype}, expected numbers that fit {self._dtype}"
            )
        if kind != "f" and array.size:
            least, greatest = (
                (0, 1) if kind == "b" else (np.iinfo(self._dtype).min, np.iinfo(self._dtype).max)
            )
            if int(array.min()) < least or int(array.max()) > greatest:
                raise BadValueError(
                    ErrorCode.OUT_OF_RANGE, f"got packed numbers that do not fit, expected {self._dtype}"
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
                ErrorCode.OUT_OF_RANGE, f"got a number that is not finite as {self._dtype}, expected a finite one",
                row, self._path + at,
            )  # fmt: skip

    def _check_bounds(self, array: Array) -> None:
        if self._low is None or self._high is None:
            return
        good = (array >= self._low) & (array <= self._high)
        if np.count_nonzero(good) != good.size:
            row, at = _first(~good)
            index = tuple(np.argwhere(~good)[0])
            low, high = (np.broadcast_to(bound, self._shape)[index[1:]] for bound in (self._low, self._high))
            raise BadValueError(
                ErrorCode.OUT_OF_RANGE, f"got {array[index]}, expected {low} to {high}", row, self._path + at
            )


def _several(kind: Any, size: int) -> Any:
    if size <= _LONGEST_TUPLE:
        # The garbage collector untracks tuples of numbers, but not lists.
        return tuple.__class_getitem__((kind,) * size or ((),))
    return Annotated[list[kind], Meta(min_length=size, max_length=size)]


def _first(bad: Array) -> tuple[int, str]:
    """Return the row of the first True and its place within the row."""
    row, *inner = np.argwhere(bad)[0]
    return int(row), "".join(f"[{i}]" for i in inner)


Floats = npt.NDArray[np.float32]

ROWS = list[tuple[float, ...]]
"""msgspec type of rows."""
NUMBERS_OR_ROWS = list[float | tuple[float, ...]]
"""msgspec type of numbers, or of rows of them."""
_LOGP_TOLERANCE = 1e-4
"""Rounding may lift the log-probability of a discrete action this far above 0."""


def matrix(values: Array | PackedArray | list[Any], where: str, rows: int) -> Floats:
    """Return [rows, K] of decoded `ROWS` or a packed array."""
    return _finite(_of_length(values, where, rows, (2,), "rows"), where)


def rows_within(dimensions: int) -> Any:
    """Return the msgspec type of rows whose numbers may be nested in this many dimensions."""
    row: Any = tuple[float, ...]
    for _ in range(dimensions):
        row = tuple.__class_getitem__((float | row, ...))
    return list.__class_getitem__(row)


def gaussian(values: PackedArray | list[Any], where: str, rows: int, shape: tuple[int, ...]) -> Floats:
    """Return [rows, 2 * size] of means, followed by logarithms of standard deviations.

    Args:
        values: Flat rows in this order, or of shape [rows, *shape, 2], [rows, 2, *shape], or [rows, *shape] with a
            last dimension twice as long.
        where: Begins the text of an error.
        rows: The number of rows.
        shape: Shape of one action.
    """
    array = _array(values, where)
    if array.ndim > 2:
        if array.shape[1:] == (*shape, 2):
            array = np.moveaxis(array, -1, 1)
        elif array.shape[1:] == (*shape[:-1], 2 * shape[-1]):
            array = np.stack(np.split(array, 2, -1), 1)
        elif array.shape[1:] != (2, *shape):
            size = 2 * math.prod(shape)
            raise BadMessageError(
                ErrorCode.WRONG_LENGTH,
                f"{where}: got shape {array.shape}, expected {rows} rows of {size} numbers or of shape {(*shape, 2)}",
            )
        array = array.reshape(len(array), -1)
    return matrix(array, where, rows)


def refuse_positive(logp: Floats, where: str) -> None:
    """Refuse log-probabilities above 0."""
    if len(logp) and logp.max() > _LOGP_TOLERANCE:
        row = int(np.argmax(logp > _LOGP_TOLERANCE))
        raise BadMessageError(
            ErrorCode.OUT_OF_RANGE,
            f"{where}[{row}]: got {logp[row]:g}, expected at most 0, the logarithm of a probability",
        )


def log_probabilities(values: PackedArray | list[Any], where: str, rows: int) -> Floats:
    """Return [rows] log-probabilities; if there is one for each dimension of an action, their sums."""
    array = _of_length(values, where, rows, (1, 2), "numbers")
    return _finite(array if array.ndim == 1 else array.sum(axis=1, dtype=np.float64), where)


def _of_length(
    values: Array | PackedArray | list[Any], where: str, rows: int, dimensions: tuple[int, ...], expected: str
) -> Array:
    """Return an array with `rows` rows and one of these numbers of dimensions."""
    array = values if isinstance(values, np.ndarray) else _array(values, where)
    if array.ndim not in dimensions or len(array) != rows:
        raise BadMessageError(
            ErrorCode.WRONG_LENGTH,
            f"{where}: got shape {array.shape}, expected {rows} {expected}, one for each action",
        )
    return array


def _array(values: PackedArray | list[Any], where: str) -> Array:
    """Return numbers as an array; an empty list has two dimensions."""
    if isinstance(values, PackedArray):
        try:
            array = unpacked(values)
        except BadValueError as error:
            raise error.in_message(where) from None
        if array.dtype.kind != "f":
            raise BadMessageError(
                ErrorCode.WRONG_TYPE, f"{where}: got packed {array.dtype}, expected <f4 or <f8"
            )
        return array
    try:
        array = np.array(values, np.float64)
    except ValueError:
        raise BadMessageError(
            ErrorCode.WRONG_LENGTH, f"{where}: got rows of several lengths, expected one length"
        ) from None
    return array if len(values) else array.reshape(0, 0)


def _finite(array: Array, where: str) -> Floats:
    with np.errstate(over="ignore"):
        floats = array.astype(np.float32)
    if np.count_nonzero(np.isfinite(floats)) != floats.size:
        row = int(np.argwhere(~np.isfinite(floats))[0][0])
        raise BadMessageError(
            ErrorCode.OUT_OF_RANGE,
            f"{where}[{row}]: got a number that is not finite as float32, expected a finite one",
        )
    return floats
