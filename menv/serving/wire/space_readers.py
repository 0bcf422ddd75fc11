"""What elements of each space look like on the wire, and decoded values to elements of the space.

`menv.serving.wire.columns` asks for one reader a space. A reader tells msgspec the type to decode with, which holds
all lengths and keys; what is left to check is done on whole columns. Nothing here knows messages or episodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import gymnasium as gym
import msgspec
import numpy as np
from msgspec import Meta

from menv.errors import ConfigError
from menv.serving.wire.bad_message import Code
from menv.serving.wire.bad_value import BadValueError
from menv.serving.wire.number_reader import NumberReader
from menv.serving.wire.packed import Array
from menv.spaces import bounds

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
        """Return R decoded values as R elements.

        Raises:
            BadValueError: One of them is no element of the space.
        """
        ...


def space_reader(space: Space, bounded: bool = True, path: str = "") -> SpaceReader:
    """Return the reader of a space.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, Text, or Tuple and Dict of these.
        bounded: Whether the bounds of a Box hold. They do not for actions: who draws them from a Gaussian may
            leave them.
        path: Where in an element this space lies.

    Raises:
        ConfigError: Elements of the space have no form on the wire.
    """
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
                    Code.OUT_OF_RANGE, "got other characters, expected those of the space", row, self._path
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

    def _struct(self, dialect: str) -> Any:
        """Return a type with an entry for each key, whatever characters the key has, and no others."""
        names = [f"f{i}" for i in range(len(self._keys))]
        types = [(name, getattr(part, dialect)) for name, part in zip(names, self._parts, strict=True)]
        renamed = dict(zip(names, self._keys, strict=True))
        return msgspec.defstruct("Element", types, rename=renamed, forbid_unknown_fields=True)

    def column(self, values: Sequence[Any]) -> Column:
        """Return a list of dicts."""
        if not self._parts:
            return [{} for _ in values]
        rows = zip(*map(msgspec.structs.astuple, values), strict=True)
        columns = [part.column(column) for part, column in zip(self._parts, rows, strict=False)]
        return [dict(zip(self._keys, row, strict=True)) for row in zip(*columns, strict=True)]
