"""The one interface between the sampler and whatever runs the networks.

A back-end holds one architecture and the weights of P policies that share it. `OnnxActing` and
the torch back-end implement it; the sampler, the value pass over a closed fragment and
`Policy.act` call it. Nothing here knows environments, agents or how weights are learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from menv.acting.action_head import ActionHead

Floats: TypeAlias = npt.NDArray[np.float32]
Rows: TypeAlias = npt.NDArray[Any]
"""[R, F] observations: float32, or uint8 where they are images of bytes."""
Flags: TypeAlias = npt.NDArray[np.bool_]
Actions: TypeAlias = npt.NDArray[Any]
Which: TypeAlias = "npt.NDArray[np.int64] | int | None"
"""The policy index of each row [R], or one index for all rows; None means policy 0."""
Weights: TypeAlias = Mapping[str, Floats]

# So many rows at a time: the layers' outputs of 65,536 rows leave the caches, which costs half as much again.
# Fewer of large observations, such as images, whose copies as floats would take gigabytes.
_ROWS_AT_ONCE = 8192
_NUMBERS_AT_ONCE = 4_194_304
_LEAST_AT_ONCE = 64


def portions(obs: Rows) -> list[slice]:
    """Return the parts in which rows are best computed, one after the other; one part if it is all of them."""
    rows, width = obs.shape
    size = min(_ROWS_AT_ONCE, max(_LEAST_AT_ONCE, _NUMBERS_AT_ONCE // max(1, width)))
    return [slice(start, start + size) for start in range(0, rows, size)]


def are_numbers(outputs: Floats, *, choices: bool) -> bool:
    """Return whether rows [R, n], what choices are worth or actions themselves, mean anything.

    It is asked with every call, so that one product of all of them has to do as a rule: it is finite where they are,
    but for numbers beyond 1e19.
    """
    # Other products warn of overflow.
    return math.isfinite(np.vdot(outputs, outputs)) or not broken_rows(outputs, choices=choices).any()


def broken_rows(outputs: Floats, *, choices: bool) -> Flags:
    """Return [R] where rows [R, n] hold NaN or infinity; a choice may be worth -inf, as long as another is not."""
    finite = np.isfinite(outputs.max(1)) if choices else np.isfinite(outputs).all(1)
    return np.logical_not(finite)


class Evaluation(NamedTuple):
    """What a policy thinks of actions that were taken.

    Attributes:
        dist_inputs: [N, D] after masking: illegal choices hold a finite, very low number.
        logp: [N] log-probability (density, for continuous actions) of each row's action.
    """

    dist_inputs: Floats
    logp: Floats


class Decision(NamedTuple):
    """What a policy does.

    Attributes:
        actions: [R, *head.action_shape] of `head.action_dtype`.
        dist_inputs: [R, D] after masking, what the actions were drawn from; None unless `head.told`.
        state: [R, S] of a recurrent network after the rows, otherwise None.
        sound: Whether what the actions were chosen by are numbers; where it is False they mean nothing, and whoever
            is to act by them refuses with `menv.loop.unsound`.
    """

    actions: Actions
    dist_inputs: Floats | None
    state: Floats | None = None
    sound: bool = True


def fill_in(whole: Decision, rows: Any, part: Decision) -> None:
    """Write the decisions of some rows into those of all."""
    for column, own in zip(whole[:3], part[:3], strict=True):
        if column is not None:
            column[rows] = own


class Steady(Protocol):
    """Decides on the same number of rows of one policy again and again, in two steps."""

    def take(self, obs: Rows, mask: Flags | None, noise: Floats | None) -> None:
        """Take R rows in.

        Args:
            obs: [R, F]; stays as it is until `decide`.
            mask: [R, head.mask_width] or None.
            noise: [R, head.noise_width] or None.
        """

    def decide(self) -> Decision:
        """Return what is decided on the rows taken last; what it was drawn from holds until rows are taken again."""


class Deferred:
    """A `Steady` that does all in the second step.

    Args:
        decide: Returns decisions on rows.
    """

    __slots__ = ("_decide", "_rows")

    def __init__(self, decide: Callable[[Rows, Flags | None, Floats | None], Decision]) -> None:
        self._decide = decide

    def take(self, obs: Rows, mask: Flags | None, noise: Floats | None) -> None:
        """Take R rows in; see `Steady.take`."""
        self._rows = obs, mask, noise

    def decide(self) -> Decision:
        """Return what is decided on them; see `Steady.decide`."""
        return self._decide(*self._rows)


class ActingBackend(Protocol):
    """P policies of one architecture that answer whole batches of rows.

    Choices that a mask forbids have probability exactly 0: they are never drawn and never greedy.
    A recurrent network is told the state [R, S] before each row, everywhere but in `act` and `greedy`, which are
    for networks without one. Not for several threads at once.
    """

    @property
    def head(self) -> ActionHead:
        """How outputs become actions."""

    @property
    def obs_size(self) -> int:
        """F, numbers in a flat observation."""

    @property
    def state_size(self) -> int:
        """S, numbers in a row of recurrent state; 0 for a network without one."""

    @property
    def policies(self) -> int:
        """P, the number of policies."""

    @property
    def weight_names(self) -> Sequence[str]:
        """The names that `set_weights` needs, sorted."""

    def act(self, obs: Rows, mask: Flags | None, noise: Floats, which: Which = None) -> Actions:
        """Draw an action for each row.

        Args:
            obs: [R, F].
            mask: [R, head.mask_width], True where allowed; None allows everything.
            noise: [R, head.noise_width], as `head.noise` says; the only source of chance.
            which: Whose row it is.

        Returns:
            [R, *head.action_shape] of `head.action_dtype`.
        """

    def greedy(self, obs: Rows, mask: Flags | None, which: Which = None) -> Actions:
        """Return the most probable action of each row (the mean, for continuous actions)."""

    def decide(
        self,
        obs: Rows,
        mask: Flags | None,
        noise: Floats | None,
        which: Which = None,
        state: Floats | None = None,
    ) -> Decision:
        """Return what `act` returns, or `greedy` without noise, and what the actions were drawn from."""

    def steady(self, policy: int, rows: int, *, masked: bool, explore: bool) -> Steady:
        """Return what decides like `decide` on the same number of rows of one policy, again and again.

        It is short of whatever can be looked up beforehand, and good until a policy is added; for networks without
        a memory.

        Args:
            policy: Index of the policy.
            rows: R.
            masked: Whether there will be masks.
            explore: Whether there will be noise.
        """

    def evaluate(
        self, policy: int, obs: Rows, mask: Flags | None, actions: Actions, state: Floats | None = None
    ) -> Evaluation:
        """Return distribution inputs and log-probabilities of `actions` under one policy."""

    def values(self, policy: int, obs: Rows, state: Floats | None = None) -> Floats:
        """Return the [N] state values of one policy's critic."""

    def add_policy(self, weights: Weights | None = None) -> int:
        """Add a policy and return its index; without weights it copies policy 0."""

    def set_weights(self, policy: int, weights: Weights) -> None:
        """Copy `weights` in.

        Raises:
            ConfigError: A name or shape differs from the architecture.
        """

    def get_weights(self, policy: int) -> dict[str, Floats]:
        """Return copies of one policy's weights."""

    def alone(self, policy: int) -> ActingBackend:
        """Return a back-end of its own, whose policy 0 has this one's architecture and copies of its weights.

        Both may be used at once, by a thread each.
        """
