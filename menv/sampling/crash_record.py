"""The crash record: what a fault's crash capsule says about its episode, so that the episode can be repeated.

The recorder keeps the actions of running episodes from closed fragments. The actions of the open fragment are in the
rollout buffers, where they are read when a fault is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from menv.adapters.adapter import CreatedEnvs
from menv.base_env import Column, EnvId
from menv.errors import EnvFault, MenvError
from menv.sample_batch import SampleBatch
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.policy_group import PolicyGroup

if TYPE_CHECKING:
    from menv.sampling.sampler import Sampler

LONGEST = 200_000
"""Rows of an episode; the actions of a longer one are not kept."""

Record = dict[str, Any]


class CrashRecorder:
    """Describes the faults of one sampler's sub-environments; `env` is None if menv did not create them."""

    def __init__(
        self, worker: Sampler, env: CreatedEnvs | None, groups: Sequence[PolicyGroup], tracker: EpisodeTracker
    ) -> None:
        self._worker = worker
        self._env = env
        self._groups = groups
        self._tracker = tracker
        # Of each running episode: for each agent's number the actions of its chunks, each with the chunk's number;
        # None if it is too long.
        self._released: dict[int, dict[int, list[tuple[int, Column]]] | None] = {}
        self._rows: dict[int, int] = {}

    def fragment_closed(self, batches: Iterable[SampleBatch], running: Iterable[int]) -> None:
        """Record the actions of a fragment's batches; drop the episodes that have ended."""
        if self._env is None:
            return
        known, rows = self._released, self._rows
        found = self._released = {episode: known.get(episode, {}) for episode in running}
        self._rows = {episode: rows.get(episode, 0) for episode in found}
        for batch in batches:
            chunks, actions, stop = batch.segments, batch[SampleBatch.ACTIONS], 0
            columns = (chunks.eps_id, chunks.agent_index, chunks.lengths, chunks.unroll_id)
            for episode, agent, length, number in zip(*(column.tolist() for column in columns), strict=True):
                stop += length
                by_agent = found.get(episode)
                if by_agent is not None:
                    by_agent.setdefault(agent, []).append((number, actions[stop - length : stop].copy()))
                    self._rows[episode] += length
                    if self._rows[episode] > LONGEST:
                        found[episode] = None

    def actions_of(self, episode: int) -> dict[int, Column] | None:
        """Return each agent's released actions in order, by the agent's number; None of an episode that is too long."""
        by_agent = self._released.get(episode, {})
        if by_agent is None:
            return None
        # Chunks that are excluded from training come from another batch.
        return {
            agent: np.concatenate([part for _, part in sorted(parts, key=itemgetter(0))])
            for agent, parts in by_agent.items()
        }

    def attach(self, error: MenvError) -> None:
        """Describe the fault that an error of `sample` reports in its `_capsule`, if it reports one."""
        if error._fault is not None and error._capsule is None:
            error._capsule = self.record(error._fault)

    def record(self, fault: EnvFault, *, acted: bool = True) -> Record:
        """Describe a fault; in its episode agents have `acted`, as far as the tracker knows."""
        env, worker = self._env, self._worker
        return {
            **fault.described(),
            "worker_index": worker.worker_index,
            "vector_index": fault.env_index,
            "seed": None if env is None or env.seed is None else int(env.seed),
            "env_index": fault.env_index + (0 if env is None else env.first_index),
            "began": fault.began,
            "actions": self._actions(fault.env_id) if acted and fault.where == "step" else [],
        }

    def _actions(self, env_id: EnvId) -> list[list[Any]] | None:
        """Return each agent's env-ready actions in its running episode, in order; None where they are not kept."""
        self._tracker.use_objects()
        episode = self._tracker.running.get(env_id)
        released = None if episode is None or self._env is None else self.actions_of(episode.episode_id)
        if episode is None or released is None:
            return None
        found: list[list[Any]] = []
        for agent, (policy, number) in episode.seats().items():
            place, which = self._tracker.locate_policy(policy)
            group = self._groups[place]
            if not group.strategy.can_repeat:
                return None
            sources = (released, group.buffer.actions_of(episode.episode_id))
            parts = [source[number] for source in sources if number in source]
            actions = group.strategy.env_actions(np.concatenate(parts), which) if parts else []
            found.append([agent, actions if isinstance(actions, np.ndarray) else list(actions)])
        return found
