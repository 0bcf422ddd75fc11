"""ActingBackend: the interface between the sampler and the code that runs the networks.

A back-end holds one architecture and the weights of P policies that share it. `OnnxBackend` and `TorchBackend`
implement it; the sampler, the value pass over a closed fragment and `Policy.act` call it. The errors for networks whose
outputs are not finite are also here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError, ContractError
from menv.inference.heads.head import ActionHead

Floats: TypeAlias = npt.NDArray[np.float32]
Rows: TypeAlias = npt.NDArray[Any]
"""[R, F] observations: float32, or uint8 where they are images of bytes."""
Flags: TypeAlias = npt.NDArray[np.bool_]
Actions: TypeAlias = npt.NDArray[Any]
Which: TypeAlias = "npt.NDArray[np.int64] | int | None"
"""The policy index of each row [R], or one index for all rows; None means policy 0."""
Weights: TypeAlias = Mapping[str, Floats]

# The layers' outputs of 65,536 rows do not fit the caches, which costs half as much again. Fewer rows of large
# observations, such as images, whose copies as floats would need gigabytes.
_ROWS_AT_ONCE = 8192
_NUMBERS_AT_ONCE = 4_194_304
_LEAST_AT_ONCE = 64


class ForwardOutputs(NamedTuple):
    """[N, D] distribution inputs after masking (illegal choices: finite, very low), and [N] log-probabilities."""

    dist_inputs: Floats
    logp: Floats


class Decision(NamedTuple):
    """The actions of R rows.

    Attributes:
        actions: [R, *head.action_shape] of `head.action_dtype`.
        dist_inputs: [R, D] after masking; None unless `head.returns_dist_inputs`.
        state: [R, S] of a recurrent network after the rows, otherwise None.
        is_finite: Whether the outputs that actions were chosen by are finite. If not, the caller raises
            `non_finite_error`.
    """

    actions: Actions
    dist_inputs: Floats | None
    state: Floats | None = None
    is_finite: bool = True


class ActingBackend(ABC):
    """P policies of one architecture that act on whole batches of rows. Not thread-safe.

    Choices that a mask forbids have probability exactly 0: they are never sampled and never greedy.
    A recurrent network needs the state [R, S] before each row. Shapes: obs [R, F]; mask [R, head.mask_width], True
    where allowed, None allows everything; noise [R, head.noise_width], the only source of randomness.

    Attributes:
        head: How outputs become actions.
        state_size: S, numbers in a row of recurrent state; 0 for a network without one.
        shapes: Shapes of one policy's weights, by sorted name.
    """

    name: ClassVar[str]
    """The value of the setting `inference` that asks for it."""

    def __init__(self, head: ActionHead, first: Weights, state_size: int) -> None:
        self.head = head
        self.state_size = state_size
        self.shapes = {name: np.shape(first[name]) for name in sorted(first)}

    @property
    @abstractmethod
    def obs_size(self) -> int:
        """F, numbers in a flat observation."""

    @property
    @abstractmethod
    def policies(self) -> int:
        """P, the number of policies."""

    @property
    def weight_names(self) -> Sequence[str]:
        """The names that `set_weights` needs, sorted."""
        return tuple(self.shapes)

    @abstractmethod
    def decide(
        self,
        obs: Rows,
        mask: Flags | None,
        noise: Floats | None,
        which: Which = None,
        state: Floats | None = None,
    ) -> Decision:
        """Return actions sampled with the noise, or the most probable ones (the mean, of numbers) without noise."""

    def evaluate(
        self, policy: int, obs: Rows, mask: Flags | None, actions: Actions, state: Floats | None = None
    ) -> ForwardOutputs:
        """Return distribution inputs and log-probabilities of `actions` under one policy."""
        found = [
            self._evaluated(policy, obs[part], taken(mask, part), actions[part], taken(state, part))
            for part in portions(obs)
        ]
        return found[0] if len(found) == 1 else ForwardOutputs(*map(np.concatenate, zip(*found, strict=True)))

    @abstractmethod
    def _evaluated(
        self, policy: int, obs: Rows, mask: Flags | None, actions: Actions, state: Floats | None
    ) -> ForwardOutputs:
        """Do `evaluate` for rows that are computed at once."""

    def values(self, policy: int, obs: Rows, state: Floats | None = None) -> Floats:
        """Return the [N] state values of one policy's critic; `state` is the critic's own if it is centralized."""
        found = [self._valued(policy, obs[part], taken(state, part)) for part in portions(obs)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    @abstractmethod
    def _valued(self, policy: int, obs: Rows, state: Floats | None) -> Floats:
        """Do `values` for rows that are computed at once."""

    @abstractmethod
    def critic_state(self, policy: int, obs: Rows, state: Floats) -> Floats:
        """Return the states [N, S] of a recurrent centralized critic after rows; `state` is that before them."""

    @abstractmethod
    def add_policy(self, weights: Weights | None = None) -> int:
        """Add a policy and return its index; without weights it copies policy 0."""

    @abstractmethod
    def set_weights(self, policy: int, weights: Weights) -> None:
        """Copy `weights` in; a name or shape that differs from the architecture is a ConfigError."""

    @abstractmethod
    def get_weights(self, policy: int) -> dict[str, Floats]:
        """Return copies of one policy's weights."""

    @abstractmethod
    def extract_policy(self, policy: int) -> ActingBackend:
        """Return a back-end whose policy 0 has copies of this policy's weights; two threads may use the two at once."""

    def _require_policy(self, policy: int) -> None:
        if not 0 <= policy < self.policies:
            raise ConfigError(
                f"{type(self).__name__}: policy {policy}, expected 0 to {self.policies - 1}; call add_policy first"
            )

    def _decide_each(
        self,
        decide: Callable[[int, Rows, Flags | None, Floats | None, Floats | None], Decision],
        which: npt.NDArray[np.int64],
        columns: tuple[Rows, Flags | None, Floats | None, Floats | None],
    ) -> Decision:
        """Return the decisions on R rows by one call for each policy that has some."""
        found, finite = self._empty(len(which)), True
        for policy in np.unique(which).tolist():
            rows = np.flatnonzero(which == policy)
            obs, *others = columns
            part = decide(policy, obs[rows], *(taken(column, rows) for column in others))
            finite = finite and part.is_finite
            for column, own in zip(found[:3], part[:3], strict=True):
                if column is not None:
                    column[rows] = own
        return found._replace(is_finite=finite)

    def _empty(self, rows: int) -> Decision:
        """Return a decision on R rows to fill in."""
        head, width = self.head, self.state_size
        inputs = np.empty((rows, head.inputs), np.float32) if head.returns_dist_inputs else None
        state = np.empty((rows, width), np.float32) if width else None
        return Decision(head.empty_actions(rows), inputs, state)


