"""WeightsHistory: what each policy's weights were at the last sequence numbers, and what policies thought then.

A server notes the weights that it publishes; actions that a client took arrive later, stamped with the number of the
weights that it acted with, and are judged by those. It does not know who publishes, how, or who is at the other end.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.acting.backend import ActingBackend, Actions, Evaluation, Flags, Floats, Rows
from menv.errors import CallOrderError, ConfigError
from menv.loop.net_policy import NetPolicy

Array = npt.NDArray[Any]


@dataclass(slots=True)
class _Judge:
    """A back-end that is for nothing else than to judge one policy's actions.

    Attributes:
        origin: The back-end that acts.
        backend: One of its own, with other weights.
        number: The sequence number of these.
    """

    origin: ActingBackend
    backend: ActingBackend
    number: int | None = None


class WeightsHistory:
    """The last `keep` sets of weights of each policy.

    Sequence numbers belong to the whole run: a policy that did not learn in an update need not be noted, and its
    weights at that number are those that it had before. Memory: `keep` copies of each policy's weights, and one more
    of each policy that is evaluated; `forget` frees those of a policy that is gone.

    May be used by several threads at once: noting never waits for an evaluation.

    Args:
        keep: How many sets of weights of each policy are kept.

    Raises:
        ConfigError: `keep` is not positive.
    """

    def __init__(self, keep: int = 16) -> None:
        if keep < 1:
            raise ConfigError(
                f"WeightsHistory: keep={keep}, expected at least 1; keep what clients may act with"
            )
        self.keep = keep
        self._latest: int | None = None
        self._sets: dict[str, dict[int, dict[str, Array]]] = {}
        self._judges: dict[str, _Judge] = {}
        self._notes, self._judging = threading.Lock(), threading.Lock()

    @property
    def latest(self) -> int | None:
        """The newest sequence number, None before there is one."""
        return self._latest

    def note(self, seq: int, policy_id: str, weights: Mapping[str, Array]) -> None:
        """Keep copies of the weights that a policy has from sequence number `seq` on.

        Args:
            seq: Not below the latest, and above those of this policy.
            policy_id: Whose.
            weights: As `policy.get_weights` returns them; they may change afterwards.

        Raises:
            CallOrderError: The number is too low.
        """
        copies = {name: np.array(value) for name, value in weights.items()}
        for value in copies.values():
            value.flags.writeable = False
        with self._notes:
            sets = self._sets.setdefault(policy_id, {})
            last = max(sets, default=None)
            if (self._latest is not None and seq < self._latest) or (last is not None and seq <= last):
                raise CallOrderError(
                    f"WeightsHistory.note: number {seq} for policy {policy_id!r} after {last}, and {self._latest} for "
                    "any, expected numbers that increase; count on from the latest"
                )
            sets[seq] = copies
            self._latest = seq
            if len(sets) > self.keep:
                del sets[min(sets)]

    def known(self, policy_id: str, seq: int) -> bool:
        """Return whether the weights that a policy had at a sequence number are still here."""
        return self._found(policy_id, seq) is not None

    def weights(self, policy_id: str, seq: int | None = None) -> Mapping[str, Array] | None:
        """Return the weights, read-only, that a policy had at a number; None if they are unknown or forgotten.

        Args:
            policy_id: Whose.
            seq: The number; None for the latest.
        """
        found = self._found(policy_id, seq)
        return None if found is None else found[1]

    def evaluate(
        self,
        policy: NetPolicy,
        seq: int | None,
        rows: Rows,
        mask: Flags | None,
        actions: Actions,
        state: Floats | None = None,
    ) -> Evaluation | None:
        """Return what a policy thought of actions at a sequence number.

        The weights that act are left alone.

        Args:
            policy: Whose back-end computes it.
            seq: The number; None for the latest.
            rows: [N, F] as the network reads them, behind all connectors.
            mask: [N, M] True where allowed; None allows everything.
            actions: [N, ...] of the network, as ledgers keep them; `ActionOutput.inverse` makes them of the
                environment's.
            state: [N, S] of a recurrent network before each row.

        Returns:
            [N, D] distribution inputs and [N] log-probabilities; None if nobody knows the weights any more, or yet:
            what was done with them is best left out.

        Raises:
            ConfigError: The weights that were noted are those of another network.
        """
        found = self._found(policy.policy_id, seq)
        if found is None:
            return None
        number, weights = found
        with self._judging:
            judge = self._judge(policy)
            if judge.number != number:
                names = judge.backend.weight_names
                judge.backend.set_weights(0, {name: weights[name] for name in names if name in weights})
                judge.number = number
            return judge.backend.evaluate(0, rows, mask, actions, state)

    def forget(self, policy_id: str) -> None:
        """Forget a policy, which has been removed; another one may be noted under its id."""
        with self._notes, self._judging:
            self._sets.pop(policy_id, None)
            self._judges.pop(policy_id, None)

    def _found(self, policy_id: str, seq: int | None) -> tuple[int, dict[str, Array]] | None:
        """Return the number from which on a policy had the weights that it had at `seq`, and these."""
        with self._notes:
            sets = self._sets.get(policy_id, {})
            if self._latest is None or (seq is not None and seq > self._latest):
                return None
            numbers = list(sets)
            place = len(numbers) if seq is None else bisect_right(numbers, seq)
            return (numbers[place - 1], sets[numbers[place - 1]]) if place else None

    def _judge(self, policy: NetPolicy) -> _Judge:
        judge, origin = self._judges.get(policy.policy_id), policy.networks.backend
        if judge is None or judge.origin is not origin:
            judge = _Judge(origin, origin.alone(policy.index))
            self._judges[policy.policy_id] = judge
        return judge
