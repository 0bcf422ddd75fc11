"""Gathering: fragments become train batches, as many of them as the learners want at once.

`menv.algorithms.algorithm` has one and asks it for batches. What there is of a batch that is not full is part of a
checkpoint. It knows no learners.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from menv.algorithms.rollouts.rollouts import Rollouts
from menv.multi_agent_batch import MultiAgentBatch
from menv.plain_data import is_plain
from menv.sample_batch import SampleBatch
from menv.segments import Segments


class Gathering:
    """Fragments of a batch that is not full.

    Args:
        rollouts: Where they come from.
        by_rows: Whether answered rows count, and not env steps.
    """

    def __init__(self, rollouts: Rollouts, *, by_rows: bool) -> None:
        self._rollouts = rollouts
        self._by_rows = by_rows
        # And how many steps each counts.
        self._fragments: list[tuple[MultiAgentBatch, int]] = []

    def batch(self, size: int, sample: Callable[[], MultiAgentBatch]) -> tuple[MultiAgentBatch | None, int]:
        """Sample until a batch is full; return it and how many steps it counts.

        None where nobody calls an external environment; what there is of the batch is kept for the next time.

        Args:
            size: The steps that make it full.
            sample: Returns the next fragment.
        """
        fragments, rollouts = self._fragments, self._rollouts
        taken = sum(steps for _, steps in fragments)
        while not fragments or taken < size:
            rollouts.prepare()
            with rollouts.taking:
                before = rollouts.agent_steps
                batch = sample()
                if rollouts.idle:
                    return None, 0
                # Answered rows count, although a few of them are held back until their reward is complete.
                steps = rollouts.agent_steps - before if self._by_rows else batch.env_steps()
                fragments.append((batch, steps))
            taken += fragments[-1][1]
        batches, self._fragments = [batch for batch, _ in fragments], []
        return (batches[0] if len(batches) == 1 else MultiAgentBatch.concat_samples(batches)), taken

    def drop(self, policy_id: str) -> None:
        """Leave out the rows of a policy that is removed; another one may have its id next."""
        for batch, _ in self._fragments:
            batch.policy_batches.pop(policy_id, None)

    def state(self) -> list[Any]:
        """Return the fragments as a plain tree, but for infos; none where a file cannot hold them."""
        found = [
            [
                steps,
                batch.env_steps(),
                {
                    name: [rows.stored(), {part: getattr(rows.segments, part) for part in Segments.__slots__}]
                    for name, rows in batch.policy_batches.items()
                },
            ]
            for batch, steps in self._fragments
        ]
        return found if is_plain(found) else []

    def set_state(self, fragments: Sequence[Any], policies: Collection[str]) -> None:
        """Go on with fragments of which `state` told, as far as they are rows of some policies."""
        self._fragments = []
        for steps, env_steps, by_policy in fragments:
            rows = {
                name: SampleBatch(columns, Segments(**parts))
                for name, (columns, parts) in by_policy.items()
                if name in policies
            }
            self._fragments.append((MultiAgentBatch(rows, env_steps), steps))