def check_shapes(backend: str, weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ConfigError for weights whose names or shapes differ from the architecture's."""
    found = {name: np.shape(weights[name]) for name in weights}
    wrong = sorted((name for name in {*found, *shapes} if found.get(name) != shapes.get(name)), key=str)
    if wrong:
        raise ConfigError(
            f"{backend}: {len(wrong)} weights do not fit the architecture, first {wrong[0]!r} of shape "
            f"{found.get(wrong[0])}, expected {shapes.get(wrong[0])}; give the weights of the same network"
        )


def portions(obs: Rows) -> list[slice]:
    """Return the slices in which rows are computed fastest, one after the other."""
    rows, width = obs.shape
    size = min(_ROWS_AT_ONCE, max(_LEAST_AT_ONCE, _NUMBERS_AT_ONCE // max(1, width)))
    return [slice(start, start + size) for start in range(0, max(rows, 1), size)]


def taken(array: Array | None, rows: Array | slice) -> Array | None:
    """Return some rows of an array, None without one."""
    return None if array is None else array[rows]


Array = npt.NDArray[Any]

ADVICE = "go back to an earlier checkpoint, with a lower lr, a grad_clip, or smaller rewards"
"""What to do where training has spoiled weights."""


def all_finite(outputs: Floats, *, choices: bool) -> bool:
    """Return whether rows [R, n], logits or Q-values of choices or actions themselves, are finite.

    Back-ends ask with every call, so it computes one product of all of them first, which is finite where they are,
    except for numbers beyond 1e19.
    """
    # Other products warn of overflow.
    if math.isfinite(np.vdot(outputs, outputs)):
        return True
    # A choice may have -inf, as long as another has not.
    return bool(np.isfinite(outputs.max(1) if choices else outputs).all())


def non_finite_error(
    backend: ActingBackend, policy_ids: Sequence[str], which: Which, obs: Rows
) -> ContractError:
    """Return the error for a decision that is not `is_finite`; the cause is only searched for here.

    `which` is [R] or one policy index, obs [R, F] the network's input.
    """
    asked = np.unique(np.asarray(which)).tolist()
    names = ", ".join(repr(policy_ids[index]) for index in asked)
    found = (not_finite(backend.get_weights(index)) for index in asked)
    weight = next((name for name in found if name is not None), None)
    shown = float(np.abs(obs.astype(np.float64)).max(initial=0.0))
    cause = f"weight {weight}" if weight else f"its weights are finite, and it is shown at most {shown:.3g}"
    return ContractError(
        f"policy {names}: its network returned values that are not finite: {cause}, expected finite values; fix a "
        f"connector or a custom_model, scale observations, or {ADVICE}"
    )


def check_weights(policy_id: str, weights: Mapping[str, Any]) -> None:
    """Raise ConfigError for a weight that is not an array of numbers, finite as float32."""
    if not isinstance(weights, Mapping):
        raise ConfigError(
            f"policy {policy_id!r}: the weights are a {type(weights).__name__}, expected a dict of arrays"
        )
    for name, value in weights.items():
        try:
            number = _not_finite(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"policy {policy_id!r}: weight {name!r} is a {type(value).__name__} that cannot be read as float32 "
                f"({' '.join(str(error).split()):.100}), expected an array of numbers; give numpy arrays, "
                "tensor.detach().cpu().numpy() of a tensor"
            ) from error
        if number is not None:
            raise ConfigError(
                f"policy {policy_id!r}: weight {name!r} holds {as_text(number)}, expected numbers; look for a "
                f"division by zero, or for a custom loss that is not finite, or {ADVICE}"
            )


def not_finite(arrays: Mapping[str, Any]) -> str | None:
    """Return the name of the first array that holds NaN or infinity as float32, and which; None if none does."""
    for name, value in arrays.items():
        with suppress(TypeError, ValueError, RuntimeError):
            number = _not_finite(value)
            if number is not None:
                return f"{name!r} holds {as_text(number)}"
    return None


def _not_finite(value: npt.ArrayLike) -> np.float32 | None:
    """Return the first number of an array that is NaN or infinity as float32, None if none is; or raise anything."""
    if np.iscomplexobj(value):
        raise TypeError("its numbers are complex")
    with np.errstate(over="ignore"):
        flat = np.asarray(value, np.float32).reshape(-1)
    # As a rule one product shows that all of them are finite.
    if math.isfinite(np.vdot(flat, flat)) or np.isfinite(flat).all():
        return None
    first: np.float32 = flat[~np.isfinite(flat)][0]
    return first


def as_text(number: float | np.floating[Any]) -> str:
    """Return a non-finite number as messages write it."""
    return "NaN" if math.isnan(number) else f"{float(number)}"
