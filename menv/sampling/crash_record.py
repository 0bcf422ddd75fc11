"""The crash record: what a fault's crash capsule says about its episode, so that the episode can be repeated.

Nothing is recorded while episodes run. Actions of closed fragments are in `menv.sampling.episode_checkpoint`,
actions of the open fragment in the rollout buffers; they are read when a fault is reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from menv.adapters.adapter import CreatedEnvs
from menv.base_env import EnvId
from menv.errors import ContractError, EnvFault, MenvError
from menv.sampling.episode_checkpoint import EpisodeCheckpoint
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.policy_group import PolicyGroup

if TYPE_CHECKING:
    from menv.sampling.sampler import Sampler

Record = dict[str, Any]
_ABOUT = re.compile(r"env (\d+)(?:, agent .*?, env)? (reset|step)\b")
"""How errors name the sub-environment and the call."""


@dataclass(frozen=True, slots=True)
class CrashRecorder:
    """Describes the faults of one sampler's sub-environments; `checkpoint` has the actions of closed fragments."""

    worker: Sampler
    env: CreatedEnvs | None
    groups: Sequence[PolicyGroup]
    tracker: EpisodeTracker
    checkpoint: EpisodeCheckpoint | None

    def attach(self, error: MenvError) -> None:
        """Describe the fault that an error of `sample` reports in its `capsule`, if it reports one."""
        fault = error._fault or self._fault_of(error)
        if fault is not None and error._capsule is None:
            error._capsule = self.record(fault)

    def record(self, fault: EnvFault, *, acted: bool = True) -> Record:
        """Describe a fault; in its episode agents have `acted`, as far as the tracker knows."""
        env, worker = self.env, self.worker
        return {
            **fault.described(),
            "worker_index": worker.worker_index,
            "vector_index": fault.env_index,
            "seed": None if env is None or env.seed is None else int(env.seed),
            "env_index": fault.env_index + (0 if env is None else env.first_index),
            "began": fault.began,
            "actions": self._actions(fault.env_id) if acted and fault.where == "step" else [],
        }

    def _fault_of(self, error: MenvError) -> EnvFault | None:
        """Return the fault that an error without one is about, None if it is about something else."""
        about, env = _ABOUT.match(str(error)) if isinstance(error, ContractError) else None, self.env
        if about is None or env is None or int(about[1]) >= env.num_envs:
            return None
        index = int(about[1])
        began = int(env.env_steps[index]) if about[2] == "reset" else env.episode_start(index)
        return EnvFault.of(index, index, about[2], error, began)

    def _actions(self, env_id: EnvId) -> list[list[Any]] | None:
        """Return each agent's env-ready actions in its running episode, in order; None where they are not kept."""
        episode = self.tracker.running.get(env_id)
        if episode is None or self.checkpoint is None:
            return None
        released = self.checkpoint.actions_of(episode.episode_id)
        if released is None:
            return None
        found: list[list[Any]] = []
        for agent, (policy, number) in episode.seats().items():
            place, which = self.tracker.locate_policy(policy)
            group = self.groups[place]
            if not group.strategy.can_replay:
                return None
            sources = (released, group.buffer.actions_of(episode.episode_id))
            parts = [source[number] for source in sources if number in source]
            actions = group.strategy.env_actions(np.concatenate(parts), which) if parts else []
            found.append([agent, actions if isinstance(actions, np.ndarray) else list(actions)])
        return found
