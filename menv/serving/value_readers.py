"""Reads observations, actions and rewards of messages, one or a column of them, and checks them against their space.

A `SpaceReader` tells msgspec the type of a space's elements, which checks types, lengths and keys while it decodes, and
converts what was decoded; numbers are checked as whole arrays. The result has exactly the shape and dtype of the
space, is finite and within its bounds; anything else is refused. `StepReader` reads messages within an episode, by
agent.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Container, Hashable, Iterable, Sequence, Set, Sized
from functools import cached_property
from typing import Annotated, Any

import gymnasium as gym
import msgspec
import numpy as np
from msgspec import Meta, Raw

from menv.base_env import ALL, COMMON, SINGLE_AGENT, AgentId
from menv.connectors.action_output import component_sizes
from menv.connectors.obs_preprocessor import MASK_KEY
from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.serialization import space_to_json
from menv.serving.limits import Limits
from menv.serving.protocol import DTYPES, Array, BadMessageError, ErrorCode, PackedArray, TypedDecoder
from menv.spaces import bounds, flat_mask, parts_of

_NAME = re.compile(r'[^"\\\x00-\x1f]*')

Space = gym.Space[Any]
Column = Array | list[Any]
"""R elements: an array [R, *shape] of numbers, or a list of strings or of elements of a composite space."""


class BadValueError(Exception):
    """A decoded value is invalid. `path` is its place within an element or a column, such as `[3]['camera'][1]`."""

    def __init__(self, code: ErrorCode, text: str, path: str = "") -> None:
        super().__init__(text)
        self.code, self.text, self.path = code, text, path

    def at(self, where: str) -> BadMessageError:
        """Return the error of a message, of which `where` names the part that was read."""
        return BadMessageError(self.code, f"{where}{self.path}: {self.text}")


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
_MOST_INT = 2**63 - 1
_CASTS = {"f": "fiu", "i": "iub", "u": "iub", "b": "iub"}
"""Kinds of packed numbers that are taken for each kind of dtype."""


class SpaceReader:
    """Reads elements of a space, and columns of them; this class reads a Text, a Dict or a Tuple.

    Attributes:
        kind: Type of an element, for msgspec, which checks types, lengths and keys.
        column_kind: Type of a column.
        parts: Readers of the entries of a Dict or Tuple, by key.
    """

    def __init__(self, space: Space, bounded: bool) -> None:
        self.space = space
        self.parts = [(key, _reader(part, bounded)) for key, part in parts_of(space) or ()]
        self.kind = self._kind()
        self.column_kind: Any = list[self.kind]  # type: ignore[name-defined]

    def _kind(self) -> Any:
        kinds = [part.kind for _, part in self.parts]
        if isinstance(self.space, gym.spaces.Tuple):
            return tuple.__class_getitem__(tuple(kinds))
        if isinstance(self.space, gym.spaces.Text):
            characters = "".join(map(re.escape, self.space.character_set))
            meta = Meta(
                min_length=self.space.min_length,
                max_length=self.space.max_length,
                pattern=f"^[{characters}]*$",
            )
            return Annotated[str, meta]
        if not all(isinstance(key, str) and _NAME.fullmatch(key) for key, _ in self.parts):
            raise ConfigError(
                "space Dict: a key has no form on the wire, expected a str without quotes, backslashes and control "
                "characters; name the entries of the space"
            )
        # Exactly one field for each key, whatever characters the key has.
        renamed = {f"f{i}": key for i, (key, _) in enumerate(self.parts)}
        types = list(zip(renamed, kinds, strict=True))
        return msgspec.defstruct("Element", types, rename=renamed, forbid_unknown_fields=True)

    @cached_property
    def _element(self) -> TypedDecoder:
        return TypedDecoder(self.kind)

    def read(self, raw: Raw, where: str) -> Any:
        """Return one element."""
        value = self._element.read(raw, where)
        try:
            return self.element(value)
        except BadValueError as error:
            raise error.at(where) from None

    def read_column(self, values: Any, where: str) -> Column:
        """Return the column of decoded values."""
        try:
            return self.column(values)
        except BadValueError as error:
            raise error.at(where) from None

    def element(self, value: Any) -> Any:
        """Return a decoded element as the space has it, or raise `BadValueError`."""
        if isinstance(self.space, gym.spaces.Text):
            return value
        values = value if isinstance(value, tuple) else msgspec.structs.astuple(value)
        found = [_at(key, part.element, one) for (key, part), one in zip(self.parts, values, strict=True)]
        return self._built(found)

    def _built(self, values: Sequence[Any]) -> Any:
        """Return an element of the values of its parts."""
        if isinstance(self.space, gym.spaces.Tuple):
            return tuple(values)
        return {key: value for (key, _), value in zip(self.parts, values, strict=True)}

    def column(self, values: Any) -> Column:
        """Return R decoded elements."""
        if not self.parts:
            return [_at(row, self.element, value) for row, value in enumerate(values)]
        rows = values if isinstance(self.space, gym.spaces.Tuple) else map(msgspec.structs.astuple, values)
        try:
            columns = [
                part.column(own) for (_, part), own in zip(self.parts, zip(*rows, strict=True), strict=False)
            ]
        except BadValueError:
            # Say at which row.
            return [_at(row, self.element, value) for row, value in enumerate(values)]
        return [self._built(parts) for parts in zip(*columns, strict=True)]


def _at(key: Any, read: Callable[[Any], Any], value: Any) -> Any:
    """Return an element of a part; an error says which part."""
    try:
        return read(value)
    except BadValueError as error:
        error.path = f"[{key!r}]{error.path}"
        raise


class NumberReader(SpaceReader):
    """Reads arrays of numbers, each of which, or a whole column, may be packed."""

    def __init__(self, space: Any, bounded: bool) -> None:
        dtype = self._dtype = np.dtype(space.dtype)
        low, high = bounds(space)
        self._flags = isinstance(space, gym.spaces.MultiBinary) or dtype.kind == "b"
        free = isinstance(space, gym.spaces.Box) and not (bounded or self._flags)
        if free or dtype.kind == "f":
            limit = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
            # Infinity is in no space.
            low = np.full_like(low, limit.min) if free else np.maximum(low, limit.min)
            high = np.full_like(high, limit.max) if free else np.minimum(high, limit.max)
        self._low, self._high, self._shape = low, high, low.shape
        # Numbers are read in the widest type of their kind, so that none wraps around before it is checked.
        self._wide = np.dtype(np.float64 if dtype.kind == "f" else np.int64)
        if dtype == np.uint64:
            self._wide = dtype
        super().__init__(space, bounded)
        self.column_kind = self.column_kind | PackedArray
        # Whether msgspec checks all sizes and bounds of an element.
        self._is_checked = bool(self._shape) and 0 < low.size <= _LONGEST_TUPLE and dtype.kind == "f"

    def _kind(self) -> Any:
        kind = _bounded_kind(self._dtype, self._low, self._high, self._flags)
        return kind | PackedArray if self._shape else kind

    def element(self, value: Any) -> Any:
        if isinstance(value, PackedArray):
            return self._unpacked(value, 0)
        if self._is_checked:
            return np.array(value, self._dtype)
        found = self._array([value])[0]
        # An element of a Box without axes is an array, too.
        return np.asarray(found) if isinstance(self.space, gym.spaces.Box) else found

    def column(self, values: Any) -> Column:
        if isinstance(values, PackedArray):
            return self._unpacked(values, 1)
        if self._shape and PackedArray in map(type, values):
            return np.stack([*super().column(values)])
        return self._array(values)

    def _array(self, values: Sequence[Any]) -> Array:
        flat: Iterable[Any] = values
        for _ in self._shape:
            flat = itertools.chain.from_iterable(flat)
        try:
            array = np.fromiter(flat, self._wide, len(values) * self._low.size)
        except OverflowError:
            raise BadValueError(
                ErrorCode.OUT_OF_RANGE, f"got a number out of range, expected {self._dtype}"
            ) from None
        array = array.reshape(len(values), *self._shape)
        # What else msgspec has checked.
        return (
            array.astype(self._dtype, copy=False)
            if self._low.size <= _LONGEST_TUPLE
            else self._checked(array)
        )

    def _unpacked(self, packed: PackedArray, axes: int) -> Array:
        """Return packed numbers with so many axes in front of `shape`."""
        array = unpacked(packed)
        if array.ndim != axes + len(self._shape) or array.shape[axes:] != self._shape:
            raise BadValueError(
                ErrorCode.WRONG_LENGTH,
                f"got packed numbers of shape {array.shape}, expected {'rows of ' * axes}shape {self._shape}",
            )
        if array.dtype.kind not in _CASTS[self._dtype.kind]:
            raise BadValueError(
                ErrorCode.WRONG_TYPE, f"got packed {array.dtype}, expected numbers that fit {self._dtype}"
            )
        return self._checked(array)

    def _checked(self, array: Array) -> Array:
        """Return numbers in the dtype; raise `BadValueError` if one is outside the bounds."""
        if self._dtype.kind == "f":
            with np.errstate(over="ignore"):
                array = array.astype(self._dtype, copy=False)
        # NaN and infinity are outside.
        good = (array >= self._low) & (array <= self._high)
        if np.count_nonzero(good) == good.size:
            return array.astype(self._dtype, copy=False)
        place = tuple(np.argwhere(~good)[0])
        inner = place[array.ndim - self._low.ndim :]
        raise BadValueError(
            ErrorCode.OUT_OF_RANGE,
            f"got {array[place]}, expected {self._low[inner]} to {self._high[inner]}",
            "".join(f"[{i}]" for i in place),
        )


def _bounded_kind(dtype: np.dtype[Any], low: Array, high: Array, flags: bool) -> Any:
    """Return the type of lists of numbers; it has the bounds, except of long lists whose bounds differ."""
    if low.ndim and low.size and low.size <= _LONGEST_TUPLE:
        # The garbage collector untracks tuples of numbers, but not lists.
        rows = [_bounded_kind(dtype, *ends, flags) for ends in zip(low, high, strict=True)]
        return tuple.__class_getitem__(tuple(rows))
    least, greatest = (low.min(), high.max()) if low.size else (0, 0)
    if dtype.kind == "f":
        # What rounds to a bound in the dtype is within it: less than half a spacing beyond.
        limit = float(np.finfo(dtype).max)
        with np.errstate(over="ignore"):
            beyond = [
                0.0 if dtype == np.float64 else abs(float(np.spacing(end))) / 2 for end in (least, greatest)
            ]
        least, greatest = max(float(least) - beyond[0], -limit), min(float(greatest) + beyond[1], limit)
        kind: Any = Annotated[float, Meta(ge=least, le=greatest)]
    else:
        kind = Annotated[int, Meta(ge=int(least), le=min(int(greatest), _MOST_INT))]
        kind = bool | kind if flags else int if int(greatest) > _MOST_INT else kind
    for size in reversed(low.shape):
        kind = Annotated[list[kind], Meta(min_length=size, max_length=size)]
    return kind


_NUMBERS = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)


def _reader(space: Space, bounded: bool) -> SpaceReader:
    if isinstance(space, _NUMBERS):
        return NumberReader(space, bounded)
    if isinstance(space, gym.spaces.Text | gym.spaces.Tuple | gym.spaces.Dict):
        return SpaceReader(space, bounded)
    raise ConfigError(
        f"space {type(space).__name__}: has no form on the wire, expected Box, Discrete, MultiDiscrete, MultiBinary, "
        "Text, or Tuple and Dict of these; change the space or wrap the environment"
    )


_MAX_READERS = 16_384
_readers: dict[tuple[int, bool], SpaceReader] = {}
"""By the id of the space, which the reader keeps alive."""


def reader_of(space: Space, bounded: bool = True) -> SpaceReader:
    """Return the reader of a space.

    Without `bounded` the bounds of a Box are not checked: actions sampled from a Gaussian may exceed them. Raises
    `ConfigError` if elements of the space cannot be encoded.
    """
    reader = _readers.get((id(space), bounded))
    if reader is None:
        # Bound the memory of programs that keep creating spaces.
        if len(_readers) >= _MAX_READERS:
            _readers.clear()
        reader = _readers[id(space), bounded] = _reader(space, bounded)
    return reader


def check_masks(obs: Column, space: Space, actions: Space | None, where: str, is_column: bool = True) -> None:
    """Raise `BadMessageError` if the mask of one of R observations allows no action, or no choice of a component.

    A mask is an entry of a Dict, or of each Dict in the Tuple of an agent group, see
    `menv.connectors.obs_preprocessor`.
    """
    group = isinstance(space, gym.spaces.Tuple)
    for index, member in enumerate(space.spaces if isinstance(space, gym.spaces.Tuple) else (space,)):
        if not (isinstance(member, gym.spaces.Dict) and MASK_KEY in member.spaces and len(obs)):
            continue
        part = actions
        if group:
            part = actions.spaces[index] if isinstance(actions, gym.spaces.Tuple) else None
        rows = [row[index] for row in obs] if group else obs
        mask = np.stack([flat_mask(row[MASK_KEY], part) for row in rows]) != 0
        sizes = component_sizes(part)
        begins = np.cumsum(sizes) - sizes if len(sizes) and sizes.sum() == mask.shape[1] else [0]
        allowed = np.logical_or.reduceat(mask, begins, axis=1).all(axis=1)
        if not allowed.all():
            at = f"[{int(np.argmin(allowed))}]" * is_column + f"[{index}]" * group
            raise BadMessageError(
                ErrorCode.OUT_OF_RANGE,
                f"{where}{at}[{MASK_KEY!r}]: got a mask that allows nothing, expected one action at least",
            )


LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Batches hold rewards as float32."""
Reward = Annotated[float, Meta(ge=-LARGEST_REWARD, le=LARGEST_REWARD)]
REWARDS = TypedDecoder(Reward | dict[str, Reward])
"""Reads a reward, or one for each of several agents."""


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


