"""Observations and actions from messages, one or a column of them, checked against their space.

Sessions read single elements with it, `menv.serving.episode_messages` whole columns. What is decoded is exactly
shaped, of the dtype of the space, finite and inside the bounds, or refused. It knows no policies and no episodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Protocol, TypeAlias

import gymnasium as gym
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Raw

from menv.connectors.action_output import component_sizes, is_discrete
from menv.connectors.obs_preprocessor import MASK_KEY
from menv.errors import ConfigError
from menv.serialization import space_to_json
from menv.serving.codec import (
    Array,
    BadMessageError,
    BadValueError,
    Data,
    ErrorCode,
    PackedArray,
    TypedDecoder,
    WireFormat,
    fields,
    listed,
)
from menv.serving.number_reader import NumberReader
from menv.spaces import bounds, columns_of, flat_mask, leaves

_NAME = re.compile(r'[^"\\\x00-\x1f]*')

Space = gym.Space[Any]
Column = Array | list[Any]
"""R elements: an array [R, *shape] of a leaf of numbers, a list of texts or of elements of a composite space."""


class SpaceReader(Protocol):
    """Reads elements of one space.

    Attributes:
        json: Type of an element in JSON, for msgspec.
        msgpack: The same in msgpack.
    """

    json: Any
    msgpack: Any

    def column(self, values: Sequence[Any]) -> Column:
        """Return R decoded values as R elements."""
        ...


def space_reader(space: Space, bounded: bool = True, path: str = "") -> SpaceReader:
    """Return the reader of a space."""
    if isinstance(space, gym.spaces.Dict):
        return _DictReader(space, bounded, path)
    if isinstance(space, gym.spaces.Tuple):
        return _TupleReader(space, bounded, path)
    if isinstance(space, gym.spaces.Text):
        return _TextReader(space, path)
    if isinstance(space, gym.spaces.Discrete):
        dtype = np.dtype(space.dtype)
        low, high = (np.asarray(end, dtype) for end in (space.start, int(space.start) + int(space.n) - 1))
        return NumberReader(dtype, (), low, high, path=path)
    if isinstance(space, gym.spaces.Box | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        free = isinstance(space, gym.spaces.Box) and not bounded
        least, greatest = (None, None) if free else bounds(space)
        dtype = np.dtype(space.dtype)
        flags = isinstance(space, gym.spaces.MultiBinary) or dtype.kind == "b"
        return NumberReader(dtype, tuple(space.shape), least, greatest, flags, path)
    raise ConfigError(
        f"space {type(space).__name__}: has no form on the wire, expected Box, Discrete, MultiDiscrete, MultiBinary, "
        "Text, or Tuple and Dict of these; change the space or wrap the environment"
    )


class _TextReader:
    """Reads texts of a length and of some characters."""

    def __init__(self, space: gym.spaces.Text, path: str) -> None:
        self.json: Any = Annotated[str, Meta(min_length=space.min_length, max_length=space.max_length)]
        self.msgpack = self.json
        self._characters, self._path = frozenset(space.character_set), path

    def column(self, values: Sequence[Any]) -> Column:
        """Return the texts as they are."""
        for row, value in enumerate(values):
            if not self._characters.issuperset(value):
                raise BadValueError(
                    ErrorCode.OUT_OF_RANGE,
                    "got other characters, expected those of the space",
                    row,
                    self._path,
                )
        return list(values)


class _TupleReader:
    """Reads tuples, part by part."""

    def __init__(self, space: gym.spaces.Tuple[Any], bounded: bool, path: str) -> None:
        self._parts = [space_reader(part, bounded, f"{path}[{i}]") for i, part in enumerate(space.spaces)]
        self.json: Any = tuple[tuple(part.json for part in self._parts)]  # type: ignore[misc]
        self.msgpack: Any = tuple[tuple(part.msgpack for part in self._parts)]  # type: ignore[misc]

    def column(self, values: Sequence[Any]) -> Column:
        """Return a list of tuples."""
        if not self._parts:
            return [()] * len(values)
        columns = (
            part.column(column) for part, column in zip(self._parts, zip(*values, strict=True), strict=False)
        )
        return list(zip(*columns, strict=True))


class _DictReader:
    """Reads dicts, entry by entry."""

    def __init__(self, space: gym.spaces.Dict, bounded: bool, path: str) -> None:
        self._keys = list(space.spaces)
        if not all(isinstance(key, str) and _NAME.fullmatch(key) for key in self._keys):
            raise ConfigError(
                "space Dict: a key has no form on the wire, expected a str without quotes, backslashes and control "
                "characters; name the entries of the space"
            )
        self._parts = [space_reader(part, bounded, f"{path}[{key!r}]") for key, part in space.spaces.items()]
        self.json = self._struct("json")
        self.msgpack = self._struct("msgpack")

    def _struct(self, wire_format: str) -> Any:
        """Return a type with an entry for each key, whatever characters the key has, and no others."""
        names = [f"f{i}" for i in range(len(self._keys))]
        types = [(name, getattr(part, wire_format)) for name, part in zip(names, self._parts, strict=True)]
        renamed = dict(zip(names, self._keys, strict=True))
        return msgspec.defstruct("Element", types, rename=renamed, forbid_unknown_fields=True)

    def column(self, values: Sequence[Any]) -> Column:
        """Return a list of dicts."""
        if not self._parts:
            return [{} for _ in values]
        rows = zip(*map(msgspec.structs.astuple, values), strict=True)
        columns = [part.column(column) for part, column in zip(self._parts, rows, strict=False)]
        return [dict(zip(self._keys, row, strict=True)) for row in zip(*columns, strict=True)]


Mask = npt.NDArray[np.bool_]
Path: TypeAlias = tuple[int, ...]
"""Which member of a group, of a group in it, and so on; () of an agent."""


class MaskCheck:
    """Looks at the masks in observations of one space; false if it has none."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self._members = _paths(space)

    def __bool__(self) -> bool:
        return bool(self._members)

    def check(self, obs: Column, acting: int, space: gym.Space[Any] | None = None) -> None:
        """Check that the masks of the first observations each allow something."""
        for member in self._members:
            actions = _part(space, member)
            nothing = _allow_nothing(self._mask(obs[:acting], member, actions), actions)
            if nothing.any():
                raise BadValueError(
                    ErrorCode.MASKED, "got a mask that allows nothing, expected one action at least",
                    int(np.argmax(nothing)), f"{_written(member)}[{MASK_KEY!r}]",
                )  # fmt: skip

    def check_actions(self, obs: Column, actions: Column, space: gym.Space[Any]) -> None:
        """Check that actions were allowed by the masks of the observations that they answer."""
        for member in self._members:
            part = _part(space, member)
            if part is None or not len(actions):
                continue
            mask = self._mask(obs[: len(actions)], member, part)
            done = _at(actions, member)
            columns = _columns(done, part, mask.shape[1])
            if columns is None:
                continue
            forbidden = ~np.take_along_axis(mask, columns, axis=1).all(axis=1)
            if forbidden.any():
                raise BadValueError(
                    ErrorCode.MASKED, "got an action that the mask of its observation forbids, expected an allowed one",
                    int(np.argmax(forbidden)), _written(member),
                )  # fmt: skip

    def _mask(self, obs: Column, member: Path, actions: gym.Space[Any] | None) -> Mask:
        """Return [R, M] True where an action is allowed."""
        holders = _at(obs, member)
        if not len(holders):
            return np.ones((0, 1), np.bool_)
        mask: Mask = np.stack([flat_mask(row[MASK_KEY], actions) for row in holders]) != 0
        return mask


