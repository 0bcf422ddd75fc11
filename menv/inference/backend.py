"""The one interface between the sampler and whatever runs the networks.

A back-end holds one architecture and the weights of P policies that share it. `OnnxActing` and
the torch back-end implement it; the sampler, the value pass over a closed fragment and
`Policy.act` call it. Nothing here knows environments, agents or how weights are learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError, ContractError
from menv.inference.action_heads import ActionHead

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


def all_finite(outputs: Floats, *, choices: bool) -> bool:
    """Return whether rows [R, n], what choices are worth or actions themselves, mean anything.

    It is asked with every call, so that one product of all of them has to do as a rule: it is finite where they are,
    but for numbers beyond 1e19.
    """
    # Other products warn of overflow.
    return math.isfinite(np.vdot(outputs, outputs)) or not non_finite_rows(outputs, choices=choices).any()


def non_finite_rows(outputs: Floats, *, choices: bool) -> Flags:
    """Return [R] where rows [R, n] hold NaN or infinity; a choice may be worth -inf, as long as another is not."""
    finite = np.isfinite(outputs.max(1)) if choices else np.isfinite(outputs).all(1)
    return np.logical_not(finite)


class ForwardOutputs(NamedTuple):
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
        dist_inputs: [R, D] after masking, what the actions were drawn from; None unless `head.returns_dist_inputs`.
        state: [R, S] of a recurrent network after the rows, otherwise None.
        is_finite: Whether the outputs that actions were chosen by are finite. Where it is False the caller raises
            `non_finite_error`.
    """

    actions: Actions
    dist_inputs: Floats | None
    state: Floats | None = None
    is_finite: bool = True


def fill_in(whole: Decision, rows: Any, part: Decision) -> None:
    """Write the decisions of some rows into those of all."""
    for column, own in zip(whole[:3], part[:3], strict=True):
        if column is not None:
            column[rows] = own


class FixedBatchRunner(Protocol):
    """Decides on the same number of rows of one policy again and again, in two steps."""

    def load(self, obs: Rows, mask: Flags | None, noise: Floats | None) -> None:
        """Take R rows in.

        Args:
            obs: [R, F]; stays as it is until `decide`.
            mask: [R, head.mask_width] or None.
            noise: [R, head.noise_width] or None.
        """

    def decide(self) -> Decision:
        """Return what is decided on the rows taken last; what it was drawn from holds until rows are taken again."""


class LazyOutputs:
    """A `FixedBatchRunner` that does all in the second step.

    Args:
        decide: Returns decisions on rows.
    """

    __slots__ = ("_decide", "_rows")

    def __init__(self, decide: Callable[[Rows, Flags | None, Floats | None], Decision]) -> None:
        self._decide = decide

    def load(self, obs: Rows, mask: Flags | None, noise: Floats | None) -> None:
        """Take R rows in; see `FixedBatchRunner.take`."""
        self._rows = obs, mask, noise

    def decide(self) -> Decision:
        """Return what is decided on them; see `FixedBatchRunner.decide`."""
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

    def fixed_batch(self, policy: int, rows: int, *, masked: bool, explore: bool) -> FixedBatchRunner:
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
    ) -> ForwardOutputs:
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

    def extract_policy(self, policy: int) -> ActingBackend:
        """Return a back-end of its own, whose policy 0 has this one's architecture and copies of its weights.

        Both may be used at once, by a thread each.
        """


# SEAM menv.acting.lanes
# Where rows of several policies are computed in one pass through their stacked networks: in a lane for each
# policy.
#
# `OnnxActing` lays them out, its runners put them there. Nothing here knows networks.


WhichPolicies = npt.NDArray[np.int64]

# Rows of two policies lie in lanes of their own at once, if they are more than so great a part of the spare ones.
_FEW = 6
# Sorting costs as much as so many runs, and pays for rows that have come so often again.
_SORTING = 2
_STEADY = 3