def known_spaces(
    spaces_of: Callable[[Any], tuple[Space, Space] | None], agent: Hashable, where: str
) -> tuple[Space, Space]:
    """Return the spaces of an agent, or raise `BadMessageError` if there is no such agent."""
    spaces = spaces_of(agent)
    if spaces is None:
        raise BadMessageError(
            ErrorCode.UNKNOWN_ID,
            f"{where}: no agent {str(agent)[:40]!r}, expected one of the environment's",
        )
    return spaces


def check_num_agents(agents: Sized, limits: Limits, where: str) -> None:
    """Raise `BadMessageError` if an episode has too many agents."""
    if len(agents) > limits.max_agents:
        raise BadMessageError(
            ErrorCode.TOO_MANY,
            f"{where}: {len(agents)} agents, expected at most {limits.max_agents} (Limits.max_agents)",
        )


def spaces_json(ioctx: InputContext) -> dict[str, Any]:
    """Return the fields of SET_CONFIG that describe spaces: of several agents those of actions that have JSON forms."""
    if not ioctx.multi_agent:
        observation, action = ioctx.spaces_of(SINGLE_AGENT)
        if observation is None or action is None:
            return {}
        return {"observation_space": space_to_json(observation), "action_space": space_to_json(action)}
    own: dict[Hashable, Any] = {}
    for agent, space in {**ioctx.action_spaces, None: ioctx.action_space}.items():
        if space is not None and isinstance(agent, str | None):
            with contextlib.suppress(ConfigError):
                own[agent] = space_to_json(space)
    shared = own.pop(None, None)
    return {"action_spaces": own or None, "action_space": shared}


