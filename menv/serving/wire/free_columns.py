"""Columns that no space tells of: log-probabilities, inputs of distributions, states of networks, times.

`menv.serving.wire.episodes` reads them. It knows that they are finite numbers, one row a step, and times one more, and
nothing of what they are for.
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from menv.serving.wire.bad_message import BadMessageError, Code
from menv.serving.wire.bad_value import BadValueError
from menv.serving.wire.packed import Array, Packed, as_integers, unpacked

Floats = npt.NDArray[np.float32]

ROWS = list[tuple[float, ...]]
"""Type of rows, for msgspec."""
NUMBERS_OR_ROWS = list[float | tuple[float, ...]]
"""Type of numbers, or of rows of them."""
_LEAST_LOGP_OVER = 1e-4
"""How far above 0 rounding may bring the log-probability of a choice."""
_LATEST = 2**31 - 1
TIMES = list[Annotated[int, Meta(ge=0, le=_LATEST)]]
"""Type of env steps of an episode."""


def matrix(values: Array | Packed | list[Any], where: str, rows: int) -> Floats:
    """Return [rows, K] of rows that are all equally long.

    Args:
        values: Decoded `ROWS`, or packed ones.
        where: Begins the message of an error.
        rows: How many there should be.

    Raises:
        BadMessageError: They are not, there is another number of them, or a number is not finite.
    """
    return _finite(_of_length(values, where, rows, (2,), "rows"), where)


def rows_within(dimensions: int) -> Any:
    """Return the type of rows, for msgspec, whose numbers may lie within lists of so many dimensions."""
    row: Any = tuple[float, ...]
    for _ in range(dimensions):
        row = tuple.__class_getitem__((float | row, ...))
    return list.__class_getitem__(row)


def gaussian(values: Packed | list[Any], where: str, rows: int, shape: tuple[int, ...]) -> Floats:
    """Return [rows, 2 * size] of means and then logarithms of standard deviations.

    Args:
        values: Flat rows in this order, or of shape [rows, *shape, 2], [rows, 2, *shape], or that of actions with a
            last dimension twice as long.
        where: Begins the message of an error.
        rows: How many there should be.
        shape: Of one action.

    Raises:
        BadMessageError: They are of another shape, there is another number of them, or a number is not finite.
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
                Code.WRONG_LENGTH,
                f"{where}: got shape {array.shape}, expected {rows} rows of {size} numbers or of shape {(*shape, 2)}",
            )
        array = array.reshape(len(array), -1)
    return matrix(array, where, rows)


def refuse_positive(logp: Floats, where: str) -> None:
    """Refuse log-probabilities of choices above 0.

    Raises:
        BadMessageError: One is.
    """
    if len(logp) and logp.max() > _LEAST_LOGP_OVER:
        row = int(np.argmax(logp > _LEAST_LOGP_OVER))
        raise BadMessageError(
            Code.OUT_OF_RANGE,
            f"{where}[{row}]: got {logp[row]:g}, expected at most 0, the logarithm of a probability",
        )


def log_probabilities(values: Packed | list[Any], where: str, rows: int) -> Floats:
    """Return [rows] log-probabilities; where there is one for each dimension of an action, they are added up.

    Args:
        values: Decoded `NUMBERS_OR_ROWS`, or packed ones.
        where: Begins the message of an error.
        rows: How many there should be.

    Raises:
        BadMessageError: They are no numbers or rows, there is another number of them, or one is not finite.
    """
    array = _of_length(values, where, rows, (1, 2), "numbers")
    return _finite(array if array.ndim == 1 else array.sum(axis=1, dtype=np.float64), where)


def _of_length(
    values: Array | Packed | list[Any], where: str, rows: int, dimensions: tuple[int, ...], expected: str
) -> Array:
    """Return an array of one of these numbers of dimensions, as long as there are rows."""
    array = values if isinstance(values, np.ndarray) else _array(values, where)
    if array.ndim not in dimensions or len(array) != rows:
        raise BadMessageError(
            Code.WRONG_LENGTH,
            f"{where}: got shape {array.shape}, expected {rows} {expected}, one for each action",
        )
    return array


def times(values: Packed | list[int], where: str, rows: int) -> npt.NDArray[np.int64]:
    """Return [rows + 1] env steps of an episode, none earlier than the one before.

    Args:
        values: Decoded `TIMES`, or packed ones.
        where: Begins the message of an error.
        rows: How many actions there are.

    Raises:
        BadMessageError: They are not, or there is another number of them.
    """
    if isinstance(values, Packed):
        try:
            array = as_integers(unpacked(values))
        except BadValueError as error:
            raise error.in_message(where) from None
        if array.dtype.kind not in "iu":
            raise BadMessageError(Code.WRONG_TYPE, f"{where}: got packed {array.dtype}, expected integers")
    else:
        array = np.array(values, np.int64)
    if array.shape != (rows + 1,):
        raise BadMessageError(
            Code.WRONG_LENGTH,
            f"{where}: got shape {array.shape}, expected {rows + 1} env steps, one for each observation",
        )
    if array[0] < 0 or array[-1] > _LATEST or (array[1:] < array[:-1]).any():
        raise BadMessageError(
            Code.OUT_OF_RANGE,
            f"{where}: expected env steps from 0 to 2**31 - 1, none earlier than the one before",
        )
    return array.astype(np.int64)


def _array(values: Packed | list[Any], where: str) -> Array:
    """Return numbers as an array; no rows at all have two dimensions."""
    if isinstance(values, Packed):
        try:
            array = unpacked(values)
        except BadValueError as error:
            raise error.in_message(where) from None
        if array.dtype.kind != "f":
            raise BadMessageError(Code.WRONG_TYPE, f"{where}: got packed {array.dtype}, expected <f4 or <f8")
        return array
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.fromiter(values, np.float64, len(values))
    widths = set(map(len, values)) if float not in kinds else {-1}
    if len(widths) > 1 or -1 in widths:
        raise BadMessageError(Code.WRONG_LENGTH, f"{where}: got rows of several lengths, expected one length")
    width = widths.pop() if widths else 0
    try:
        flat = np.fromiter(itertools.chain.from_iterable(values), np.float64, len(values) * width)
        return flat.reshape(len(values), width)
    except (TypeError, ValueError):
        # There are rows within rows.
        pass
    try:
        return np.array(values, np.float64)
    except ValueError:
        raise BadMessageError(
            Code.WRONG_LENGTH, f"{where}: got rows of several shapes, expected one shape"
        ) from None


def _finite(array: Array, where: str) -> Floats:
    with np.errstate(over="ignore"):
        floats = array.astype(np.float32)
    if np.count_nonzero(np.isfinite(floats)) != floats.size:
        row = int(np.argwhere(~np.isfinite(floats))[0][0])
        raise BadMessageError(
            Code.NOT_FINITE,
            f"{where}[{row}]: got a number that is not finite as float32, expected a finite one",
        )
    return floats