def _paths(space: gym.Space[Any]) -> list[Path]:
    if isinstance(space, gym.spaces.Tuple):
        return [(i, *path) for i, part in enumerate(space.spaces) for path in _paths(part)]
    return [()] if isinstance(space, gym.spaces.Dict) and MASK_KEY in space.spaces else []


def _at(rows: Column, path: Path) -> Column:
    for index in path:
        rows = [row[index] for row in rows]
    return rows


def _written(path: Path) -> str:
    return "".join(f"[{index}]" for index in path)


def _allow_nothing(mask: Mask, space: gym.Space[Any] | None) -> Mask:
    """Return [R] True where no action is left, or no choice of one of its components."""
    sizes = component_sizes(space)
    if len(sizes) < 2 or sizes.sum() != mask.shape[1]:
        return np.logical_not(mask.any(axis=1))
    return np.logical_not(np.logical_or.reduceat(mask, np.cumsum(sizes) - sizes, axis=1).all(axis=1))


def _part(space: gym.Space[Any] | None, member: Path) -> gym.Space[Any] | None:
    for index in member:
        if not isinstance(space, gym.spaces.Tuple) or index >= len(space.spaces):
            return None
        space = space.spaces[index]
    return space


def _columns(actions: Column, space: gym.Space[Any], width: int) -> npt.NDArray[np.int64] | None:
    """Return [R, D] the columns of a mask that stand for R actions; None if it is no mask for this space."""
    sizes = component_sizes(space)
    if not len(sizes) or sizes.sum() != width:
        return None
    digits = [
        np.asarray(column, np.int64).reshape(len(actions), -1) - np.ravel(leaf.start)
        for leaf, column in zip(leaves(space), columns_of(space, actions), strict=True)
        if is_discrete(leaf)
    ]
    columns: npt.NDArray[np.int64] = np.concatenate(digits, 1) + np.cumsum(sizes) - sizes
    return columns


_MOST_SPACES = 65_536
_MOST_READERS = 1024


