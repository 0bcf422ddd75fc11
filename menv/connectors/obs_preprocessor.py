"""ObsPreprocessor: raw observations of a space to the flat rows, and the action masks, that a network reads.

One-hot for Discrete and MultiDiscrete, flattening for Box, leaf after leaf for Dict and Tuple, as float32. A uint8 Box
of three dimensions, an image, stays bytes if there is nothing else but a mask. A Dict's `"action_mask"` becomes the
mask; for a group of agents, a Tuple of such Dicts or Tuples, it is the masks of the members. It works on whole batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import NestedRows
from menv.connectors.action_output import component_sizes
from menv.connectors.connector import (
    MASK,
    AgentConnector,
    AgentConnectorDataType,
    AgentRows,
    ByArguments,
    columns_of,
    is_final,
    single,
)
from menv.errors import ConfigError
from menv.sample_batch import SampleBatch
from menv.spaces import (
    Array,
    OutsideSpaceError,
    Stacker,
    bounds,
    flat_mask,
    parts_of,
    paths,
    why_out_of_bounds,
    why_outside,
)

MASK_KEY = "action_mask"

Rows = npt.NDArray[Any]
_IN_PARTS = {tuple, dict, type(None)}
"""Types of masks in gymnasium's form."""
_ROW = np.dtype(np.float32)
# Flattened unchanged; choices become flags.
_BOUNDED = gym.spaces.Box | gym.spaces.MultiBinary
_MOST = np.finfo(np.float32).max
# A quarter of a GiB; a layer of a network for more numbers does not fit into memory.
MOST_COLUMNS = 1 << 23
Mask = npt.NDArray[np.bool_]
Begins = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of a nested space and its columns.

    `keys` lead from the observation to the leaf, `path` writes them as Python does; `stack` puts elements into one
    array.
    """

    keys: tuple[Any, ...]
    space: gym.Space[Any]
    start: int
    width: int
    path: str = field(init=False)
    stack: Stacker = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _path(self.keys))
        object.__setattr__(self, "stack", Stacker(self.space, self.path))


class ObsPreprocessor:
    """Turns a batch of observations of `space` into [R, F] rows, and [R, M] bool if it has a mask.

    Attributes:
        space: As given.
        leaves: The parts of the space that become columns, in their order.
        mask_leaves: The mask, or the masks of the members of a group.
        size: F, the number of columns.
        image: Shape of the Box of three dimensions if the space has no other leaf but masks, or None.
        dtype: Of rows: float32, or uint8 for an image of bytes.
        mask_width: M, 0 without a mask.
        marked: How many of the last columns mark members of a group.
    """

    def __init__(
        self, space: gym.Space[Any], action_space: gym.Space[Any] | None = None, marked: int = 0
    ) -> None:
        """Plan the columns; `action_space` says which flags of a mask belong to one component.

        The last `marked` columns are 1 for each member of a group that is alive and -1 for the others.
        """
        self.space, self._actions, self.marked = space, action_space, marked
        self.leaves: list[Leaf] = []
        self.mask_leaves: list[Leaf] = []
        self._nests: list[tuple[tuple[Any, ...], set[int]]] = []
        self.size = 0
        self._collect(space, ())
        self.size += marked
        if self.size > MOST_COLUMNS:
            raise ConfigError(
                f"observation space: {self.size:,} numbers in a flat row, which has one for each choice of a Discrete, "
                f"expected {MOST_COLUMNS:,} at most; observe large numbers of choices as a Box"
            )
        self.mask_width = sum(leaf.width for leaf in self.mask_leaves)
        self._components = _components(self.mask_leaves, action_space)
        only = self.leaves[0] if len(self.leaves) == 1 and not marked else None
        # One Box, perhaps with a mask: the stacked array is the rows, without another copy.
        self._only_box = only if only is not None and isinstance(only.space, gym.spaces.Box) else None
        box = None if self._only_box is None else self._only_box.space
        image = None if box is None or box.shape is None or len(box.shape) != 3 else box.shape
        self.image = None if image is None else (image[0], image[1], image[2])
        pixels = box is not None and image is not None and box.dtype == np.uint8
        self.dtype = np.dtype(np.uint8) if pixels else _ROW
        low, high = self._bounds = self._flat_bounds()
        self._any_byte = pixels and not low.any() and bool((high == 255).all())
        flat = isinstance(space, gym.spaces.Box) and space.dtype == _ROW and len(space.shape) == 1
        self._row_shape = space.shape if flat else None

    def _collect(self, space: gym.Space[Any], keys: tuple[Any, ...]) -> None:
        parts = parts_of(space)
        if parts is None:
            self.leaves.append(Leaf(keys, space, self.size, _width(space, keys)))
            self.size += self.leaves[-1].width
            return
        self._nests.append((keys, {len(parts)}))
        for name, part in parts:
            # The members of a group are the parts of a Tuple, and may be groups themselves.
            if name == MASK_KEY and all(isinstance(key, int) for key in keys):
                found = _in_order(part, (*keys, name), self._actions_of(keys))
                self.mask_leaves += [
                    Leaf(path, leaf, 0, int(np.prod(leaf.shape or ())))
                    for path, leaf in found
                    # The mask of a Box is empty.
                    if 0 not in (leaf.shape or ())
                ]
            else:
                self._collect(part, (*keys, name))

    def _actions_of(self, keys: tuple[Any, ...]) -> Any:
        actions: Any = self._actions
        for key in keys:
            actions = actions.spaces[key] if isinstance(actions, gym.spaces.Tuple) else None
        return actions

    def __call__(self, obs: Sequence[Any] | Array, final: bool | Mask = False) -> tuple[Rows, Mask | None]:
        """Return the rows and the mask of R observations; `final`, for all or [R], allows masks that allow nothing.

        Raises OutsideSpaceError for a wrong structure, shape or dtype, or an empty mask; `why_bad_row` checks bounds.
        """
        if type(obs) is np.ndarray and obs.dtype == _ROW and obs.shape[1:] == self._row_shape:
            # An array of rows, from a vector environment.
            return obs, None
        if not len(obs):
            nothing = np.zeros((0, self.mask_width), np.bool_) if self.mask_leaves else None
            return np.zeros((0, self.size), self.dtype), nothing
        try:
            for keys, number in self._nests:
                nested = _parts_at(obs, keys) if keys else obs
                if not isinstance(nested, NestedRows) and set(map(len, nested)) != number:
                    raise TypeError("an observation has another number of elements than its space")
            rows = self._box_rows(obs, self._only_box) if self._only_box else self._all_rows(obs)
            leaves = self.mask_leaves
            masks: list[Mask] = [self._mask(leaf, obs, final) for leaf in leaves] if leaves else []
        except (KeyError, TypeError, IndexError) as error:
            raise self._structure_error(obs, error) from error
        if len(masks) > 1:
            return rows, np.concatenate(masks, axis=1)
        return rows, masks[0] if masks else None

    def _box_rows(self, obs: Sequence[Any] | Array, leaf: Leaf) -> Rows:
        values = _parts_at(obs, leaf.keys) if leaf.keys else obs
        rows = leaf.stack(values).reshape(len(obs), self.size)
        if rows.dtype == self.dtype:
            return rows
        if self.dtype != _ROW:
            # An array of another type than the space's; as bytes its numbers would wrap around.
            raise OutsideSpaceError(0, why_outside(leaf.space, values[0], leaf.path) or "no bytes")
        return rows.astype(np.float32)

    def _all_rows(self, obs: Sequence[Any] | Array) -> Rows:
        rows = np.zeros((len(obs), self.size), np.float32)
        for leaf in self.leaves:
            columns = rows[:, leaf.start : leaf.start + leaf.width]
            _fill(columns, _parts_at(obs, leaf.keys), leaf)
        if self.marked:
            marks = rows[:, -self.marked :]
            marks[:] = 1.0
            # In columns all members are there.
            for row, one in enumerate(() if isinstance(obs, NestedRows) else obs):
                marks[row, list(getattr(one, "absent", ()))] = -1.0
        return rows

    def _mask(self, leaf: Leaf, obs: Sequence[Any] | Array, final: bool | Mask) -> Mask:
        """Return [R, M] True where an action is allowed; all True for a final mask that allows nothing."""
        values = _parts_at(obs, leaf.keys)
        whole = leaf.keys[-1] == MASK_KEY
        if (
            not isinstance(values, np.ndarray)
            and not _IN_PARTS.isdisjoint(map(type, values))
            and (whole or type(values[0]) is tuple)
        ):
            # Gymnasium's form, one mask per component.
            actions = self._actions_of(leaf.keys[:-1]) if whole else None
            flat = [flat_mask(value, actions) for value in values]
            values = [one.reshape(leaf.space.shape) if one.size == leaf.width else one for one in flat]
        elif not whole:
            # One component; None allows all its choices.
            every = np.ones(leaf.space.shape or (), leaf.space.dtype)
            values = [every if value is None else value for value in values]
        mask: Mask = leaf.stack(values).reshape(len(values), -1) != 0
        begins = self._components.get(leaf.path)
        if begins is None:
            allowed = np.logical_or.reduce(mask, axis=1)
        else:
            allowed = np.logical_and.reduce(np.logical_or.reduceat(mask, begins, axis=1), axis=1)
        if np.logical_and.reduce(allowed):
            return mask
        if final is not False:
            mask[final & ~allowed] = True
            allowed |= final
        if not np.logical_and.reduce(allowed):
            row = int(np.argmin(allowed))
            parts = np.split(mask[row], () if begins is None else begins[1:])
            raise OutsideSpaceError(row, f"{leaf.path}: {why_nothing(parts)}")
        return mask

    def finals(self, obs: Sequence[Any] | Array) -> tuple[Rows, Mask | None]:
        """Return the rows and masks of final observations, whose masks may allow nothing; checks their bounds."""
        rows, mask = self(obs, final=True)
        bad = self.why_bad_row(rows)
        if bad is not None:
            raise OutsideSpaceError(*bad)
        return rows, mask

    def _structure_error(self, obs: Sequence[Any] | Array, error: Exception) -> Exception:
        for row, element in enumerate(obs):
            why = why_outside(self.space, element)
            if why is not None:
                return OutsideSpaceError(row, why)
        return error

    def _flat_bounds(self) -> tuple[Rows, Rows]:
        """Return the [F] bounds of all columns; without bounds, the bounds of float32, since infinity is invalid."""
        low = np.full(self.size, -_MOST, np.float32)
        high = np.full(self.size, _MOST, np.float32)
        if self.dtype != _ROW:
            low, high = np.zeros((2, self.size), self.dtype)
        for leaf in self.leaves:
            if isinstance(leaf.space, _BOUNDED):
                columns = slice(leaf.start, leaf.start + leaf.width)
                # Bounds of wider types than the rows' overflow to infinity.
                with np.errstate(over="ignore"):
                    low[columns], high[columns] = (bound.reshape(-1) for bound in bounds(leaf.space))
        return (low, high) if self.dtype != _ROW else (np.maximum(low, -_MOST), np.minimum(high, _MOST))

    def why_bad_row(self, rows: Rows) -> tuple[int, str] | None:
        """Return the first row with a value outside its bounds (NaN included) and why, or None."""
        low, high = self._bounds
        # Reductions keep NaN, which is outside of all bounds.
        if self._any_byte or not rows.size or ((rows.min(0) >= low) & (rows.max(0) <= high)).all():
            return None
        row = int(np.argwhere(~((rows >= low) & (rows <= high)))[0][0])
        for leaf in self.leaves:
            columns = slice(leaf.start, leaf.start + leaf.width)
            shape = leaf.space.shape if isinstance(leaf.space, _BOUNDED) else (leaf.width,)
            value, least, most = (part[columns].reshape(shape) for part in (rows[row], low, high))
            why = why_out_of_bounds(value, least, most, leaf.path)
            if why is not None:
                return row, why
        return row, "outside its space"


def _in_order(mask: gym.Space[Any], keys: tuple[Any, ...], actions: Any) -> list[tuple[Any, gym.Space[Any]]]:
    """Return the leaves of a mask's space in the order of their actions."""
    parts: dict[Any, gym.Space[Any]] = dict(parts_of(mask) or ())
    order = [key for key, _ in (actions is not None and parts_of(actions)) or ()]
    if not parts or set(order) != set(parts):
        return paths(mask, keys)
    return [leaf for key in order for leaf in _in_order(parts[key], (*keys, key), actions.spaces[key])]


