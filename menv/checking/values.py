"""Checks of single values: spaces, observations, masks, rewards, flags, infos, and the global generators.

`Runner` calls them for each row.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np

from menv import spaces
from menv.checking.codes import Broken, FindingCollector
from menv.connectors.action_output import component_sizes, flat_action_space
from menv.connectors.obs_preprocessor import why_nothing
from menv.errors import ConfigError
from menv.inference.heads.known import head_for_space
from menv.spaces import bounds, built, flat_mask, parts_of, why_outside

Report = Callable[..., None]
"""`report(code, message, about="", fix=None)`"""

MASK_KEY = "action_mask"
_MASK_WORDS = ("mask", "avail", "legal", "valid", "allowed")
_ARRAYS = gym.spaces.Box | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary


def leaves(space: gym.Space[Any], value: Any, path: str) -> Iterator[tuple[str, gym.Space[Any], Any]]:
    """Yield path, space and value of each leaf; where the structure is wrong, of the whole branch."""
    parts = parts_of(space)
    if isinstance(space, gym.spaces.Dict):
        fits = isinstance(value, dict) and value.keys() == space.keys()
    else:
        fits = parts is not None and isinstance(value, tuple | list) and len(value) == len(parts)
    if parts is None or not fits:
        yield path, space, value
        return
    for key, part in parts:
        yield from leaves(part, value[key], f"{path}[{key!r}]")


def check_obs(report: Report, who: str, space: gym.Space[Any], obs: object) -> None:
    """Report leaves that are outside their space, not finite, or slow to copy; `who` begins the messages."""
    for path, leaf, value in leaves(space, obs, "obs"):
        why = why_outside(leaf, value, path)
        if why is not None and path.startswith(f"obs[{MASK_KEY!r}]"):
            if value is not None and not _is_flat_mask(leaf, value):
                report("ME052", who + why)
        elif not _is_finite(value):
            report("ME032", f"{who}{path}: holds {_first_not_finite(value)}", path)
        elif why is not None:
            report(_code_of(leaf, value), who + why, path)
        elif _is_cast(leaf, value):
            got = np.asarray(value).dtype
            report("ME034", f"{who}{path}: is {got}, expected {leaf.dtype}, to which it is cast", path)
        elif isinstance(leaf, _ARRAYS) and isinstance(value, list | tuple):
            report("ME034", f"{who}{path}: is a {type(value).__name__}, expected an array", path)


def _code_of(space: gym.Space[Any], value: Any) -> str:
    same_shape = isinstance(value, np.ndarray) and isinstance(space, _ARRAYS) and value.shape == space.shape
    return "ME031" if same_shape and not np.can_cast(value.dtype, space.dtype or object) else "ME030"


def _is_flat_mask(space: gym.Space[Any], mask: object) -> bool:
    """Return whether a mask is gymnasium's tuple or dict of one for each part, with as many flags as its space."""
    if not isinstance(mask, tuple | dict):
        return False
    # The number of flags that None stands for depends on the actions; `check_mask` looks at it.
    parts = list(spaces.values_in(mask))
    return any(part is None for part in parts) or flat_mask(mask).size == np.prod(space.shape or ())


def _is_cast(space: gym.Space[Any], value: Any) -> bool:
    """Return whether a value that is in its space is of another number type."""
    if isinstance(space, gym.spaces.Discrete):
        return bool(np.asarray(value).dtype.kind == "f")
    array = isinstance(value, np.ndarray) and isinstance(space, _ARRAYS)
    return array and not np.can_cast(value.dtype, space.dtype or object)


def _is_finite(value: object) -> bool:
    try:
        array = np.asarray(value)
        return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())
    except ValueError:  # a ragged list, which is outside its space
        return True


def _first_not_finite(value: object) -> str:
    array = np.asarray(value)
    index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
    return f"{array[index]} at index {index[0] if len(index) == 1 else index}, expected finite numbers"