_BY_AGENT = TypedDecoder(dict[str, Raw])


class StepReader:
    """Reads observations and actions."""

    def __init__(self, ioctx: InputContext, limits: Limits) -> None:
        self._multi_agent = ioctx.multi_agent
        self._limits = limits
        self._spaces_of = agent_spaces(ioctx)
        self._alone = self._spaces_of(None)

    def observations(
        self, raw: Raw, where: str, final: bool = False, gone: Container[AgentId] = ()
    ) -> dict[AgentId, Any]:
        """Return observations by agent. `where` is what errors call them.

        `final` or a name in `gone` says that no action follows, so that an action mask may allow nothing.
        """
        if not self._multi_agent:
            return {SINGLE_AGENT: self._observation(SINGLE_AGENT, raw, where, final)}
        return {
            agent: self._observation(agent, value, f"{where}[{agent[:40]!r}]", final or agent in gone)
            for agent, value in self._by_agent(raw, where).items()
        }

    def _observation(self, agent: AgentId, raw: Raw, where: str, final: bool) -> Any:
        space, actions = self._alone or known_spaces(self._spaces_of, agent, where)
        reader = reader_of(space)
        value = reader.read(raw, where)
        if reader.parts and not final:
            check_masks([value], space, actions, where, is_column=False)
        return value

    def actions(self, raw: Raw, obs: Set[AgentId], gone: Set[AgentId] = frozenset()) -> dict[AgentId, Any]:
        """Return the actions of exactly the agents that observe, `obs`; those in `gone` need none."""
        where = "LOG_ACTION.action"
        if not self._multi_agent:
            return {SINGLE_AGENT: self._action(SINGLE_AGENT, raw, where)}
        given = self._by_agent(raw, where)
        if given.keys() - gone != obs - gone:
            raise BadMessageError(
                ErrorCode.WRONG_LENGTH,
                f"{where}: actions of {len(given)} agents and observations of {len(obs)}, expected the same agents",
            )
        return {
            agent: self._action(agent, value, f"{where}[{agent[:40]!r}]")
            for agent, value in given.items()
            if agent not in gone
        }

    def _action(self, agent: AgentId, raw: Raw, where: str) -> Any:
        # Numbers of a Box may exceed its bounds.
        return reader_of(self.spaces(agent, where)[1], bounded=False).read(raw, where)

    def spaces(self, agent: AgentId, where: str) -> tuple[Space, Space]:
        """Return the spaces of an agent, or raise `BadMessageError`."""
        return self._alone or known_spaces(self._spaces_of, agent, where)

    def _by_agent(self, raw: Raw, where: str) -> dict[str, Raw]:
        found: dict[str, Raw] = _BY_AGENT.read(raw, where)
        check_num_agents(found, self._limits, where)
        return found
