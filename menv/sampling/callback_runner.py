"""Calls a user's callbacks about episodes, and keeps what these want to read.

`menv.sampling.episode_tracker` and `menv.sampling.rollout_loop` tell it what happens. Hooks that nobody overrides cost
nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from menv.base_env import COMMON, Column, Ready
from menv.callbacks import DefaultCallbacks, overrides
from menv.episode import Episode
from menv.errors import CALLER, ContractError, EnvFault, EnvFaultWarning
from menv.inference.backend import not_finite
from menv.metrics import Metrics, When
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.sampling.trajectories import AgentTrajectory, agent_trajectories
from menv.spaces import own_copy

_LEARNED = (
    SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS,
    SampleBatch.CRITIC_OBS, SampleBatch.VF_PREDS, SampleBatch.NEXT_VF_PREDS, SampleBatch.ADVANTAGES,
    SampleBatch.VALUE_TARGETS,
)  # fmt: skip
"""Columns that mean the same for everybody; what NaN means in a user's own is not known here."""


def broken_columns(batch: Mapping[str, Any]) -> set[str]:
    """Return the columns of a policy's rows that hold NaN or infinity, of those that are learned from."""
    return {
        name for name in _LEARNED if _of(batch, name) is not None and not_finite({name: _of(batch, name)})
    }


