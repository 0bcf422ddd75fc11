"""Reads observations, actions and rewards of messages, one or a column of them, and checks them against their space.

A `SpaceReader` tells msgspec the type of a space's elements, which checks types, lengths and keys while it decodes, and
converts decoded columns, whose numbers are checked as whole arrays. The result has exactly the shape and dtype of the
space, is finite and within its bounds; anything else is refused. `StepColumns` reads messages within an episode, by
agent.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence, Set
from typing import Annotated, Any, TypeAlias

import gymnasium as gym
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Raw

from menv.base_env import ALL, COMMON, SINGLE_AGENT, AgentId
from menv.connectors.action_output import component_sizes, is_discrete
from menv.connectors.obs_preprocessor import MASK_KEY
from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.serialization import space_to_json
from menv.serving.protocol import (
    DTYPES,
    Array,
    BadMessageError,
    Data,
    ErrorCode,
    PackedArray,
    TypedDecoder,
    WireFormat,
    fields,
    listed,
)
from menv.spaces import bounds, columns_of, flat_mask, leaves

_NAME = re.compile(r'[^"\\\x00-\x1f]*')

Space = gym.Space[Any]
Column = Array | list[Any]
"""R elements: an array [R, *shape] of numbers, or a list of strings or of elements of a composite space."""


class BadValueError(Exception):
    """A decoded value is invalid; the caller adds where it was.

    Attributes:
        code: The `ErrorCode`.
        text: `<what was wrong>, expected <rule>`.
        row: Index of the value in a column, None for a single value or all of them.
        path: Place within the value, such as `['camera'][1]`.
    """

    def __init__(self, code: ErrorCode, text: str, row: int | None = None, path: str = "") -> None:
        super().__init__(text)
        self.code, self.text, self.row, self.path = code, text, row, path

    def in_message(self, where: str, is_column: bool = True) -> BadMessageError:
        """Return the error with its place; `is_column` says that several values were read."""
        row = "" if self.row is None or not is_column else f"[{self.row}]"
        return BadMessageError(self.code, f"{where}{row}{self.path}: {self.text}")


def unpacked(packed: PackedArray) -> Array:
    """Return the array, read-only and without a copy; raise `BadValueError` if dtype, shape and data do not fit."""
    dtype = DTYPES.get(packed.dtype)
    if dtype is None:
        raise BadValueError(
            ErrorCode.WRONG_TYPE, f"got another type of packed numbers, expected one of {', '.join(DTYPES)}"
        )
    expected = math.prod(packed.shape) * dtype.itemsize
    if len(packed.data) != expected:
        raise BadValueError(
            ErrorCode.WRONG_LENGTH,
            f"got {len(packed.data)} bytes of packed numbers, expected {expected} for their dtype and shape",
        )
    return np.frombuffer(packed.data, dtype).reshape(packed.shape)


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
        self._limits = _limits(dtype, flags)
        least, greatest = self._limits
        self._ends = [
            np.asarray(limit, dtype) if end is None else end
            for limit, end in zip(self._limits, (low, high), strict=True)
        ]
        # NaN and infinity are outside.
        self._low, self._high = np.maximum(self._ends[0], least), np.minimum(self._ends[1], greatest)
        uniform = all(np.unique(end).size <= 1 for end in self._ends)
        if flags:
            kind: Any = bool | Annotated[int, Meta(ge=0, le=1)]
            self._checked_by_type = True
        elif dtype.kind == "f":
            # For narrower types, the type excludes NaN and overflows.
            narrow = dtype.itemsize < 8
            kind = Annotated[float, Meta(ge=least, le=greatest)] if narrow else float
            self._checked_by_type = narrow and (low is None or bool(np.isinf(self._ends).all()))
        else:
            if self._size:
                least, greatest = int(np.min(self._low)), int(np.max(self._high))
            # msgspec can bound signed 64-bit integers only; larger numbers fail in the conversion.
            signed = greatest < 2**63
            kind = Annotated[int, Meta(ge=max(least, -(2**63)), le=greatest if signed else None)]
            self._checked_by_type = signed and uniform
        for size in reversed(shape):
            kind = _several(kind, size)
        self.json: Any = kind
        self.msgpack: Any = kind | PackedArray if shape else kind

    def column(self, values: Sequence[Any] | PackedArray) -> Array:
        """Return [R, *shape] of R decoded values or of numbers packed together, or raise `BadValueError`."""
        if isinstance(values, PackedArray):
            return self._checked(self._unpacked(values, 1))
        if not self._shape or PackedArray not in map(type, values):
            array = self._read(values)
            return array if self._checked_by_type else self._checked(array)
        rows = np.empty((len(values), *self._shape), self._dtype)
        for row, value in enumerate(values):
            try:
                rows[row] = (
                    self._unpacked(value, 0) if isinstance(value, PackedArray) else self._read([value])[0]
                )
            except BadValueError as error:
                raise BadValueError(error.code, error.text, row, self._path) from None
        return self._checked(rows)

    def _read(self, values: Sequence[Any]) -> Array:
        flat: Iterable[Any] = values
        for _ in self._shape:
            flat = itertools.chain.from_iterable(flat)
        try:
            array = np.fromiter(flat, self._dtype, len(values) * self._size)
        except OverflowError:
            raise BadValueError(
                ErrorCode.OUT_OF_RANGE, f"got a number out of range, expected {self._dtype}", path=self._path
            ) from None
        return array.reshape(len(values), *self._shape)

    def _unpacked(self, packed: PackedArray, axes: int) -> Array:
        """Return packed numbers with so many axes in front of `shape`, in the dtype if only digits are lost."""
        array = unpacked(packed)
        if array.ndim != axes + len(self._shape) or array.shape[axes:] != self._shape:
            raise BadValueError(
                ErrorCode.WRONG_LENGTH,
                f"got packed numbers of shape {array.shape}, expected {'rows of ' * axes}shape {self._shape}",
            )
        if array.dtype == self._dtype:
            return array
        kind = self._dtype.kind
        if kind != "f" and array.dtype.kind == "f" and _whole(array):
            array = array.astype(np.int64)
        if array.dtype.kind not in _CASTS[kind]:
            raise BadValueError(
                ErrorCode.WRONG_TYPE, f"got packed {array.dtype}, expected numbers that fit {self._dtype}"
            )
        least, greatest = self._limits
        if kind != "f" and array.size and not least <= int(array.min()) <= int(array.max()) <= greatest:
            raise BadValueError(
                ErrorCode.OUT_OF_RANGE, f"got packed numbers that do not fit, expected {self._dtype}"
            )
        with np.errstate(over="ignore"):
            return array.astype(self._dtype)

    def _checked(self, array: Array) -> Array:
        good = (array >= self._low) & (array <= self._high)
        if np.count_nonzero(good) != good.size:
            row, *inner = place = tuple(np.argwhere(~good)[0])
            low, high = (np.broadcast_to(end, self._shape)[tuple(inner)] for end in self._ends)
            rule = f"{low} to {high}" if np.isfinite(array[place]) else f"a finite {self._dtype}"
            path = self._path + "".join(f"[{i}]" for i in inner)
            raise BadValueError(
                ErrorCode.OUT_OF_RANGE, f"got {array[place]}, expected {rule}", int(row), path
            )
        return array


def _limits(dtype: np.dtype[Any], flags: bool) -> tuple[Any, Any]:
    if flags:
        return 0, 1
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _whole(array: Array) -> bool:
    return bool((np.abs(array) < 2.0**63).all() and (array == np.trunc(array)).all())


def _several(kind: Any, size: int) -> Any:
    if size <= _LONGEST_TUPLE:
        # The garbage collector untracks tuples of numbers, but not lists.
        return tuple.__class_getitem__((kind,) * size or ((),))
    return Annotated[list[kind], Meta(min_length=size, max_length=size)]


SpaceReader: TypeAlias = "NumberReader | _TextReader | _TupleReader | _DictReader"


def space_reader(space: Space, bounded: bool = True, path: str = "") -> SpaceReader:
    """Return the reader of a Box, Discrete, MultiDiscrete, MultiBinary or Text, or of a Tuple or Dict of these.

    Without `bounded` the bounds of a Box are not checked: actions sampled from a Gaussian may exceed them. `path` is
    the place of this space in an outer one. Raises `ConfigError` if elements of the space cannot be encoded.
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
    def __init__(self, space: gym.spaces.Text, path: str) -> None:
        self.json: Any = Annotated[str, Meta(min_length=space.min_length, max_length=space.max_length)]
        self.msgpack = self.json
        self._characters, self._path = frozenset(space.character_set), path

    def column(self, values: Sequence[Any]) -> Column:
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
    def __init__(self, space: gym.spaces.Tuple[Any], bounded: bool, path: str) -> None:
        self._parts = [space_reader(part, bounded, f"{path}[{i}]") for i, part in enumerate(space.spaces)]
        self.json: Any = tuple[tuple(part.json for part in self._parts)]  # type: ignore[misc]
        self.msgpack: Any = tuple[tuple(part.msgpack for part in self._parts)]  # type: ignore[misc]

    def column(self, values: Sequence[Any]) -> Column:
        if not self._parts:
            return [()] * len(values)
        columns = (
            part.column(column) for part, column in zip(self._parts, zip(*values, strict=True), strict=False)
        )
        return list(zip(*columns, strict=True))