def _components(leaves: Sequence[Leaf], action_space: gym.Space[Any] | None) -> dict[str, Begins]:
    """Return where the flags of each component begin, by the path of the mask, for masks of several components."""
    sizes = component_sizes(action_space)
    begins = np.cumsum(sizes) - sizes
    found, start = {}, 0
    for leaf in leaves:
        own = begins[(begins >= start) & (begins < start + leaf.width)] - start
        # Masks that do not fit the actions are refused elsewhere.
        if len(own) > 1 and own[0] == 0:
            found[leaf.path] = own
        start += leaf.width
    return found


def why_nothing(parts: Sequence[Mask]) -> str:
    """Return why the flags of the components of an action leave no choice, "" if there is one of each."""
    at, sizes = next((at for at, part in enumerate(parts) if not part.any()), -1), [*map(len, parts)]
    if not any(part.any() for part in parts):
        return (
            f"allows none of {sum(sizes)} actions, expected at least one, because each agent in obs must act "
            "(PettingZooEnv, given a turn-based PettingZoo game, returns only the agent to act)"
        )
    return "" if at < 0 else (
        f"flags {sum(sizes[:at])} to {sum(sizes[: at + 1]) - 1} allow none of the choices of component {at} of the "
        "action, expected at least one of each component"
    )  # fmt: skip