def mask_width(action_space: Any) -> int | None:
    """Return how many flags a mask of these actions has, None if they cannot be masked."""
    return int(component_sizes(action_space).sum()) or None


def _members(whole: object) -> list[Any]:
    """Return the parts of a group's observation or space, nested groups included; else the whole."""
    parts = whole.spaces if isinstance(whole, gym.spaces.Tuple) else whole
    return [one for part in parts for one in _members(part)] if isinstance(parts, tuple) else [whole]


def check_mask_space(collector: FindingCollector, who: str, obs_space: object, action_space: object) -> None:
    """Report a mask that does not fit the actions, or is not at obs['action_mask']."""
    dicts = [part for part in _members(obs_space) if isinstance(part, gym.spaces.Dict)]
    masks = [part[MASK_KEY] for part in dicts if MASK_KEY in part.spaces]
    width = mask_width(action_space)
    flags = sum(int(np.prod(leaf.shape or ())) for mask in masks for leaf in spaces.leaves(mask))
    if masks and width != flags:
        rule = "no mask" if width is None else f"{width} flags"
        collector.add("ME051", f"{who}{MASK_KEY!r} has {flags} flags for {action_space}, expected {rule}")
    for space in dicts:
        for keys, leaf in spaces.paths(space):
            path = "obs" + "".join(f"[{key!r}]" for key in keys)
            if keys[-1] == MASK_KEY and len(keys) > 1:
                collector.add("ME054", f"{who}{path} is nested too deep, expected obs[{MASK_KEY!r}]")
            elif MASK_KEY not in space.spaces and _seems_a_mask(keys[-1], leaf, width):
                collector.add(
                    "ME054",
                    f"{who}{path} seems to say which of {width} actions are allowed, expected obs[{MASK_KEY!r}], "
                    "where masks are read",
                )


def _seems_a_mask(name: object, space: gym.Space[Any], width: int | None) -> bool:
    """Return whether an entry of an observation is a flag for each choice, under a name that masks have elsewhere."""
    if not isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary):
        return False
    low, high = bounds(space)
    flags = width == low.size and not low.any() and bool((high == 1).all())
    return flags and any(word in str(name).lower() for word in _MASK_WORDS)


def check_mask(report: Report, who: str, obs: object, action_space: object) -> None:
    """Report a mask that allows its agent nothing, in any component of the action."""
    flags = usable_mask(obs, action_space)
    if flags is None:
        if isinstance(obs, dict) and isinstance(obs.get(MASK_KEY), tuple | dict):
            rule = "expected a mask for each discrete part, with a flag for each of its choices"
            report("ME052", f"{who}obs[{MASK_KEY!r}]: does not fit {action_space}, {rule}")
        return
    why = why_nothing(components(flags, action_space))
    if why:
        report("ME050", f"{who}obs[{MASK_KEY!r}]: {why}")