class ColumnReader:
    """Reads columns of one kind of element.

    Attributes:
        json: Type of a column in JSON, for msgspec.
        msgpack: The same in msgpack, where numbers may be packed together.
    """

    def __init__(self, reader: SpaceReader) -> None:
        self._reader = reader
        self.json: Any = list[reader.json]  # type: ignore[name-defined]
        rows: Any = list[reader.msgpack]  # type: ignore[name-defined]
        self.msgpack: Any = rows | PackedArray if isinstance(reader, NumberReader) else rows
        self._typed = TypedDecoder(self.json, self.msgpack)

    def read(self, raw: Data, wire_format: WireFormat, where: str) -> Column:
        """Return a column of as many elements as there are."""
        return self.build(self._typed.read(raw, wire_format, where), where)

    def build(self, values: Any, where: str) -> Column:
        """Return the column of decoded values."""
        try:
            if isinstance(values, PackedArray):
                assert isinstance(self._reader, NumberReader)
                return self._reader.packed_column(values)
            return self._reader.column(values)
        except BadValueError as error:
            raise error.in_message(where) from None


class ElementReader:
    """Reads single elements and columns of one space.

    Attributes:
        space: As given.
        columns: Reads columns.
        masks: Looks at the action masks in observations.
    """

    def __init__(self, space: Space, bounded: bool) -> None:
        self.space = space
        self._reader = space_reader(space, bounded)
        self._typed = TypedDecoder(self._reader.json, self._reader.msgpack)
        self.columns = ColumnReader(self._reader)
        self.masks = MaskCheck(space)

    def read(self, raw: Raw, wire_format: WireFormat, where: str) -> Any:
        """Return one element."""
        value = self._typed.read(raw, wire_format, where)
        try:
            return self._reader.column([value])[0]
        except BadValueError as error:
            raise error.in_message(where, is_column=False) from None


_by_id: dict[tuple[int, bool], tuple[Space, ElementReader]] = {}
_by_form: dict[tuple[str, bool], ElementReader] = {}


def reader_of(space: Space, bounded: bool = True) -> ElementReader:
    """Return the reader of a space, the same one for equal spaces: agents often have an object each."""
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


def element(raw: Raw, space: Space, wire_format: WireFormat, where: str, bounded: bool = True) -> Any:
    """Return one element of a space."""
    return reader_of(space, bounded).read(raw, wire_format, where)


def column(raw: Raw, space: Space, wire_format: WireFormat, where: str, bounded: bool = True) -> Column:
    """Return R elements of a space, as many as there are; the arguments are those of `element`."""
    return reader_of(space, bounded).columns.read(raw, wire_format, where)


def observation(
    raw: Raw,
    space: Space,
    wire_format: WireFormat,
    where: str = "observation",
    final: bool = False,
    actions: Space | None = None,
) -> Any:
    """Return one observation."""
    reader = reader_of(space)
    value = reader.read(raw, wire_format, where)
    if reader.masks and not final:
        try:
            reader.masks.check([value], 1, actions)
        except BadValueError as error:
            raise error.in_message(where, is_column=False) from None
    return value


def observations(
    raws: Sequence[Raw], spaces: tuple[Space, Space], wire_format: WireFormat, where: str = "observations"
) -> Column:
    """Return R observations on which somebody acts, each of a message of its own; `spaces` as in `observation`."""
    reader = reader_of(spaces[0])
    found = reader.columns.read(listed(raws, wire_format), wire_format, where)
    if reader.masks:
        try:
            reader.masks.check(found, len(raws), spaces[1])
        except BadValueError as error:
            raise error.in_message(where) from None
    return found


def action(raw: Raw, space: Space, wire_format: WireFormat, where: str = "action") -> Any:
    """Return one action; the numbers of a Box may lie outside its bounds."""
    return element(raw, space, wire_format, where, bounded=False)


def check_mask(spaces: tuple[Space, Space], obs: Any, action: Any, where: str = "action") -> None:
    """Refuse an action that the mask of its observation forbids."""
    masks = reader_of(spaces[0]).masks
    if masks:
        try:
            masks.check_actions([obs], [action], spaces[1])
        except BadValueError as error:
            raise error.in_message(where, is_column=False) from None


LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Batches hold rewards as float32; those within it never add up to infinity before."""
_REWARD = TypedDecoder(float | dict[str, float])


def reward(raw: Raw, wire_format: WireFormat, where: str = "reward") -> float | dict[str, float]:
    """Return a reward, or one for each of several agents."""
    paid: float | dict[str, float] = _REWARD.read(raw, wire_format, where)
    if isinstance(paid, dict):
        # Reading the entries by themselves finds an agent that is there twice.
        fields(raw, wire_format, where)
    # A comparison with NaN is false, too.
    if not all(abs(one) <= LARGEST_REWARD for one in (paid.values() if isinstance(paid, dict) else (paid,))):
        raise BadMessageError(
            ErrorCode.NOT_FINITE,
            f"{where}: got a number that is not finite as float32, expected a finite one",
        )
    return paid
