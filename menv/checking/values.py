"""Checks of single values: observations, masks, rewards, flags and infos.

The runners of all kinds of environments call them for each value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from menv import spaces
from menv.checking.codes import FindingCollector
from menv.connectors.action_output import component_sizes
from menv.spaces import bounds, flat_mask, parts_of, why_outside

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


def check_obs(collector: FindingCollector, step: int, who: str, space: gym.Space[Any], obs: Any) -> None:
    """Report leaves that are outside their space, not finite, or slow to copy; `who` begins the messages."""
    for path, leaf, value in leaves(space, obs, "obs"):
        why = why_outside(leaf, value, path)
        if why is not None and path.startswith(f"obs[{MASK_KEY!r}]"):
            if value is not None and not _is_flat_mask(leaf, value):
                collector.add("ME052", who + why, step)
        elif not _is_finite(value):
            collector.add("ME032", f"{who}{path}: holds {_first_not_finite(value)}", step, about=path)
        elif why is not None:
            collector.add(_code_of(leaf, value), who + why, step, about=path)
        elif _is_cast(leaf, value):
            got = np.asarray(value).dtype
            collector.add(
                "ME034",
                f"{who}{path}: is {got}, expected {leaf.dtype}, to which it is cast",
                step,
                about=path,
            )
        elif isinstance(leaf, _ARRAYS) and isinstance(value, list | tuple):
            collector.add(
                "ME033", f"{who}{path}: is a {type(value).__name__}, expected an array", step, about=path
            )


def _code_of(space: gym.Space[Any], value: Any) -> str:
    same_shape = isinstance(value, np.ndarray) and isinstance(space, _ARRAYS) and value.shape == space.shape
    return "ME031" if same_shape and not np.can_cast(value.dtype, space.dtype or object) else "ME030"


def _is_flat_mask(space: gym.Space[Any], mask: Any) -> bool:
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


def _is_finite(value: Any) -> bool:
    try:
        array = np.asarray(value)
        return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())
    except ValueError:  # a ragged list, which is outside its space
        return True


def _first_not_finite(value: Any) -> str:
    array = np.asarray(value)
    index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
    return f"{array[index]} at index {index[0] if len(index) == 1 else index}, expected finite numbers"


def mask_width(action_space: Any) -> int | None:
    """Return how many flags a mask of these actions has, None if they cannot be masked."""
    return int(component_sizes(action_space).sum()) or None


def _members(whole: Any) -> list[Any]:
    """Return the parts of a group's observation or space, nested groups included; else the whole."""
    parts = whole.spaces if isinstance(whole, gym.spaces.Tuple) else whole
    return [one for part in parts for one in _members(part)] if isinstance(parts, tuple) else [whole]


def check_mask_space(collector: FindingCollector, who: str, obs_space: Any, action_space: Any) -> None:
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
                collector.add("ME054", f"{who}{path} lies too deep, expected obs[{MASK_KEY!r}]")
            elif MASK_KEY not in space.spaces and _seems_a_mask(keys[-1], leaf, width):
                collector.add(
                    "ME054",
                    f"{who}{path} seems to say which of {width} actions are allowed, expected it as obs[{MASK_KEY!r}], "
                    "where masks are read",
                )


def _seems_a_mask(name: Any, space: gym.Space[Any], width: int | None) -> bool:
    """Return whether an entry of an observation is a flag for each choice, under a name that masks have elsewhere."""
    if not isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary):
        return False
    low, high = bounds(space)
    flags = width == low.size and not low.any() and bool((high == 1).all())
    return flags and any(word in str(name).lower() for word in _MASK_WORDS)


def check_mask(collector: FindingCollector, step: int, who: str, obs: Any, action_space: Any) -> None:
    """Report a mask that allows its agent nothing, in any component of the action."""
    flags = usable_mask(obs, action_space)
    if flags is None:
        if isinstance(obs, dict) and isinstance(obs.get(MASK_KEY), tuple | dict):
            rule = "expected a mask for each discrete part, with a flag for each of its choices"
            collector.add("ME052", f"{who}obs[{MASK_KEY!r}]: does not fit {action_space}, {rule}", step)
        return
    for index, part in enumerate(components(flags, action_space)):
        if not part.any():
            of = "" if isinstance(action_space, gym.spaces.Discrete) else f"component {index} of "
            collector.add(
                "ME050",
                f"{who}obs[{MASK_KEY!r}]: allows none of {len(part)} choices of {of}the action, "
                "expected at least one",
                step,
            )
            return


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


def check_reward(collector: FindingCollector, step: int, who: str, reward: Any) -> None:
    """Report a reward that is not one finite number."""
    try:
        numbers = np.asarray(reward)
        is_number = numbers.size == 1 and numbers.dtype.kind in "biuf"
    except ValueError:
        is_number = False
    if not is_number:
        got = f"{type(reward).__name__} of shape {np.shape(reward)}" if isinstance(reward, np.ndarray) else (
            type(reward).__name__
        )  # fmt: skip
        collector.add("ME025", f"{who}the reward is {got}, expected a number", step)
    elif not np.isfinite(numbers).all():
        collector.add("ME026", f"{who}the reward is {numbers.reshape(())}, expected a finite number", step)


def check_flag(collector: FindingCollector, step: int, who: str, flag: Any) -> bool:
    """Return a flag as a bool, and report one of another type."""
    if isinstance(flag, bool | np.bool_):
        return bool(flag)
    shape = np.shape(flag) if isinstance(flag, np.ndarray | np.generic) else None
    if isinstance(flag, int | float | np.number) or shape == ():
        collector.add("ME023", f"{who}is the {type(flag).__name__} {flag}, expected True or False", step)
        return bool(flag)
    collector.add("ME024", f"{who}is a {type(flag).__name__}, expected True or False", step)
    return False


def check_info(collector: FindingCollector, step: int, who: str, info: Any, obs: Any) -> None:
    """Report an info that is no dict, or holds a mask, which is read from observations only."""
    if not isinstance(info, dict):
        collector.add("ME029", f"{who}the info is {type(info).__name__}, expected a dict", step)
    elif MASK_KEY in info and not (isinstance(obs, dict) and MASK_KEY in obs):
        collector.add(
            "ME054",
            f"{who}{MASK_KEY!r} is in the info, expected in the observation, where masks are read",
            step,
        )
