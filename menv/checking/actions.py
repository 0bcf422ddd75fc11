"""Where the actions of a play come from: chance, the caller, or the tape of an earlier play.

Probes ask an `Actor` at every turn. All actions are read-only, as those of menv's policies are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from menv.checking.stage import Key, Stage, Turn
from menv.checking.values import components, usable_mask
from menv.connectors.flat_actions import component_sizes
from menv.nested import built, parts_of, values_in

ActionFn: TypeAlias = Callable[[Any, Any], Any]
"""`actions(obs, agent_id) -> action`."""
Tape: TypeAlias = list[dict[Key, Any]]


class Actor:
    """Answers all who wait, turn after turn.

    Attributes:
        tape: The answers so far.
    """

    def __init__(
        self, seed: int, given: ActionFn | None, tape: Tape | None = None, *, in_unison: bool = False
    ) -> None:
        """Prepare the answers of one play.

        Args:
            seed: Of the random actions.
            given: Decides instead of chance.
            tape: Answers that are repeated for the same agents at the same turn.
            in_unison: Give everybody the answer of the first who waits.
        """
        self._rng = np.random.default_rng(seed)
        self._given = given
        self._old = tape or []
        self._in_unison = in_unison
        self.tape: Tape = []

    @property
    def is_random(self) -> bool:
        """Whether the actions are ours."""
        return self._given is None

    def answer(self, stage: Stage, turn: Turn) -> dict[Key, Any]:
        """Return an action for each who waits."""
        old = self._old[len(self.tape)] if len(self.tape) < len(self._old) else {}
        if old.keys() == turn.waiting.keys():
            answers = dict(old)
        elif self._in_unison and turn.waiting:
            key, obs = next(iter(turn.waiting.items()))
            answers = dict.fromkeys(turn.waiting, self._one(stage, key, obs))
        else:
            answers = {key: self._one(stage, key, obs) for key, obs in turn.waiting.items()}
        self.tape.append(answers)
        return dict(answers)

    def _one(self, stage: Stage, key: Key, obs: Any) -> Any:
        _, action_space = stage.spaces(key)
        if self._given is None:
            return frozen(draw(action_space, self._rng, usable_mask(obs, action_space)))
        action = self._given(obs, key[1])
        if not action_space.contains(action):
            message = f"agent {key[1]!r}: the action given is no element of {action_space}"
            stage.report.add("ME094", message, stage.env_steps)
        return action


def draw(space: gym.Space[Any], rng: np.random.Generator, mask: Any = None) -> Any:
    """Return a random element of `space` that `mask` allows; one that allows nothing is passed over."""
    if isinstance(space, gym.spaces.Discrete):
        return space.dtype.type(int(space.start) + _pick(int(space.n), rng, mask))
    if isinstance(space, gym.spaces.MultiDiscrete):
        parts = components(mask, space) if mask is not None else [None] * space.nvec.size
        picked = [_pick(int(n), rng, part) for n, part in zip(space.nvec.reshape(-1), parts, strict=True)]
        return space.start + np.array(picked, space.dtype).reshape(space.shape)
    if parts_of(space) is not None:
        flags = iter([] if mask is None else components(mask, space))
        return built(space, lambda keys, leaf: draw(leaf, rng, _next(flags, leaf)))
    if isinstance(space, gym.spaces.Box) and space.dtype is not None and space.dtype.kind == "f":
        return _draw_box(space, rng)
    # Drawing from the space itself would change what its owner draws.
    twin = copy.deepcopy(space)
    twin.seed(int(rng.integers(2**31)))
    return twin.sample()


def _next(flags: Iterator[Any], leaf: gym.Space[Any]) -> Any:
    """Return the flags of the next leaf of an action, one component after the other; None where there are none."""
    found = list(islice(flags, len(component_sizes(leaf))))
    return np.concatenate(found) if found else None


def _pick(n: int, rng: np.random.Generator, flags: Any) -> Any:
    if flags is None or not flags.any():
        return rng.integers(n)
    return rng.choice(np.flatnonzero(flags))


def _draw_box(space: gym.spaces.Box, rng: np.random.Generator) -> Any:
    """Draw evenly within bounds, from a normal distribution where there are none, and clip."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high)
    even = np.where(bounded, low, 0.0) + rng.random(space.shape) * np.where(bounded, high - low, 1.0)
    drawn = np.clip(np.where(bounded, even, rng.standard_normal(space.shape)), low, high)
    return np.asarray(drawn, space.dtype)


def frozen(action: Any) -> Any:
    """Make the arrays in an action read-only."""
    for part in values_in(action):
        if isinstance(part, np.ndarray):
            part.setflags(write=False)
    return action