def _width(space: gym.Space[Any], keys: tuple[Any, ...]) -> int:
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return int(space.nvec.sum(dtype=np.float64))
    if isinstance(space, _BOUNDED):
        return int(np.prod(space.shape))
    where = f"{_path(keys)}, a " if keys else ""
    raise ConfigError(
        f"observation space: {where}{type(space).__name__} cannot be flattened, expected Box, Discrete, MultiDiscrete, "
        "MultiBinary, or Dict and Tuple of these; change the space or wrap the environment"
    )


def _path(keys: tuple[Any, ...]) -> str:
    return "obs" + "".join(f"[{key!r}]" for key in keys)


def _parts_at(obs: Sequence[Any] | Array, keys: tuple[Any, ...]) -> Sequence[Any] | Array:
    for key in keys:
        obs = obs.parts[key] if isinstance(obs, NestedRows) else list(map(itemgetter(key), obs))
    return obs


def _fill(out: Rows, values: Sequence[Any] | Array, leaf: Leaf) -> None:
    space = leaf.space
    stacked = leaf.stack(values)
    rows = np.arange(len(stacked))
    if isinstance(space, gym.spaces.Discrete):
        out[rows, stacked - space.start] = 1.0
    elif isinstance(space, gym.spaces.MultiDiscrete):
        # Mixed unsigned and signed integers would become floats.
        start, sizes = (part.reshape(-1).astype(np.int64) for part in (space.start, space.nvec))
        digits = stacked.reshape(len(stacked), -1) - start
        bad = (digits < 0) | (digits >= sizes)
        if bad.any():
            row = int(np.argwhere(bad)[0][0])
            raise OutsideSpaceError(row, why_outside(space, stacked[row], leaf.path) or "outside its space")
        offsets = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        out[rows[:, None], digits + offsets] = 1.0
    else:
        out[:] = stacked.reshape(len(stacked), -1)


