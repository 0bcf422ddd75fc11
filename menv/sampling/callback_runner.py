"""The callback runner: calls a user's callbacks, and keeps the episodes that they read.

`menv.sampling.episode_tracker`, the rollout loop and the sampler report to it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from menv.base_env import COMMON, Column, Ready
from menv.callbacks import DefaultCallbacks, overrides
from menv.episode import Episode
from menv.errors import CALLER, EnvFault, EnvFaultWarning
from menv.metrics import Metrics, When
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.sampling.trajectories import AgentTrajectory, agent_trajectories
from menv.spaces import own_copy

_MOST_CAUSES, _MOST_OF_A_CAUSE = 64, 5
"""Causes of faults that are reported, and how many of each; other faults are only counted."""
_EPISODE_HOOKS = ("on_episode_start", "on_episode_step", "on_episode_end")


class CallbackRunner:
    """The callbacks of one sampler.

    Attributes:
        active: Whether any hook about episodes or trajectories is overridden; others cost nothing.
        looks_at_ends: Whether a hook is called when an episode ends, before its sub-environment is reset.
        keeps: Whether the episodes of a fragment are kept until it closes.
        episodes: The kept episodes by id.
        describe: Describes a fault; see `CrashRecorder.record`.
    """

    describe: Callable[..., dict[str, Any]]

    def __init__(self, callbacks: DefaultCallbacks, worker: Any, metrics: Metrics) -> None:
        self.callbacks = callbacks
        self._worker = worker
        self._metrics = metrics
        self._steps = overrides(callbacks, "on_episode_step")
        self._postprocess = overrides(callbacks, "on_postprocess_trajectory")
        self._sample_end = overrides(callbacks, "on_sample_end")
        # With `on_postprocess_trajectory`, which comes first, `on_episode_end` waits for the end of the fragment.
        ends = overrides(callbacks, "on_episode_end") and not self._postprocess
        self.looks_at_ends = self._steps or ends
        self.keeps = self._postprocess
        self.active = self._postprocess or any(overrides(callbacks, hook) for hook in _EPISODE_HOOKS)
        self._begun: list[tuple[Episode, int]] = []
        self.episodes: dict[int, Episode] = {}
        # Kept episodes that ended.
        self._over: list[tuple[Episode, int, bool, When]] = []
        # How many faults each cause had.
        self._causes: Counter[tuple[str, str, int]] = Counter()
        # Rows released before their trajectory was excluded from training, now and at the last warning.
        self._excluded_late = self._warned_late = 0
        self._env_steps: Column = np.zeros(0, np.int64)

    def keep(self, running: Iterable[Episode]) -> None:
        """Keep episodes from now on, the running ones included."""
        self.keeps = True
        self.episodes.update({episode.episode_id: episode for episode in running})

    def begin(self, episode: Episode, env_index: int) -> None:
        """Begin an episode."""
        if self.active:
            self._begun.append((episode, env_index))
        if self.keeps:
            self.episodes[episode.episode_id] = episode

    def end(self, episode: Episode, env_index: int, faulty: bool, when: When) -> None:
        """Record an episode and call its callbacks, after the callbacks of its trajectories if it is kept.

        A faulty episode, ended by an error in its environment, is not recorded and has no callbacks.
        """
        for begun in [one for one in self._begun if one[0] is episode] if self._begun else ():
            # It began in the same poll.
            self._begun.remove(begun)
            if not faulty:
                self._call("on_episode_start", *begun)
        if self._steps and not faulty:
            self._call("on_episode_step", episode, env_index)
        if self.active and not faulty and not self._postprocess:
            self._call("on_episode_end", episode, env_index)
        if self.keeps:
            self._over.append((episode, env_index, faulty, when))
        else:
            self._close_episode(episode, env_index, faulty, when)

    def _close_episode(self, episode: Episode, env_index: int, faulty: bool, when: When) -> None:
        if faulty:
            self._metrics.add_unclaimed(episode.unclaimed_rewards)
            return
        if self._postprocess:
            self._call("on_episode_end", episode, env_index)
        self._metrics.record(episode, when)

    def record_faults(self, faults: Sequence[EnvFault]) -> None:
        """Count faults of sub-environments, and describe the first ones of each cause for the process that reports."""
        here: set[Any] = set()
        for fault in faults:
            self._metrics.record_faulty(fault.line)
            # Clients may disconnect at any time.
            known = fault.origin in self._causes or len(self._causes) < _MOST_CAUSES
            if fault.where != CALLER and known:
                self._causes[fault.origin] += 1
                if self._causes[fault.origin] <= _MOST_OF_A_CAUSE:
                    self._metrics.faults.append(self.describe(fault, acted=fault.env_id not in here))
            here.add(fault.env_id)

    def count_excluded_late(self, rows: int) -> None:
        """Count rows that were released before an info excluded their trajectory from training."""
        self._excluded_late += rows

    def warn(self) -> None:
        """Warn of rows that were released too early if their number has doubled."""
        if self._excluded_late and self._excluded_late >= 2 * self._warned_late:
            self._warned_late = self._excluded_late
            warnings.warn(
                f"info['training_enabled']: False came after {self._excluded_late} timesteps of these trajectories had "
                "left in earlier fragments; set it in the first info, or use "
                'batch_mode="complete_episodes"',
                EnvFaultWarning,
                stacklevel=2,
            )

    def polled(self, ready: Ready, running: Any, returns: Column) -> None:
        """Call the callbacks of episodes that began or stepped, after the poll's ends and joins were recorded.

        `returns` [slots] exclude the rewards of this poll.
        """
        begun, self._begun = self._begun, []
        new = {env_index for _, env_index in begun}
        self._look_at(ready, running, returns)
        for episode, env_index in begun:
            self._call("on_episode_start", episode, env_index)
        before = np.zeros(len(ready.env_steps), np.int64)
        before[: len(self._env_steps)] = self._env_steps
        moved = ready.env_steps - before
        self._env_steps = before
        for slot in {ready.seats[slot][0]: slot for slot in ready.slots.tolist()}.values():
            env_index = self._worker.env_index_of(slot)
            before[env_index] = ready.env_steps[env_index]
            episode = running.get(ready.seats[slot][0])
            if episode is not None and moved[env_index] and env_index not in new:
                episode.length = int(ready.env_steps[env_index]) - episode.begun_at
                if self._steps:
                    self._call("on_episode_step", episode, env_index)

    def _look_at(self, ready: Ready, running: Any, returns: Column) -> None:
        """Store each agent's last observation, info and return so far in its episode."""
        infos = ready.infos
        for row, slot in enumerate(ready.slots.tolist()):
            env_id, agent_id = ready.seats[slot]
            # A copy, because environments may overwrite the arrays of a poll at the next one.
            running[env_id].look_at(agent_id, own_copy(ready.obs[row]), infos[row] if infos else {})
            running[env_id].count_so_far(agent_id, float(returns[slot] + ready.rewards[row]))
        for shared in ready.shared_infos:
            if shared.env_id in running:
                running[shared.env_id].look_at(COMMON, None, shared.info)

    def fragment_closed(self, batch: MultiAgentBatch, policies: Any) -> None:
        """Call `on_postprocess_trajectory` for the fragment's trajectories, then end its episodes."""
        if not self.keeps:
            return
        if self._postprocess:
            trajectories = {
                name: agent_trajectories(name, own, self.episodes)
                for name, own in batch.policy_batches.items()
            }
            before = _original_batches(trajectories, policies)
            for policy_id, pieces in trajectories.items():
                for _, agent_id, episode, own in pieces:
                    self.callbacks.on_postprocess_trajectory(
                        worker=self._worker, episode=episode, agent_id=agent_id, policy_id=policy_id, policies=policies,
                        postprocessed_batch=own, original_batches=before[episode.episode_id],
                    )  # fmt: skip
                batch.policy_batches[policy_id] = SampleBatch.concat_samples(
                    [piece.batch for piece in pieces]
                )
        over, self._over = self._over, []
        for episode, env_index, faulty, when in over:
            self._close_episode(episode, env_index, faulty, when)
            self.episodes.pop(episode.episode_id, None)

    def fragment_sampled(self, batch: MultiAgentBatch) -> None:
        """Call `on_sample_end` for a fragment that is ready for training."""
        self.callbacks.on_sample_end(worker=self._worker, samples=batch)

    def _call(self, hook: str, episode: Episode, env_index: int) -> None:
        worker = self._worker
        getattr(self.callbacks, hook)(
            worker=worker,
            base_env=worker.base_env,
            policies=worker.policies,
            episode=episode,
            env_index=env_index,
        )


def _original_batches(
    trajectories: Mapping[str, Sequence[AgentTrajectory]], policies: Any
) -> dict[int, dict[Any, Any]]:
    """Return copies of the rows of each agent, with its policy, by episode and agent."""
    found: dict[int, dict[Any, Any]] = {}
    for policy_id, pieces in trajectories.items():
        for piece in pieces:
            of_episode = found.setdefault(piece.episode.episode_id, {})
            lives = [of_episode[piece.agent_id][2]] if piece.agent_id in of_episode else []
            batch = SampleBatch.concat_samples([*lives, piece.batch]) if lives else piece.batch.copy()
            of_episode[piece.agent_id] = (policy_id, policies[policy_id], batch)
    return found
