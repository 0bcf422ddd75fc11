"""What is said where a network no longer gives numbers, so that nobody acts by what it gives.

Back-ends look with every call and say so in `Decision.sound`; whoever was to act by the decision raises what is made
here. Why is only looked for then. It knows no environments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.acting.backend import ActingBackend, Flags, Floats, Rows, broken_rows
from menv.errors import ConfigError, ContractError

Array = npt.NDArray[Any]

ADVICE = "go on from a checkpoint of before, with a lower lr, a grad_clip, or smaller rewards"
"""What to do where training has spoiled weights."""


def unsound(
    backend: ActingBackend,
    policy_ids: Sequence[str],
    which: Any,
    obs: Rows,
    mask: Flags | None = None,
    state: Floats | None = None,
) -> ContractError:
    """Return the error for a decision that is not `sound`.

    Args:
        backend: Made it.
        policy_ids: By index in the back-end.
        which: [R] policy index, or one for all rows.
        obs: [R, F] as the network was shown them.
        mask: [R, M] or None.
        state: [R, S] of a recurrent network before, or None.
    """
    of_rows = np.broadcast_to(np.asarray(which), (len(obs),))
    for index in np.unique(of_rows).tolist():
        row = _first_broken(backend, index, obs, mask, state, np.flatnonzero(of_rows == index))
        name = not_finite(backend.get_weights(index))
        if row is None and name is None:
            continue
        where = f"policy {policy_ids[index]!r}: its network gives no finite numbers to choose an action by"
        if name is not None:
            return ContractError(f"{where}: weight {name}, expected finite ones; {ADVICE}")
        assert row is not None
        return ContractError(f"{where}: {_of_finite_weights(backend.get_weights(index), obs[row])}")
    # The draw itself went too far: a standard deviation that no float32 can hold.
    first = policy_ids[int(of_rows[0])]
    return ContractError(
        f"policy {first!r}: an action that it draws is not finite, expected a number; its log_std has grown without "
        f"bounds: {ADVICE}"
    )


def check_weights(policy_id: str, weights: Mapping[str, Any]) -> None:
    """Refuse weights of which one is no number, or no array of numbers at all.

    Raises:
        ConfigError: One is NaN, infinite as float32, or cannot be read as float32.
    """
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
                f"policy {policy_id!r}: weight {name!r} holds {as_text(number)}, expected numbers; look for a division "
                f"by zero, or for a loss of your own that is none, or {ADVICE}"
            )


def not_finite(arrays: Mapping[str, Any]) -> str | None:
    """Return the name of the first array that holds NaN or infinity as float32, and which; None if none does."""
    for name, value in arrays.items():
        with suppress(TypeError, ValueError, RuntimeError):
            number = _not_finite(value)
            if number is not None:
                return f"{name!r} holds {as_text(number)}"
    return None


def _not_finite(value: Any) -> Any:
    """Return the first number of an array that is NaN or infinity as float32, None if none is; or raise anything."""
    if np.iscomplexobj(value):
        raise TypeError("its numbers are complex")
    with np.errstate(over="ignore"):
        flat = np.asarray(value, np.float32).reshape(-1)
    # One product of all of them says so as a rule.
    if math.isfinite(np.vdot(flat, flat)) or np.isfinite(flat).all():
        return None
    return flat[~np.isfinite(flat)][0]


def as_text(number: Any) -> str:
    """Return a number that is not finite as messages have it."""
    return "NaN" if math.isnan(number) else f"{float(number)}"


def _first_broken(
    backend: ActingBackend, index: int, obs: Rows, mask: Flags | None, state: Floats | None, rows: Array
) -> int | None:
    """Return the first of some rows for which a policy's distribution inputs are not finite, None if they all are."""
    head = backend.head
    none_taken = np.zeros((len(rows), *head.action_shape), head.action_dtype)
    allowed, before = None if mask is None else mask[rows], None if state is None else state[rows]
    inputs = backend.evaluate(index, obs[rows], allowed, none_taken, before).dist_inputs
    broken = np.flatnonzero(broken_rows(inputs, choices=bool(head.choices)))
    return int(rows[broken[0]]) if len(broken) else None


def _of_finite_weights(weights: Mapping[str, Array], row: Array) -> str:
    """Return what is wrong where all weights are finite: with a row, or with the size of numbers."""
    if row.dtype.kind == "f" and not np.isfinite(row).all():
        place = int(np.argmin(np.isfinite(row)))
        return (
            f"number {place} of the {len(row)} that it is shown is {as_text(row[place])}, expected finite ones; mend "
            "the observation, or the connector that made it"
        )
    largest = max((float(np.abs(value).max(initial=0.0)) for value in weights.values()), default=0.0)
    shown = float(np.abs(row.astype(np.float64)).max(initial=0.0))
    return (
        f"its weights are finite (at most {largest:.3g}) and so is what it is shown (at most {shown:.3g}), expected no "
        f"division by zero, logarithm of 0 or overflow in between; mend a custom_model, scale observations, or {ADVICE}"
    )
