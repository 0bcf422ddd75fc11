"""MultiAgentBatch: what all policies experienced in the same env steps.

`menv.loop.sampler` makes it, an algorithm hands each policy's part to its learner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from menv.errors import ConfigError
from menv.policy_map import DEFAULT_POLICY
from menv.sample_batch import SampleBatch
from menv.segments import Column


class MultiAgentBatch:
    """What all policies experienced in the same env steps.

    Attributes:
        policy_batches: The batch of each policy that has rows.
    """

    def __init__(self, policy_batches: Mapping[str, SampleBatch], env_steps: int) -> None:
        self.policy_batches = dict(policy_batches)
        self._env_steps = env_steps

    def __repr__(self) -> str:
        rows = {policy: batch.count for policy, batch in self.policy_batches.items()}
        return f"MultiAgentBatch({self._env_steps} env steps, rows {rows})"

    def __getitem__(self, policy_id: str) -> SampleBatch:
        if policy_id not in self.policy_batches:
            raise KeyError(
                f"MultiAgentBatch: no rows of {policy_id!r}, expected one of {list(self.policy_batches)}"
            )
        return self.policy_batches[policy_id]

    def __contains__(self, policy_id: object) -> bool:
        return policy_id in self.policy_batches

    def __iter__(self) -> Iterator[str]:
        return iter(self.policy_batches)

    @property
    def count(self) -> int:
        """Number of env steps."""
        return self._env_steps

    def env_steps(self) -> int:
        """Return the number of env steps, over all sub-environments."""
        return self._env_steps

    def agent_steps(self) -> int:
        """Return the number of rows of all policies, padding left out."""
        return sum(batch.agent_steps() for batch in self.policy_batches.values())

    def env_steps_of(self, policy_ids: Collection[str], env_per_agent_step: float) -> int:
        """Return in how many env steps the agents of some policies acted, as far as their rows are here.

        Rows do not say who acted together. Agents that act in turn have an env step for each row, and agents that act
        together have one for each pair of `eps_id` and `t`. Between the two, the ratio of all rows decides.

        Args:
            policy_ids: Of policies that have rows.
            env_per_agent_step: Env steps for each row of all policies.
        """
        some = _rows_and_times([self[name] for name in policy_ids])
        rows, times = _rows_and_times(list(self.policy_batches.values()))
        share = (rows * env_per_agent_step - times) / (rows - times) if rows > times else 1.0
        return round(some[1] + min(1.0, max(0.0, share)) * (some[0] - some[1]))

    def copy(self, shallow: bool = False) -> MultiAgentBatch:
        """Return the same rows; see `SampleBatch.copy`."""
        copies = {policy: batch.copy(shallow) for policy, batch in self.policy_batches.items()}
        return MultiAgentBatch(copies, self._env_steps)

    def as_multi_agent(self) -> MultiAgentBatch:
        """Return this batch; a `SampleBatch` has the same method."""
        return self

    def timeslices(self, k: int) -> list[MultiAgentBatch]:
        """Return batches with the rows of `k` times each, sorted by episode and time; the last may have fewer.

        A time is a pair of `eps_id` and `t`, so agents that act together in one step stay together. `t` counts
        each agent's own steps: agents that take turns, or joined at different steps, are put side by side by
        how often they have acted. `env_steps()` of a slice is the number of its times.

        Raises:
            ConfigError: `k` is below 1, or a batch is padded.
        """
        batches = list(self.policy_batches.values())
        padded = any(SampleBatch.SEQ_MASK in batch for batch in batches)
        if k < 1 or padded:
            raise ConfigError(
                f"MultiAgentBatch.timeslices: got k={k} of {'a padded' if padded else 'an unpadded'} batch, expected "
                "at least 1 and an unpadded one; pad the slices"
            )
        if not self.agent_steps():
            return []
        times = _times(batches)
        count = 1 + max(int(time.max()) for time in times if len(time))
        bounds = np.arange(0, count + k, k)
        parts: list[dict[str, SampleBatch]] = [{} for _ in bounds[1:]]
        for policy_id, batch, time in zip(self.policy_batches, batches, times, strict=True):
            # Stable, so that the rows of a trajectory stay together and in time.
            order = np.argsort(time // k, kind="stable")
            ends = np.searchsorted((time // k)[order], np.arange(len(parts)), "right").tolist()
            for part, start, end in zip(parts, [0, *ends[:-1]], ends, strict=True):
                if end > start:
                    part[policy_id] = batch.take(order[start:end])
        return [
            MultiAgentBatch(part, min(k, count - int(first)))
            for part, first in zip(parts, bounds[:-1], strict=True)
        ]

    @staticmethod
    def wrap_as_needed(
        policy_batches: Mapping[str, SampleBatch], env_steps: int
    ) -> SampleBatch | MultiAgentBatch:
        """Return the batch itself if it is that of the default policy alone, else a `MultiAgentBatch`."""
        if list(policy_batches) == [DEFAULT_POLICY]:
            return policy_batches[DEFAULT_POLICY]
        return MultiAgentBatch(policy_batches, env_steps)

    @staticmethod
    def concat_samples(batches: Sequence[MultiAgentBatch]) -> MultiAgentBatch:
        """Return several fragments as one batch."""
        ids = dict.fromkeys(policy for batch in batches for policy in batch.policy_batches)
        merged = {
            policy: SampleBatch.concat_samples(
                [batch.policy_batches[policy] for batch in batches if policy in batch.policy_batches]
            )
            for policy in ids
        }
        return MultiAgentBatch(merged, sum(batch.env_steps() for batch in batches))


def _rows_and_times(batches: Sequence[SampleBatch]) -> tuple[int, int]:
    rows = sum(batch.agent_steps() for batch in batches)
    return rows, 1 + max(int(time.max()) for time in _times(batches) if len(time)) if rows else 0


def _times(batches: Sequence[SampleBatch]) -> list[Column]:
    """Return the number of each row's time among those of all batches, in order of episode and `t`."""
    episode = np.concatenate([batch["eps_id"] for batch in batches])
    step = np.concatenate([batch["t"] for batch in batches])
    order = np.lexsort((step, episode))
    is_new = np.zeros(len(order), np.bool_)
    is_new[1:] = (np.diff(episode[order]) != 0) | (np.diff(step[order]) != 0)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_new)
    return np.split(numbers, np.cumsum([batch.count for batch in batches])[:-1])