class _DictReader:
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
        """Return a type with exactly one field for each key, whatever characters the key has."""
        names = [f"f{i}" for i in range(len(self._keys))]
        types = [(name, getattr(part, wire_format)) for name, part in zip(names, self._parts, strict=True)]
        renamed = dict(zip(names, self._keys, strict=True))
        return msgspec.defstruct("Element", types, rename=renamed, forbid_unknown_fields=True)

    def column(self, values: Sequence[Any]) -> Column:
        if not self._parts:
            return [{} for _ in values]
        rows = zip(*map(msgspec.structs.astuple, values), strict=True)
        columns = [part.column(column) for part, column in zip(self._parts, rows, strict=False)]
        return [dict(zip(self._keys, row, strict=True)) for row in zip(*columns, strict=True)]


Mask = npt.NDArray[np.bool_]
Path: TypeAlias = tuple[int, ...]
"""Index of a member of an agent group, and of groups in it; () for an agent."""


class MaskCheck:
    """Checks action masks in the observations of one space, if it has any.

    A mask is an entry of a Dict, or of each Dict in the Tuple of an agent group, see
    `menv.connectors.obs_preprocessor`.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self._members = _paths(space)

    def check(
        self, obs: Column, acting: int, space: gym.Space[Any] | None, where: str, is_column: bool = True
    ) -> None:
        """Raise `BadMessageError` if one of the first `acting` masks allows no action, or no choice of a component."""
        for member in self._members:
            actions = _part(space, member)
            nothing = _allow_nothing(self._mask(obs[:acting], member, actions), actions)
            if nothing.any():
                raise BadValueError(
                    ErrorCode.OUT_OF_RANGE, "got a mask that allows nothing, expected one action at least",
                    int(np.argmax(nothing)), f"{_path_text(member)}[{MASK_KEY!r}]",
                ).in_message(where, is_column)  # fmt: skip

    def check_actions(
        self, obs: Column, actions: Column, space: gym.Space[Any], where: str, is_column: bool = True
    ) -> None:
        """Raise `BadMessageError` if an action is forbidden by the mask of its observation."""
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
                    ErrorCode.OUT_OF_RANGE,
                    "got an action that the mask of its observation forbids, expected an allowed one",
                    int(np.argmax(forbidden)), _path_text(member),
                ).in_message(where, is_column)  # fmt: skip

    def _mask(self, obs: Column, member: Path, actions: gym.Space[Any] | None) -> Mask:
        """Return [R, M], True where an action is allowed."""
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


def _path_text(path: Path) -> str:
    return "".join(f"[{index}]" for index in path)


def _allow_nothing(mask: Mask, space: gym.Space[Any] | None) -> Mask:
    """Return [R], True where no action, or no choice of one component, is allowed."""
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
    """Return [R, D] the mask columns of R actions; None if the mask does not fit the space."""
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


_MAX_SPACES = 65_536
_MAX_READERS = 1024


class ElementReader:
    """Reads single elements and columns of one space; `masks` checks the action masks of observations.

    Attributes:
        json: Type of a column in JSON, for msgspec.
        msgpack: The same in msgpack, where numbers may be packed together.
    """

    def __init__(self, space: Space, bounded: bool) -> None:
        self.space = space
        self.masks = MaskCheck(space)
        reader = self._reader = space_reader(space, bounded)
        self.json: Any = list[reader.json]  # type: ignore[name-defined]
        rows: Any = list[reader.msgpack]  # type: ignore[name-defined]
        self.msgpack: Any = rows | PackedArray if isinstance(reader, NumberReader) else rows
        self._element = TypedDecoder(reader.json, reader.msgpack)
        self._column = TypedDecoder(self.json, self.msgpack)

    def read(self, raw: Raw, wire_format: WireFormat, where: str) -> Any:
        """Return one element."""
        value = self._element.read(raw, wire_format, where)
        try:
            return self._reader.column([value])[0]
        except BadValueError as error:
            raise error.in_message(where, is_column=False) from None

    def read_column(self, raw: Data, wire_format: WireFormat, where: str) -> Column:
        """Return a column of any length."""
        return self.column(self._column.read(raw, wire_format, where), where)

    def column(self, values: Any, where: str) -> Column:
        """Return the column of decoded values."""
        try:
            return self._reader.column(values)
        except BadValueError as error:
            raise error.in_message(where) from None


_by_id: dict[tuple[int, bool], tuple[Space, ElementReader]] = {}
_by_form: dict[tuple[str, bool], ElementReader] = {}


def reader_of(space: Space, bounded: bool = True) -> ElementReader:
    """Return the reader of a space; equal spaces share one, because agents often have a space object each."""
    known = _by_id.get((id(space), bounded))
    if known is not None:
        return known[1]
    # Bound the memory of programs that keep creating spaces.
    if len(_by_id) >= _MAX_SPACES or len(_by_form) >= _MAX_READERS:
        _by_id.clear()
        _by_form.clear()
    form = (json.dumps(space_to_json(space)), bounded)
    reader = _by_form.get(form)
    if reader is None:
        reader = _by_form[form] = ElementReader(space, bounded)
    # Keep the space alive, so that no other object gets its id.
    _by_id[id(space), bounded] = (space, reader)
    return reader


LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Batches hold rewards as float32."""
_REWARD = TypedDecoder(float | dict[str, float])


