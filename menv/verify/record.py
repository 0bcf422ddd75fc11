"""What happened in one back-end: its digest, and all rows, to find the first one that differs in another.

`menv.verify.backends` writes it, `menv.verify.difference` compares two. It can be written to a file of plain arrays,
for rows that come from another process. It knows neither environments nor policies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from menv.base_env import SINGLE_AGENT
from menv.loop.digest import Digest, Rows, row_hashes
from menv.loop.sampler import Sampler
from menv.multi_agent_batch import MultiAgentBatch
from menv.sample_batch import SampleBatch
from menv.segments import Column

Part = dict[str, Column]

COMPARED = ("obs", "action_mask", "actions", "rewards", "terminateds", "truncateds", "last_obs")
"""Columns in the order in which one follows from the other."""


class Record:
    """The rows of all samplers of one back-end.

    Attributes:
        digest: Of all of them.
        parts: Columns of [N] rows each: those of `COMPARED` that there are, `hash`, whose they are (`life`, `eps_id`,
            `env_index` among all, `agent` as text) and when (`t` in the trajectory, `env_t` in the sub-environment).
    """

    def __init__(self) -> None:
        self.digest = Digest()
        self.parts: list[Part] = []

    def take(self, sampler: Sampler, batch: MultiAgentBatch, first_index: int) -> None:
        """Add what a sampler has sampled since its start.

        Args:
            sampler: It keeps its episodes, unless its sub-environments step together.
            batch: Its only fragment.
            first_index: Index of its first sub-environment among all.
        """
        self.digest.add(sampler.digest)
        for own in batch.policy_batches.values():
            self.parts.append(_part(sampler, own, first_index))

    def add(self, other: Record) -> None:
        """Add what other samplers of the same task have sampled."""
        self.digest.add(other.digest)
        self.parts += other.parts

    def save(self, path: Path) -> None:
        """Write the record to a file."""
        arrays = {
            f"{number}/{name}": column
            for number, part in enumerate(self.parts)
            for name, column in part.items()
        }
        # Text, for halves of the sum need not fit into the integers of an array.
        np.savez(path, digest=np.array([str(number) for number in self.digest.state()]), **_as_any(arrays))

    @classmethod
    def load(cls, path: Path) -> Record:
        """Return the record that was written to a file."""
        record = cls()
        with np.load(path, allow_pickle=False) as arrays:
            record.digest = Digest(*(int(text) for text in arrays["digest"]))
            parts: dict[str, Part] = {}
            for key in arrays.files:
                number, _, name = key.partition("/")
                if name:
                    parts.setdefault(number, {})[name] = arrays[key]
        record.parts = list(parts.values())
        return record


def _part(sampler: Sampler, batch: SampleBatch, first_index: int) -> Part:
    pieces = batch.segments
    part: Part = {
        "hash": row_hashes(Rows.of(batch)),
        "life": pieces.spread("life"),
        "eps_id": pieces.spread("eps_id"),
        "env_index": pieces.spread("env_id") + first_index,
        "agent": np.repeat(_agents(sampler, batch), pieces.lengths),
        "t": batch[SampleBatch.T],
        "env_t": batch[SampleBatch.ENV_T]
        if SampleBatch.ENV_T in batch
        else _counted(pieces.spread("env_id")),
        "last_obs": batch[SampleBatch.NEXT_OBS],
    }
    for name in COMPARED:
        if name in batch:
            part[name] = _plain(batch[name])
    return part


def _agents(sampler: Sampler, batch: SampleBatch) -> Column:
    """Return [S] what the agents of the pieces are called."""
    episodes, pieces = sampler.episodes, batch.segments
    names = [
        repr(episodes[eps_id].get_agents()[number] if eps_id in episodes else SINGLE_AGENT)
        for eps_id, number in zip(pieces.eps_id.tolist(), pieces.agent_index.tolist(), strict=True)
    ]
    return np.array(names, np.str_)


def _counted(env_indices: Column) -> Column:
    """Return [N] how many rows of the same sub-environment lie before each."""
    order = np.argsort(env_indices, kind="stable")
    in_order = env_indices[order]
    counts = np.empty_like(env_indices)
    counts[order] = np.arange(len(order)) - np.searchsorted(in_order, in_order)
    return counts


def _plain(column: Column) -> Column:
    if column.dtype != object:
        return column
    return np.array([repr(value) for value in column.tolist()], np.str_)


def _as_any(arrays: Part) -> dict[str, Any]:
    return dict(arrays)