def usable_mask(obs: Any, action_space: Any) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Return the mask in an observation, or of all members of a group, as flags; None if their number is wrong."""
    masks = [part[MASK_KEY] for part in _members(obs) if isinstance(part, dict) and MASK_KEY in part]
    width = mask_width(action_space) if masks else None
    if width is None:
        return None
    try:
        # The members of a group have a part of the actions each.
        whole = action_space if len(masks) == 1 else None
        flags = np.concatenate([flat_mask(mask, whole) != 0 for mask in masks])
    except (KeyError, ValueError):
        return None
    return flags if len(flags) == width else None


def components(flags: Any, action_space: Any) -> list[Any]:
    """Return the flags of each component of the action."""
    return np.split(flags, np.cumsum(component_sizes(action_space))[:-1])


def check_info(report: Report, who: str, info: object, obs: object) -> None:
    """Report an info that holds a mask, which is read from observations only."""
    if isinstance(info, Mapping) and MASK_KEY in info and not (isinstance(obs, dict) and MASK_KEY in obs):
        rule = "expected in the observation, where masks are read"
        report("ME054", f"{who}{MASK_KEY!r} is in the info, {rule}")


def check_pair(collector: FindingCollector, who: str, obs_space: Any, action_space: Any) -> None:
    """Report spaces that no stock network supports; raise `Broken` for missing ones."""
    for name, space in (("observation", obs_space), ("action", action_space)):
        if space is None:
            raise Broken("ME001", f"{who}the {name} space is None, expected a gymnasium space")
        if not isinstance(space, gym.Space):
            kind = f"{type(space).__module__}.{type(space).__qualname__}"
            raise Broken("ME001", f"{who}the {name} space is a {kind}, expected a gymnasium.Space")
    for name, space, takes in (
        ("observation", obs_space, _readable(obs_space)), ("action", action_space, _has_head(action_space)),
    ):  # fmt: skip
        if not takes:
            what = f"{who}the {name} space {type(space).__name__}"
            collector.add("ME005", f"{what} suits no stock network", about=name)


def _readable(space: gym.Space[Any]) -> bool:
    kinds = gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary
    return all(isinstance(leaf, kinds) for leaf in spaces.leaves(space))


def _has_head(space: gym.Space[Any]) -> bool:
    try:
        head_for_space(flat_action_space(space))
    except ConfigError:
        return False
    return True


def sample_action(space: gym.Space[Any], rng: np.random.Generator, mask: object = None) -> Any:
    """Return a random element of `space` that `mask` allows; a mask that allows nothing is ignored."""
    if isinstance(space, gym.spaces.Discrete):
        return space.dtype.type(int(space.start) + _pick(int(space.n), rng, mask))
    if isinstance(space, gym.spaces.MultiDiscrete):
        parts = components(mask, space) if mask is not None else [None] * space.nvec.size
        picked = [_pick(int(n), rng, part) for n, part in zip(space.nvec.reshape(-1), parts, strict=True)]
        return space.start + np.array(picked, space.dtype).reshape(space.shape)
    if parts_of(space) is not None:
        flags = iter([] if mask is None else components(mask, space))
        return built(space, lambda keys, leaf: sample_action(leaf, rng, _next(flags, leaf)))
    # Sampling the space itself would change its owner's random state.
    twin = copy.deepcopy(space)
    twin.seed(int(rng.integers(2**31)))
    return twin.sample()


def _next(flags: Iterator[Any], leaf: gym.Space[Any]) -> Any:
    """Return the flags of all components of the next leaf, None if it has none."""
    found = list(islice(flags, len(component_sizes(leaf))))
    return np.concatenate(found) if found else None


def _pick(n: int, rng: np.random.Generator, flags: Any) -> Any:
    if flags is None or not flags.any():
        return rng.integers(n)
    return rng.choice(np.flatnonzero(flags))


def same(one: object, other: object) -> bool:
    """Return whether two values are bit-identical; NaN equals NaN."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, tuple | list):
        return isinstance(other, tuple | list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic) or isinstance(other, np.ndarray | np.generic):
        return _same_arrays(np.asarray(one), np.asarray(other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    try:
        return bool(one == other)
    except Exception:  # custom values that do not compare
        return True


def _same_arrays(one: Any, other: Any) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


def state_of_generators() -> tuple[Any, Any]:
    """Return values that differ when `numpy.random` or `random` is used."""
    state: Any = np.random.get_state(legacy=False)
    numbers = [one.tobytes() if isinstance(one, np.ndarray) else one for one in state["state"].values()]
    return numbers, random.getstate()


def used_since(before: tuple[Any, Any]) -> str | None:
    """Return the names of the global generators that were sampled or seeded, None if neither was."""
    now = state_of_generators()
    names = [
        name for name, one, other in zip(("numpy.random", "random"), before, now, strict=True) if one != other
    ]
    return " and ".join(names) or None


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the states of `numpy.random` and `random` at the end of the context."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)