@dataclass(slots=True)
class PolicyBatches:
    """Where R rows of P policies are computed.

    Attributes:
        which: [R] the policy index of each row.
        places: [R] the place of each row among all those computed.
        depth: Places in each policy's lane; 0 where one lane of all rows is computed for everybody.
    """

    which: WhichPolicies
    places: WhichPolicies
    depth: int = 0

    @classmethod
    def of_all(cls, which: WhichPolicies) -> PolicyBatches:
        """Return the places of rows that are computed for everybody: there is more to compute, nothing to sort."""
        places = which * len(which)
        places += np.arange(len(which))
        return cls(which, places)

    @classmethod
    def of_own(cls, which: WhichPolicies, counts: npt.NDArray[np.int64]) -> PolicyBatches:
        """Return lanes that hold their own policy's rows each, of which there are `counts` [P]."""
        depth = depth_for(counts)
        order = np.argsort(which, kind="stable")
        ahead = np.arange(len(counts)) * depth - (np.cumsum(counts) - counts)
        places = np.empty(len(which), np.int64)
        places[order] = np.arange(len(which)) + np.repeat(ahead, counts)
        return cls(which, places, depth)

    @classmethod
    def of_two(cls, which: WhichPolicies) -> PolicyBatches | None:
        """Return lanes of the rows of two policies, None where there is a row of another; nothing is sorted."""
        rows, own = len(which), which.nonzero()[0]
        seconds, before = len(own), which.cumsum()
        # Whole numbers other than 0 of which so many have that sum, and that sum of squares, are all 1.
        if before.item(-1) != seconds or which.dot(which) != seconds:
            return None
        depth = depth_for(np.array((rows - seconds, seconds)))
        places = np.arange(rows) - before
        places[own] = np.arange(depth, depth + seconds)
        return cls(which, places, depth)

    def put(self, rows: npt.NDArray[Any], into: npt.NDArray[Any]) -> None:
        """Copy rows [R, N] into the lanes [P, depth, N], where other places keep what they hold, or [1, R, N]."""
        if self.depth:
            into.reshape(-1, rows.shape[1])[self.places] = rows
        else:
            into[...] = rows

    def spread(self, rows: npt.NDArray[Any], policies: int) -> npt.NDArray[Any]:
        """Return rows [R, N] in new lanes [P, depth, N], zeros elsewhere, or as [1, R, N]."""
        if not self.depth:
            return rows[None]
        lanes = np.zeros((policies, self.depth, rows.shape[1]), rows.dtype)
        self.put(rows, lanes)
        return lanes


