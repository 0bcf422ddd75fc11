"""Action masks in observations from messages: that they allow something, and what was done.

`menv.serving.wire.columns` has one for each space, which `menv.serving.wire.episodes` asks too. Where masks lie is
the convention of `menv.connectors.obs_preprocessor`: an entry of a Dict, or of every Dict in the Tuple of a group of
agents, whose members may be groups.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.connectors.flat_actions import component_sizes, is_discrete
from menv.connectors.obs_preprocessor import MASK_KEY
from menv.nested import columns_of, flat_mask, leaves
from menv.serving.wire.bad_message import Code
from menv.serving.wire.bad_value import BadValueError
from menv.serving.wire.space_readers import Column

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
        """Check that the masks of the first observations each allow something.

        Args:
            obs: R observations.
            acting: On how many of them somebody acts.
            space: Of the actions, each component of which must have a choice left; None where nobody knows.

        Raises:
            BadValueError: One allows nothing.
        """
        for member in self._members:
            actions = _part(space, member)
            nothing = _allow_nothing(self._mask(obs[:acting], member, actions), actions)
            if nothing.any():
                raise BadValueError(
                    Code.MASKED, "got a mask that allows nothing, expected one action at least",
                    int(np.argmax(nothing)), f"{_written(member)}[{MASK_KEY!r}]",
                )  # fmt: skip

    def check_actions(self, obs: Column, actions: Column, space: gym.Space[Any]) -> None:
        """Check that actions were allowed by the masks of the observations that they answer.

        Raises:
            BadValueError: One was not.
        """
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
                    Code.MASKED, "got an action that the mask of its observation forbids, expected an allowed one",
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