def reward(raw: Raw, wire_format: WireFormat, where: str = "reward") -> float | dict[str, float]:
    """Return a finite reward, or one for each of several agents."""
    paid: float | dict[str, float] = _REWARD.read(raw, wire_format, where)
    if isinstance(paid, dict):
        # Finds repeated agents.
        fields(raw, wire_format, where)
    # Comparisons with NaN are False.
    if not all(abs(one) <= LARGEST_REWARD for one in (paid.values() if isinstance(paid, dict) else (paid,))):
        raise BadMessageError(
            ErrorCode.OUT_OF_RANGE,
            f"{where}: got a number that is not finite as float32, expected a finite one",
        )
    return paid


def agent_spaces(ioctx: InputContext) -> Callable[[Hashable | None], tuple[Space, Space] | None]:
    """Return a function that looks up the observation and action space of an agent; None if there is no such agent.

    Asked for None, it returns the spaces of a single-agent environment, and None in a multi-agent one.
    """
    known = frozenset(ioctx.possible_agents)

    def spaces_of(agent: Hashable | None) -> tuple[Space, Space] | None:
        if agent is None and ioctx.multi_agent:
            return None
        name = SINGLE_AGENT if agent is None else agent
        observation, action = ioctx.spaces_of(name)
        if observation is None or action is None or name in (ALL, COMMON) or (known and name not in known):
            return None
        return observation, action

    return spaces_of