def depth_for(counts: npt.NDArray[np.int64]) -> int:
    """Return how deep lanes are of which the fullest holds that many rows.

    In steps of an eighth to a quarter, so that numbers that vary a little do not call for buffers of their own each.
    """
    # Batches of one row are rounded differently.
    most = max(int(np.maximum.reduce(counts)), 2)
    step = 1 << max(0, most.bit_length() - 3)
    return -(-most // step) * step


class PolicyBatchLayout:
    """Decides where rows are computed, by what it costs.

    Args:
        policies: P.
        spare_rows: Rows that cost as much as a run of one policy more; 0 where networks cannot be stacked.
    """

    def __init__(self, policies: int, spare_rows: int) -> None:
        self._policies = policies
        self._spare_rows = spare_rows
        # The rows of the last call, how often they came one after the other, and what came of it.
        self._which = np.zeros(0, np.int64)
        self._times = 0
        self._lanes: PolicyBatches | None = None

    def lanes_of(self, which: WhichPolicies) -> PolicyBatches | None:
        """Return where rows of several policies are computed together; None where a run for each costs less.

        Rows whose like does not come again and again are not sorted unless they are many. That it does is known of an
        array that nobody can write, such as `menv.sampling.rollout_loop` hands over while the same agents wait.
        """
        if which is self._which and not which.flags.writeable:
            self._times += 1
            if self._times == _STEADY:
                self._lanes = self._sorted(which, steady=True)
            return self._lanes
        self._which, self._times = which, 0
        if self._policies == 2 and _FEW * len(which) > self._spare_rows:
            self._lanes = self._of_two(which)
            if self._lanes is not None:
                return self._lanes
        few = (self._policies - 1) * len(which) <= self._spare_rows
        self._lanes = None if few else self._sorted(which, steady=False)
        # Everybody computes all rows, where that costs less than to sort them, or than a run for each.
        if few or (self._lanes is None and self._all_pay(which)):
            self._lanes = PolicyBatches.of_all(which)
        return self._lanes

    def _all_pay(self, which: WhichPolicies) -> bool:
        """Return whether everybody computes all rows for less than a run of each policy that has some would cost.

        Most policies may have none: past versions of one that learns, or those that were removed.
        """
        rows = len(which)
        if rows > self._spare_rows:
            return False
        runs = len(set(which.tolist())) - 1 + _SORTING
        return (self._policies - 1) * rows <= self._spare_rows * runs

    def _of_two(self, which: WhichPolicies) -> PolicyBatches | None:
        """Return lanes of the rows of two policies, None where something else costs less."""
        # With more rows the lanes cost more than another run, however well they are filled.
        if len(which) > 4 * self._spare_rows:
            return None
        lanes = PolicyBatches.of_two(which)
        if lanes is None:
            return None
        return lanes if self._spare(which, lanes.depth) <= min(len(which), self._spare_rows) else None

    def _spare(self, which: WhichPolicies, depth: int) -> int:
        """Return what lanes so deep cost more than runs of each policy, in rows; one in them costs a quarter more."""
        return self._policies * depth - len(which) + len(which) // 4

    def _sorted(self, which: WhichPolicies, *, steady: bool) -> PolicyBatches | None:
        if not self._spare_rows or not (steady or self._policies - 1 > _SORTING):
            return None
        if np.minimum.reduce(which) < 0 or np.maximum.reduce(which) >= self._policies:
            return None
        counts = np.bincount(which, minlength=self._policies)
        spare = self._spare(which, depth_for(counts))
        runs = max(1, int(np.count_nonzero(counts)) - 1) - (0 if steady else _SORTING)
        return PolicyBatches.of_own(which, counts) if spare <= self._spare_rows * runs else None


# SEAM menv.loop.non_finite_error
# What is said where a network no longer gives numbers, so that nobody acts by what it gives.
#
# Back-ends look with every call and say so in `Decision.sound`; whoever was to act by the decision raises
# what is made
# here. Why is only looked for then. It knows no environments.


Array = npt.NDArray[Any]

ADVICE = "go on from a checkpoint of before, with a lower lr, a grad_clip, or smaller rewards"
"""What to do where training has spoiled weights."""


def non_finite_error(
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
    broken = np.flatnonzero(non_finite_rows(inputs, choices=bool(head.choices)))
    return int(rows[broken[0]]) if len(broken) else None


def _of_finite_weights(weights: Mapping[str, Array], row: Array) -> str:
    """Return what is wrong where all weights are finite: with a row, or with the size of numbers."""
    if row.dtype.kind == "f" and not np.isfinite(row).all():
        place = int(np.argmin(np.isfinite(row)))
        return (
            f"number {place} of the {len(row)} that it is shown is {as_text(row[place])}, expected finite "
            "ones; fix the observation, or the connector that made it"
        )
    largest = max((float(np.abs(value).max(initial=0.0)) for value in weights.values()), default=0.0)
    shown = float(np.abs(row.astype(np.float64)).max(initial=0.0))
    return (
        f"its weights are finite (at most {largest:.3g}) and so is what it is shown (at most {shown:.3g}), expected no "
        f"division by zero, logarithm of 0 or overflow in between; mend a custom_model, scale observations, or {ADVICE}"
    )
