"""The weights of P policies of one architecture, stacked: an array [P, ...] for each name.

`OnnxActing` holds one, and its runners read the arrays. It knows names and shapes, no networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from menv.acting.backend import Floats, Weights
from menv.errors import ConfigError


class WeightStacks:
    """Weights by name, those of all policies side by side.

    Args:
        weights: Of each policy, at least one; copied.

    Attributes:
        shapes: Of one policy's weights, by name, sorted.
        policies: P.

    Raises:
        ConfigError: The policies' weights differ in names or shapes.
    """

    def __init__(self, weights: Sequence[Weights]) -> None:
        self.shapes = {name: np.shape(weights[0][name]) for name in sorted(weights[0])}
        self.policies = 0
        # [at least P, ...]: with room for more, so that a policy that comes does not copy all others each time.
        self._room = {name: np.empty((0, *shape), np.float32) for name, shape in self.shapes.items()}
        self.append(weights)

    @property
    def numbers_each(self) -> int:
        """How many numbers a policy has."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def __getitem__(self, name: str) -> Floats:
        """Return the [P, ...] weights of a name; written to by `put`, until policies are appended."""
        return self._room[name][: self.policies]

    def append(self, weights: Sequence[Weights]) -> None:
        """Copy the weights of more policies in.

        Raises:
            ConfigError: A name or shape differs from the architecture.
        """
        checked = [self._checked(one) for one in weights]
        first, end = self.policies, self.policies + len(checked)
        for name, room in self._room.items():
            if end > len(room):
                # Memory that nobody has written to yet costs nothing.
                self._room[name] = np.empty((max(end, 2 * len(room)), *self.shapes[name]), np.float32)
                self._room[name][:first] = room[:first]
            for place, one in enumerate(checked, first):
                self._room[name][place] = one[name]
        self.policies = end

    def put(self, policy: int, weights: Weights) -> None:
        """Copy a policy's weights in, in place of its own.

        Raises:
            ConfigError: A name or shape differs from the architecture.
        """
        for name, value in self._checked(weights).items():
            self._room[name][policy] = value

    def of(self, policy: int) -> dict[str, Floats]:
        """Return copies of one policy's weights."""
        return {name: room[policy].copy() for name, room in self._room.items()}

    def _checked(self, weights: Weights) -> dict[str, Floats]:
        found = {name: np.shape(weights[name]) for name in sorted(weights, key=str)}
        if found != self.shapes:
            wrong = sorted(
                (name for name in {*found, *self.shapes} if found.get(name) != self.shapes.get(name)),
                key=str,
            )
            name = wrong[0]
            raise ConfigError(
                f"OnnxActing: {len(wrong)} weights do not fit the architecture, first {name!r} of shape "
                f"{found.get(name)}, expected {self.shapes.get(name)}; give the weights of the same network"
            )
        return {name: np.asarray(weights[name], np.float32) for name in self.shapes}
