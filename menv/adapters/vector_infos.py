"""The infos of a vectorised gymnasium environment, a dict of arrays, as one info dict for each row.

`menv.adapters.gym_vector` makes them; they are taken apart when somebody looks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from menv.base_env import IntArray
from menv.errors import ContractError


class VectorInfos(Sequence[Mapping[str, Any]]):
    """The info dicts of some sub-environments.

    Args:
        infos: As gymnasium gives them, with a mask under `_<key>` for each key.
        indices: [R] whose they are.
        resets: What a later reset of some sub-environments said, and [E] True for these.
    """

    __slots__ = ("_indices", "_infos", "_resets")

    def __init__(
        self,
        infos: Mapping[str, Any],
        indices: IntArray,
        resets: tuple[Mapping[str, Any], npt.NDArray[np.bool_]] | None = None,
    ) -> None:
        self._infos = infos
        self._indices = indices
        self._resets = resets

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> VectorInfos: ...

    def __getitem__(self, place: int | slice) -> Mapping[str, Any] | VectorInfos:
        if isinstance(place, slice):
            return VectorInfos(self._infos, self._indices[place], self._resets)
        return self._of(int(self._indices[place]))

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return map(self._of, self._indices.tolist())

    @property
    def names(self) -> Collection[str]:
        """The names of all entries that there may be."""
        return self._infos.keys() if self._resets is None else {*self._infos, *self._resets[0]}

    def at(self, places: IntArray) -> VectorInfos:
        """Return those at some places."""
        return VectorInfos(self._infos, self._indices[places], self._resets)

    def _of(self, index: int) -> Mapping[str, Any]:
        if self._resets is not None and self._resets[1][index]:
            return info_of(self._resets[0], index)
        return info_of(self._infos, index)


def info_of(infos: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """Return what a dict of arrays says about one sub-environment; values without a mask are everybody's."""
    found: dict[str, Any] = {}
    for name, values in infos.items():
        mask = infos.get(f"_{name}")
        is_mask = name.startswith("_") and name[1:] in infos
        try:
            if is_mask or (mask is not None and not mask[index]):
                continue
            if isinstance(values, dict):
                found[name] = info_of(values, index)
            else:
                found[name] = values[index] if isinstance(values, np.ndarray | list | tuple) else values
        except (IndexError, TypeError) as error:
            raise ContractError(
                f"env {index} step: infos hold nothing of it under {name!r} ({error}), expected an array of one value "
                f"for each sub-environment, and one of flags, {'_' + name!r}, if only some have it; mend its infos"
            ) from error
    return found


def by_name(infos: Any, num_envs: int, where: str) -> Mapping[str, Any]:
    """Return infos as a dict of arrays, also those of gymnasium's `DictInfoToList`: a dict for each sub-environment.

    Raises:
        ContractError: They are neither.
    """
    if isinstance(infos, Mapping):
        return infos
    listed = isinstance(infos, list | tuple)
    if infos is None or (listed and not infos):
        return {}
    if not listed or [isinstance(info, Mapping) for info in infos] != [True] * num_envs:
        size = f" of {len(infos)}" if listed else ""
        raise ContractError(
            f"{where}: returned infos that are a {type(infos).__name__}{size}, expected a dict of arrays, or a list of "
            f"{num_envs} dicts; mend its return value"
        )
    names = dict.fromkeys(chain.from_iterable(infos))
    values = {name: [info.get(name) for info in infos] for name in names}
    return {**values, **{f"_{name}": [name in info for info in infos] for name in names}}