_LEFT_ALONE = (SampleBatch.INFOS, SampleBatch.ACTIONS, MASK)


class ObsPreprocessorConnector(ByArguments, AgentConnector):
    """Turns observations of the context's space into rows and masks; see `ObsPreprocessor`.

    It also checks observations: the results of connectors before it must be in the space.
    """

    at_ends = False
    _made: ObsPreprocessor | None = None

    @property
    def preprocess(self) -> ObsPreprocessor:
        """The `ObsPreprocessor` of the space."""
        if self._made is None:
            space = self.known("observation_space")
            self._made = ObsPreprocessor(
                space, getattr(self.ctx, "action_space", None), getattr(self.ctx, "marked", 0)
            )
        return self._made

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with `new_obs` as a flat array, and an action mask as `data["action_mask"]`."""
        data = dict(columns_of(self, ac_data))
        rows, mask = self._checked([single(data[SampleBatch.NEXT_OBS])], is_final(data))
        data[SampleBatch.NEXT_OBS] = rows[0]
        if mask is not None:
            data[MASK] = mask[0]
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, data)

    def over_rows(self, rows: AgentRows) -> None:
        rows.obs, rows.mask = self._checked(rows.obs, rows.final)

    def _checked(self, obs: Any, final: bool) -> tuple[Any, Any]:
        preprocess = self.preprocess
        rows, mask = preprocess(obs, final)
        bad = preprocess.why_bad_row(rows)
        if bad is not None:
            raise OutsideSpaceError(*bad)
        return rows, mask

    def space(self, space: Any, width: int) -> tuple[Any, int]:
        return space, self.preprocess.size


class FlattenDataAgentConnector(ByArguments, AgentConnector):
    """Makes one flat array of each nested column; infos, actions, masks and states stay unchanged."""

    at_ends = False

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return the agent with flat columns; dicts in the order of their keys."""
        data = {
            key: value if key in _LEFT_ALONE or key.startswith("state_out_") else _flat(value)
            for key, value in columns_of(self, ac_data).items()
        }
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, data)

    def over_rows(self, rows: AgentRows) -> None:
        if not isinstance(rows.obs, np.ndarray):
            rows.obs = [_flat(obs) for obs in rows.obs]
        rows.array()


def _flat(value: object) -> Any:
    """Return a nested value as an array [F]; a scalar unchanged."""
    if value is None or np.isscalar(value):
        return value
    parts = list(_leaves(value))
    return np.concatenate([np.ravel(part) for part in parts]) if parts else value


def _leaves(value: object) -> Any:
    if isinstance(value, Mapping):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield np.asarray(value)