def broken_of_each(batches: Mapping[str, Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return the same for the rows of several policies, by policy id."""
    return {name: broken_columns(batch) for name, batch in batches.items()}


def refuse_broken(
    hook: str,
    policy_id: str,
    batch: Mapping[str, Any],
    before: Collection[str],
    pieces: Sequence[AgentTrajectory] = (),
) -> None:
    """Refuse what a hook has made of a policy's rows, if a column has come to hold NaN or infinity.

    Args:
        hook: Its name.
        policy_id: Whose rows.
        batch: They, [N, ...] each column.
        before: What `broken_columns` returned before the hook was called.
        pieces: Of trajectories, one after the other; without any, no agent is named.

    Raises:
        ContractError: One has.
    """
    for name in sorted(broken_columns(batch) - set(before)):
        column = _of(batch, name)
        row = int(np.argmin(np.isfinite(column).reshape(len(column), -1).all(1)))
        what = not_finite({name: column})
        raise ContractError(
            f"policy {policy_id!r}, {hook}: column {what} in row {row} of {len(column)}{_whose(pieces, row)}, expected "
            "finite numbers; look there for a division by zero, a logarithm of 0 or an overflow"
        )


def _of(batch: Mapping[str, Any], name: str) -> Any:
    stored = batch.stored() if isinstance(batch, SampleBatch) else batch
    column = stored.get(name)
    return column if isinstance(column, np.ndarray) and column.dtype.kind == "f" else None


def _whose(pieces: Iterable[AgentTrajectory], row: int) -> str:
    for piece in pieces:
        if row < piece.batch.count:
            return f", agent {piece.agent_id!r}"
        row -= piece.batch.count
    return ""


# Causes of faults that are warned of; what comes after them is only counted.
_MOST_CAUSES = 64
_OF_EPISODES = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")


class CallbackRunner:
    """The callbacks of one sampler.

    Attributes:
        active: Whether any hook about episodes or trajectories does anything.
        keeps: Whether the episodes of a fragment are kept until it closes, because somebody looks at their pieces.
    """

    def __init__(self, callbacks: DefaultCallbacks, worker: Any, metrics: Metrics) -> None:
        self.callbacks = callbacks
        self._worker = worker
        self._metrics = metrics
        self._steps = overrides(callbacks, "on_episode_step")
        self._pieces = overrides(callbacks, "on_postprocess_trajectory")
        self._sample_end = overrides(callbacks, "on_sample_end")
        self.keeps = self._pieces
        self.active = self._pieces or any(overrides(callbacks, hook) for hook in _OF_EPISODES)
        self._begun: list[tuple[Episode, int]] = []
        # By id: the episodes of this fragment. And those that are over, to be told when it closes.
        self.episodes: dict[int, Episode] = {}
        self._over: list[tuple[Episode, int, bool, When]] = []
        # Causes of faults that have been noted, and those of them that nobody has been warned of yet.
        self._causes: set[tuple[str, str, int]] = set()
        self._untold: list[str] = []
        # Rows that left for training before their trajectory was excluded from it, now and at the last warning.
        self._excluded_late = self._warned_late = 0
        self._env_steps: Column = np.zeros(0, np.int64)

    def keep(self, running: Iterable[Episode]) -> None:
        """Keep episodes from now on, those that run among them."""
        self.keeps = True
        self.episodes.update({episode.episode_id: episode for episode in running})

    def take_up(self, episode: Episode, env_steps: Column) -> None:
        """Note that an episode of before goes on, at these env steps [E]; nobody is told."""
        self._env_steps = env_steps.copy()
        if self.keeps:
            self.keep([episode])

    def begin(self, episode: Episode, env_index: int) -> None:
        """Note that an episode begins."""
        if self.active:
            self._begun.append((episode, env_index))
        if self.keeps:
            self.episodes[episode.episode_id] = episode

    def end(self, episode: Episode, env_index: int, faulty: bool, when: When) -> None:
        """Record an episode that is over and tell so, now or when its pieces have been told.

        One that a fault of its environment broke off is neither told nor recorded; of `when` see `Record`.
        """
        for begun in [one for one in self._begun if one[0] is episode] if self._begun else ():
            # It began in the same poll.
            self._begun.remove(begun)
            if not faulty:
                self._tell_begun(*begun)
        if self._steps and not faulty:
            self._tell("on_episode_step", episode, env_index)
        if self.keeps:
            self._over.append((episode, env_index, faulty, when))
        else:
            self._close_episode(episode, env_index, faulty, when)

    def _close_episode(self, episode: Episode, env_index: int, faulty: bool, when: When) -> None:
        if faulty:
            self._metrics.add_unclaimed(episode.unclaimed_rewards)
            return
        if self.active:
            self._tell("on_episode_end", episode, env_index)
        self._metrics.record(episode, when)

    def note_faults(self, faults: Sequence[EnvFault]) -> None:
        """Count faults of sub-environments, and note those whose cause is new."""
        for fault in faults:
            self._metrics.record_faulty(fault.line)
            # That clients come and go is no reason to warn.
            new = fault.where != CALLER and fault.origin not in self._causes
            if new and len(self._causes) < _MOST_CAUSES:
                self._causes.add(fault.origin)
                self._untold.append(fault.line)

    def note_excluded_late(self, rows: int) -> None:
        """Count rows that left for training before an info excluded their trajectory from it."""
        self._excluded_late += rows

    def warn(self) -> None:
        """Warn of causes of faults that are new, and of rows that left too early when their number has doubled."""
        if self._excluded_late and self._excluded_late >= 2 * self._warned_late:
            self._warned_late = self._excluded_late
            warnings.warn(
                f"info['training_enabled']: False came after {self._excluded_late} timesteps of these trajectories had "
                "left in earlier fragments, expected it before; say it in the first info, or set "
                'batch_mode="complete_episodes"',
                EnvFaultWarning,
                stacklevel=2,
            )
        untold, self._untold = self._untold, []
        for line in untold:
            warnings.warn(
                f"{line}: its episode is lost and the environment was made anew, expected none to raise; mend it, or "
                "set restart_failed_sub_environments=False to stop there",
                EnvFaultWarning,
                stacklevel=2,
            )

    def polled(self, ready: Ready, running: Any, returns: Column) -> None:
        """Tell what began and what moved, once a poll's ends and joins are booked.

        Args:
            ready: The poll.
            running: The episodes that run, by env id.
            returns: What the life in each slot has earned, without the rows of this poll.
        """
        begun, self._begun = self._begun, []
        new = {env_index for _, env_index in begun}
        self._look_at(ready, running, returns)
        for episode, env_index in begun:
            self._tell_begun(episode, env_index)
        before = np.zeros(len(ready.env_steps), np.int64)
        before[: len(self._env_steps)] = self._env_steps
        moved = ready.env_steps - before
        self._env_steps = ready.env_steps.copy()
        for slot in {ready.seats[slot][0]: slot for slot in ready.slots.tolist()}.values():
            env_index = self._worker.env_index_of(slot)
            episode = running.get(ready.seats[slot][0])
            if episode is not None and moved[env_index] and env_index not in new:
                episode.length = int(ready.env_steps[env_index]) - episode.begun_at
                if self._steps:
                    self._tell("on_episode_step", episode, env_index)

    def _tell_begun(self, episode: Episode, env_index: int) -> None:
        self._tell("on_episode_created", episode, env_index)
        self._tell("on_episode_start", episode, env_index)

    def _look_at(self, ready: Ready, running: Any, returns: Column) -> None:
        """Keep each agent's last observation and info with its episode, and what it has earned up to there."""
        infos = ready.infos
        for row, slot in enumerate(ready.slots.tolist()):
            env_id, agent_id = ready.seats[slot]
            # A copy: environments may write into the arrays of a poll once the next one is made.
            running[env_id].look_at(agent_id, own_copy(ready.obs[row]), infos[row] if infos else {})
            running[env_id].count_so_far(agent_id, float(returns[slot] + ready.rewards[row]))
        for shared in ready.shared_infos:
            if shared.env_id in running:
                running[shared.env_id].look_at(COMMON, None, shared.info)

    def closed(self, batch: MultiAgentBatch, policies: Any) -> None:
        """Tell the pieces of trajectories of a fragment, then the episodes that ended in it.

        Raises:
            ContractError: A hook has left NaN or infinity where somebody learns from it.
        """
        if not self.keeps:
            return
        if self._pieces:
            told = {
                name: agent_trajectories(name, own, self.episodes)
                for name, own in batch.policy_batches.items()
            }
            before, broken = _as_they_were(told, policies), broken_of_each(batch.policy_batches)
            for policy_id, pieces in told.items():
                for piece in pieces:
                    self._tell_piece(piece, policies, before[piece.episode.episode_id])
                whole = SampleBatch.concat_samples([piece.batch for piece in pieces])
                batch.policy_batches[policy_id] = whole
                refuse_broken("on_postprocess_trajectory", policy_id, whole, broken[policy_id], pieces)
        over, self._over = self._over, []
        for episode, env_index, faulty, when in over:
            self._close_episode(episode, env_index, faulty, when)
            self.episodes.pop(episode.episode_id, None)

    def sampled(self, batch: MultiAgentBatch) -> None:
        """Tell of a fragment that is ready to be learned from.

        Raises:
            ContractError: The hook has left NaN or infinity where somebody learns from it.
        """
        broken = broken_of_each(batch.policy_batches) if self._sample_end else {}
        self.callbacks.on_sample_end(worker=self._worker, samples=batch)
        for policy_id in broken.keys() & batch.policy_batches.keys():
            refuse_broken("on_sample_end", policy_id, batch.policy_batches[policy_id], broken[policy_id])

    def _tell_piece(self, piece: AgentTrajectory, policies: Any, before: Mapping[Any, Any]) -> None:
        policy_id, agent_id, episode, batch = piece
        self.callbacks.on_postprocess_trajectory(
            worker=self._worker, episode=episode, agent_id=agent_id, policy_id=policy_id, policies=policies,
            postprocessed_batch=batch, original_batches=before,
        )  # fmt: skip

    def _tell(self, hook: str, episode: Episode, env_index: int) -> None:
        worker = self._worker
        getattr(self.callbacks, hook)(
            worker=worker,
            base_env=worker.base_env,
            policies=worker.policies,
            episode=episode,
            env_index=env_index,
        )


def _as_they_were(told: Mapping[str, Sequence[AgentTrajectory]], policies: Any) -> dict[int, dict[Any, Any]]:
    """Return copies of pieces by episode and agent, each with its policy; of an agent of several lives, all of them."""
    found: dict[int, dict[Any, Any]] = {}
    for policy_id, pieces in told.items():
        for piece in pieces:
            of_episode = found.setdefault(piece.episode.episode_id, {})
            lives = [of_episode[piece.agent_id][2]] if piece.agent_id in of_episode else []
            batch = SampleBatch.concat_samples([*lives, piece.batch]) if lives else piece.batch.copy()
            of_episode[piece.agent_id] = (policy_id, policies[policy_id], batch)
    return found
