"""Observations and actions from messages, one or a column of them, checked against their space.

Sessions read single elements with it, `menv.serving.wire.episodes` whole columns. What is decoded is exactly shaped, of
the dtype of the space, finite and inside the bounds, or refused. It knows no policies and no episodes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Raw

from menv.serving.wire.bad_message import BadMessageError, Code
from menv.serving.wire.bad_value import BadValueError
from menv.serving.wire.dialect import Data, Dialect, Typed, fields, listed
from menv.serving.wire.masks import MaskCheck
from menv.serving.wire.number_reader import NumberReader
from menv.serving.wire.packed import Packed
from menv.serving.wire.space_readers import Column, Space, SpaceReader, space_reader
from menv.spaces_json import space_to_json

_MOST_SPACES = 65_536
_MOST_READERS = 1024


class ColumnReader:
    """Reads columns of one kind of element.

    Args:
        reader: What an element looks like.

    Attributes:
        json: Type of a column in JSON, for msgspec.
        msgpack: The same in msgpack, where numbers may be packed together.
    """

    def __init__(self, reader: SpaceReader) -> None:
        self._reader = reader
        self.json: Any = list[reader.json]  # type: ignore[name-defined]
        rows: Any = list[reader.msgpack]  # type: ignore[name-defined]
        self.msgpack: Any = rows | Packed if isinstance(reader, NumberReader) else rows
        self._typed = Typed(self.json, self.msgpack)

    def read(self, raw: Data, dialect: Dialect, where: str) -> Column:
        """Return a column of as many elements as there are.

        Raises:
            BadMessageError: It is no column, or one of its elements cannot be taken.
        """
        return self.build(self._typed.read(raw, dialect, where), where)

    def build(self, values: Any, where: str) -> Column:
        """Return the column of decoded values.

        Raises:
            BadMessageError: One of them cannot be taken.
        """
        try:
            if isinstance(values, Packed):
                assert isinstance(self._reader, NumberReader)
                return self._reader.packed_column(values)
            return self._reader.column(values)
        except BadValueError as error:
            raise error.in_message(where) from None


class ElementReader:
    """Reads single elements and columns of one space.

    Args:
        space: Whose elements.
        bounded: Whether the bounds of a Box hold.

    Attributes:
        space: As given.
        columns: Reads columns.
        masks: Looks at the action masks in observations.

    Raises:
        ConfigError: Elements of the space have no form on the wire.
    """

    def __init__(self, space: Space, bounded: bool) -> None:
        self.space = space
        self._reader = space_reader(space, bounded)
        self._typed = Typed(self._reader.json, self._reader.msgpack)
        self.columns = ColumnReader(self._reader)
        self.masks = MaskCheck(space)

    def read(self, raw: Raw, dialect: Dialect, where: str) -> Any:
        """Return one element.

        Raises:
            BadMessageError: It is none.
        """
        value = self._typed.read(raw, dialect, where)
        try:
            return self._reader.column([value])[0]
        except BadValueError as error:
            raise error.in_message(where, is_column=False) from None


_by_id: dict[tuple[int, bool], tuple[Space, ElementReader]] = {}
_by_form: dict[tuple[str, bool], ElementReader] = {}


def reader_of(space: Space, bounded: bool = True) -> ElementReader:
    """Return the reader of a space, the same one for equal spaces: agents often have an object each.

    Raises:
        ConfigError: Elements of the space have no form on the wire.
    """
    known = _by_id.get((id(space), bounded))
    if known is not None:
        return known[1]
    # Programs that make new spaces again and again do not fill the memory.
    if len(_by_id) >= _MOST_SPACES or len(_by_form) >= _MOST_READERS:
        _by_id.clear()
        _by_form.clear()
    form = (json.dumps(space_to_json(space)), bounded)
    reader = _by_form.get(form)
    if reader is None:
        reader = _by_form[form] = ElementReader(space, bounded)
    # The space is kept, so that no other one can get the same id.
    _by_id[id(space), bounded] = (space, reader)
    return reader


def element(raw: Raw, space: Space, dialect: Dialect, where: str, bounded: bool = True) -> Any:
    """Return one element of a space.

    Args:
        raw: From a message.
        space: What it has to be an element of.
        dialect: Of the message.
        where: Begins the message of an error, such as "GET_ACTION.observation".
        bounded: Whether the bounds of a Box hold.

    Raises:
        BadMessageError: It is none.
    """
    return reader_of(space, bounded).read(raw, dialect, where)


def column(raw: Raw, space: Space, dialect: Dialect, where: str, bounded: bool = True) -> Column:
    """Return R elements of a space, as many as there are; the arguments are those of `element`.

    Raises:
        BadMessageError: One of them is none.
    """
    return reader_of(space, bounded).columns.read(raw, dialect, where)


def observation(
    raw: Raw,
    space: Space,
    dialect: Dialect,
    where: str = "observation",
    final: bool = False,
    actions: Space | None = None,
) -> Any:
    """Return one observation.

    Args:
        raw: From a message.
        space: The agent's observation space.
        dialect: Of the message.
        where: Begins the message of an error.
        final: Whether nobody acts on it, so that its action mask may allow nothing.
        actions: The agent's action space; an action mask must leave a choice for each of its components.

    Raises:
        BadMessageError: It is no element of the space, or its mask allows nothing.
    """
    reader = reader_of(space)
    value = reader.read(raw, dialect, where)
    if reader.masks and not final:
        try:
            reader.masks.check([value], 1, actions)
        except BadValueError as error:
            raise error.in_message(where, is_column=False) from None
    return value


def observations(
    raws: Sequence[Raw], spaces: tuple[Space, Space], dialect: Dialect, where: str = "observations"
) -> Column:
    """Return R observations on which somebody acts, each of a message of its own; `spaces` as in `observation`.

    Raises:
        BadMessageError: One of them is no element of the space, or its mask allows nothing.
    """
    reader = reader_of(spaces[0])
    found = reader.columns.read(listed(raws, dialect), dialect, where)
    if reader.masks:
        try:
            reader.masks.check(found, len(raws), spaces[1])
        except BadValueError as error:
            raise error.in_message(where) from None
    return found


def action(raw: Raw, space: Space, dialect: Dialect, where: str = "action") -> Any:
    """Return one action; the numbers of a Box may lie outside its bounds.

    Raises:
        BadMessageError: It is no element of the space otherwise.
    """
    return element(raw, space, dialect, where, bounded=False)


def check_mask(spaces: tuple[Space, Space], obs: Any, action: Any, where: str = "action") -> None:
    """Refuse an action that the mask of its observation forbids.

    Args:
        spaces: Observation and action space of the agent.
        obs: What it observed.
        action: What it did.
        where: Begins the message of an error.

    Raises:
        BadMessageError: It is forbidden.
    """
    masks = reader_of(spaces[0]).masks
    if masks:
        try:
            masks.check_actions([obs], [action], spaces[1])
        except BadValueError as error:
            raise error.in_message(where, is_column=False) from None


LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Batches hold rewards as float32; those within it never add up to infinity before."""
_REWARD = Typed(float | dict[str, float])


def reward(raw: Raw, dialect: Dialect, where: str = "reward") -> float | dict[str, float]:
    """Return a reward, or one for each of several agents.

    Raises:
        BadMessageError: It is neither, or not finite.
    """
    paid: float | dict[str, float] = _REWARD.read(raw, dialect, where)
    if isinstance(paid, dict):
        # Reading the entries by themselves finds an agent that is there twice.
        fields(raw, dialect, where)
    # A comparison with NaN is false, too.
    if not all(abs(one) <= LARGEST_REWARD for one in (paid.values() if isinstance(paid, dict) else (paid,))):
        raise BadMessageError(
            Code.NOT_FINITE, f"{where}: got a number that is not finite as float32, expected a finite one"
        )
    return paid