def action_spaces_json(ioctx: InputContext) -> dict[str, Any]:
    """Return the action spaces in SET_CONFIG of a multi-agent environment; those without JSON form are omitted."""
    own: dict[Hashable, Any] = {}
    for agent, space in {**ioctx.action_spaces, None: ioctx.action_space}.items():
        if space is not None and isinstance(agent, str | None):
            with contextlib.suppress(ConfigError):
                own[agent] = space_to_json(space)
    shared = own.pop(None, None)
    return {"action_spaces": own or None, "action_space": shared}


class StepColumns:
    """Reads observations and actions; `max_agents` bounds the agents of one message."""

    def __init__(self, ioctx: InputContext, max_agents: int) -> None:
        self._multi_agent = ioctx.multi_agent
        self._max_agents = max_agents
        self._spaces_of = agent_spaces(ioctx)
        self._alone = self._spaces_of(None)

    def observations(
        self, raw: Raw, wire_format: WireFormat, what: str, final: bool = False, gone: Container[AgentId] = ()
    ) -> dict[AgentId, Any]:
        """Return observations by agent. `what` is the type of the message.

        `final` or a name in `gone` says that no action follows, so that an action mask may allow nothing.
        """
        where = f"{what}.observation"
        if not self._multi_agent:
            return {SINGLE_AGENT: self._observation(SINGLE_AGENT, raw, wire_format, where, final)}
        return {
            agent: self._observation(
                agent, value, wire_format, f"{where}[{agent[:40]!r}]", final or agent in gone
            )
            for agent, value in self._by_agent(raw, wire_format, where).items()
        }

    def _observation(self, agent: AgentId, raw: Raw, wire_format: WireFormat, where: str, final: bool) -> Any:
        space, actions = self.spaces(agent, where)
        reader = reader_of(space)
        value = reader.read(raw, wire_format, where)
        if not final:
            reader.masks.check([value], 1, actions, where, is_column=False)
        return value

    def column(self, raws: Sequence[Raw], wire_format: WireFormat, what: str) -> Column | None:
        """Return the observations of R messages; None in a multi-agent environment."""
        if self._multi_agent:
            return None
        where = f"{what}.observation"
        space, actions = self.spaces(SINGLE_AGENT, where)
        reader = reader_of(space)
        found = reader.read_column(listed(raws, wire_format), wire_format, where)
        reader.masks.check(found, len(raws), actions, where)
        return found

    def actions(
        self, raw: Raw, obs: Mapping[AgentId, Any], wire_format: WireFormat, gone: Set[AgentId] = frozenset()
    ) -> dict[AgentId, Any]:
        """Return the actions of exactly the agents in `obs`; those in `gone` need none."""
        where = "LOG_ACTION.action"
        if not self._multi_agent:
            return {SINGLE_AGENT: self._action(SINGLE_AGENT, raw, obs[SINGLE_AGENT], wire_format, where)}
        given = self._by_agent(raw, wire_format, where)
        if given.keys() - gone != obs.keys() - gone:
            raise BadMessageError(
                ErrorCode.WRONG_LENGTH,
                f"{where}: actions of {len(given)} agents and observations of {len(obs)}, expected the same agents",
            )
        return {
            agent: self._action(agent, value, obs[agent], wire_format, f"{where}[{agent[:40]!r}]")
            for agent, value in given.items()
            if agent not in gone
        }

    def _action(self, agent: AgentId, raw: Raw, obs: Any, wire_format: WireFormat, where: str) -> Any:
        space, actions = self.spaces(agent, where)
        # Numbers of a Box may exceed its bounds.
        chosen = reader_of(actions, bounded=False).read(raw, wire_format, where)
        reader_of(space).masks.check_actions([obs], [chosen], actions, where, is_column=False)
        return chosen

    def spaces(self, agent: AgentId, where: str) -> tuple[Space, Space]:
        """Return the spaces of an agent, or raise `BadMessageError`."""
        spaces = self._alone or self._spaces_of(agent)
        if spaces is None:
            raise BadMessageError(
                ErrorCode.UNKNOWN_ID,
                f"{where}: no agent {str(agent)[:40]!r}, expected one of the environment's",
            )
        return spaces

    def _by_agent(self, raw: Raw, wire_format: WireFormat, where: str) -> dict[str, Raw]:
        found = fields(raw, wire_format, where)
        if len(found) > self._max_agents:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"{where}: {len(found)} agents, expected at most {self._max_agents} (Limits.max_agents)",
            )
        return found
