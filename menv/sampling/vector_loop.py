"""Framed: what answers whole frames with one policy's network, and writes them down.

`menv.sampling.vector_loop` and `menv.sampling.vector_loop` go round with it. It knows no environments: who steps,
when a fragment is full and what episodes are is theirs to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.adapters.gym import GymEnvs
from menv.adapters.lockstep import LockstepEnvs
from menv.base_env import SINGLE_AGENT, BaseEnv, Column, EpisodeEnd, VectorStep
from menv.errors import ContractError
from menv.inference.action_sampler import AHEAD, TrajectoryTable
from menv.inference.backend import FixedBatchRunner
from menv.metrics import Metrics, Timers, When
from menv.sample_batch import SampleBatch
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.fragment_limit import LONGEST, Flags, FragmentLimit
from menv.sampling.network_policy_group import NetworkPolicyGroup
from menv.sampling.policy_group import PendingRows, PolicyGroup, outside
from menv.sampling.vector_rollout_buffer import VectorRolloutBuffer
from menv.spaces import OutsideSpaceError


class VectorStepper:
    """What answers whole frames with one policy, and writes them down.

    Attributes:
        env_steps: [E] env steps of each sub-environment so far.
    """

    def __init__(
        self,
        env_steps: Column,
        group: NetworkPolicyGroup,
        policy: int,
        table: TrajectoryTable,
        buffer: VectorRolloutBuffer,
        timers: Timers,
    ) -> None:
        """Begin where `buffer` stands.

        Args:
            env_steps: [E] env steps of each sub-environment, the very array that counts them.
            group: Whose network answers.
            policy: Index of the policy in it.
            table: Holds the keys of the draws.
            buffer: The group's.
            timers: Told of what environments and the network take.
        """
        self.env_steps = env_steps
        self._group = group
        self._policy = policy
        self._table = table
        self._buffer = buffer
        self._timers = timers
        # Where the last frame is.
        self._rows = slice(0, buffer.rows)
        # Frames since draws were made ahead.
        self._since = AHEAD
        # Answers the fragment that is under way.
        self._steady: FixedBatchRunner
        self._explore = True

    @property
    def fits(self) -> bool:
        """Whether no connector cares whose the rows are."""
        return self._group.path is None or self._group.path.whole

    def _begin(self, explore: bool) -> None:
        obs, mask = self._last()
        self._explore = explore
        self._steady = self._group.backend.fixed_batch(
            self._policy, len(obs), masked=mask is not None, explore=explore
        )
        self._take(obs, mask)

    def _last(self) -> tuple[Column, Column | None]:
        buffer, rows = self._buffer, self._rows
        masks = buffer.masks
        return buffer.obs[rows], None if masks is None else masks[rows]

    def _take(self, obs: Column, mask: Column | None) -> None:
        before, noise, drawn = perf_counter(), None, self._group.action_sampler
        if self._explore:
            if self._since >= AHEAD:
                drawn.draw_ahead(self._table, self.env_steps)
                self._since = 0
            noise = drawn.ahead(self.env_steps)
        self._since += 1
        self._steady.load(obs, mask, noise)
        self._timers.act += perf_counter() - before

    def _answer(self) -> Any:
        before, group = perf_counter(), self._group
        decision = self._steady.decide()
        if not decision.is_finite:
            raise group.non_finite_error(self._policy, *self._last())
        self._buffer.answer(self._rows, decision.actions, decision.dist_inputs)
        if group.path is None:
            answers = group.output(decision.actions)
        else:
            answers = group.path.answers(self._policy, decision.actions, *self._last(), None)
        self._timers.act += perf_counter() - before
        return answers

    def _write(self, frame: VectorStep, *, ask: bool = False) -> None:
        """Write a frame down.

        Args:
            frame: The frame.
            ask: Whether it is answered in this fragment: the network gets its rows now.
        """
        try:
            obs, mask = self._group.frame_rows(self._policy, frame)
        except OutsideSpaceError as error:
            step = int(self.env_steps[error.row])
            raise outside(error.row, SINGLE_AGENT, f"env step {step}", error) from error
        if ask:
            self._take(obs, mask)
        self._rows = self._buffer.add_frame(frame, obs, mask)


class WholeEpisodeLimit(FragmentLimit):
    """A fragment is full when the episodes that ended in it have so many env steps, all sub-environments together.

    Args:
        length: Env steps a sub-environment.
    """

    def __init__(self, length: int) -> None:
        super().__init__(length, lockstep=True)
        # [E] env steps of each sub-environment when its running episode began.
        self._since: Column = np.zeros(0, np.int64)
        self._over = 0

    def begin(self, env_steps: Column) -> None:
        """Begin a fragment at these env step counts [E]; episodes that run go on."""
        self._over = 0
        if len(env_steps) != len(self._since):
            self._since = env_steps.copy()

    def break_off(self) -> None:
        """Forget the episodes that run: with the next fragment others begin."""
        self._since = self._since[:0]

    def note_ends(self, ends: Sequence[EpisodeEnd]) -> None:
        """Count the env steps of episodes that ended."""
        for end in ends:
            self._since[end.env_index] += end.env_steps
            self._over += end.env_steps

    def note_frame(self, done: Flags | None, env_steps: Column) -> bool:
        """Count the env steps of episodes that ended at these counts [E]; return whether the fragment is full."""
        if done is not None:
            self._over += int((env_steps - self._since)[done].sum())
            self._since[done] = env_steps[done]
        return self.closed(env_steps) is not None

    def closed(self, env_steps: Column) -> Flags | None:
        """Return [E] True when the fragment is full, None before.

        Raises:
            ContractError: An episode seems never to end.
        """
        if self._over >= self.length * len(env_steps):
            return np.ones(len(env_steps), np.bool_)
        running = env_steps - self._since
        if np.maximum.reduce(running) > LONGEST + 10 * self.length:
            raise ContractError(
                f"sample: env {int(running.argmax())} took {int(running.max())} env steps without the end of an "
                'episode, expected one with batch_mode="complete_episodes"; truncate episodes in the environment, or '
                'use "truncate_episodes"'
            )
        return None


class EpisodeHoldback:
    """The rows of episodes that run, by policy; empty unless the limit is a `WholeEpisodeLimit`."""

    def __init__(self, limit: FragmentLimit) -> None:
        self._limit = limit if isinstance(limit, WholeEpisodeLimit) else None
        self._kept: dict[str, SampleBatch] = {}

    @property
    def waits(self) -> bool:
        """Whether rows wait here for the end of their episode."""
        return self._limit is not None

    @property
    def rewards(self) -> float:
        """What the rows earned that wait here."""
        return float(sum(batch[SampleBatch.REWARDS].sum() for batch in self._kept.values()))

    def completed(self, group: PolicyGroup, closed: dict[str, SampleBatch]) -> dict[str, SampleBatch]:
        """Return what a group released, with all that must be known by the weights of now."""
        return closed if self._limit is None else group.with_inputs(closed)

    def release(
        self, closed: dict[str, SampleBatch], env_steps: int, excluded: Sequence[SampleBatch] = ()
    ) -> tuple[dict[str, SampleBatch], int]:
        """Return the rows of all episodes that are over, each in one piece, and their env steps; keep the others.

        Args:
            closed: The rows of a fragment by policy. A row with a flag is the last one of its episode.
            env_steps: Taken in the fragment.
            excluded: Rows of the fragment that are excluded from training; earlier rows of their episodes are dropped.
        """
        if self._limit is None:
            return closed, env_steps
        released, dropped = {}, sum(batch.count for batch in excluded)
        for policy_id, batch in self._kept.items() if excluded else ():
            gone = np.concatenate([one.segments.eps_id for one in excluded])
            kept = _in_order(batch, np.flatnonzero(~np.isin(batch.segments.eps_id, gone)))
            dropped += batch.count - kept.count
            self._kept[policy_id] = kept
        for policy_id in dict.fromkeys((*self._kept, *closed)):
            parts = [rows[policy_id] for rows in (self._kept, closed) if policy_id in rows]
            batch = SampleBatch.concat_samples(parts)
            pieces = batch.segments
            ended = _flagged(batch)
            over = np.isin(pieces.eps_id, pieces.eps_id[ended])
            released[policy_id] = _in_order(batch, np.flatnonzero(over))
            self._kept[policy_id] = _in_order(batch, np.flatnonzero(~over))
        released = {policy_id: batch for policy_id, batch in released.items() if batch.count}
        return released, dropped + sum(batch.count for batch in released.values())

    def break_off(self) -> None:
        """Count the episodes that run as truncated by what their last rows led to: nobody goes on with them."""
        if self._limit is not None:
            self._limit.break_off()
        for batch in self._kept.values():
            batch[SampleBatch.TRUNCATEDS][batch.segments.ends - 1] = True

    def drop(self, policy_id: str) -> None:
        """Forget the rows of a policy that is removed."""
        self._kept.pop(policy_id, None)


def _flagged(batch: SampleBatch) -> Flags:
    """Return [S] True where a piece is the last one of its episode."""
    last = batch.segments.ends - 1
    flags: Flags = batch[SampleBatch.TERMINATEDS][last] | batch[SampleBatch.TRUNCATEDS][last]
    return flags


def _in_order(batch: SampleBatch, which: npt.NDArray[np.int64]) -> SampleBatch:
    pieces = batch.segments
    # Of each sub-environment the piece that was kept comes first, and the one that goes on from it next.
    which = which[np.argsort(pieces.env_id[which], kind="stable")]
    lengths = pieces.lengths[which]
    before = np.cumsum(lengths) - lengths
    taken = batch.take(np.repeat(pieces.starts[which] - before, lengths) + np.arange(int(lengths.sum())))
    # Who hands them out numbers the pieces.
    taken.segments.unroll_id = taken.segments.eps_id
    taken.segments = taken.segments.joined()
    return taken


class VectorRolloutLoop(VectorStepper):
    """Collects fragments from one lockstep environment with one policy."""

    def __init__(
        self,
        env: LockstepEnvs,
        group: NetworkPolicyGroup,
        policy: int,
        table: TrajectoryTable,
        tracker: EpisodeTracker,
        timers: Timers,
    ) -> None:
        """Seat everybody.

        Args:
            env: It has not been polled.
            group: Whose network answers.
            policy: Index of the policy in it.
            table: The keys of the draws are written there.
            tracker: Numbers the episodes.
            timers: Told of what environments and the network take.
        """
        keys = [tracker.agent_key(index, SINGLE_AGENT) for index in range(env.num_envs)]
        lives = np.array(keys, np.uint64) >> np.uint64(1)
        buffer = group.take_frames(policy, lives.astype(np.int64), tracker.new_ids)
        super().__init__(env.env_steps, group, policy, table, buffer, timers)
        self._env = env
        for index, key in enumerate(keys):
            table.assign(index, 0, policy, index, key)

    def sample(self, limit: FragmentLimit, explore: bool) -> int:
        """Take a fragment's env steps of all sub-environments together; return how many."""
        env, num_envs = self._env, self._env.num_envs
        if not self._buffer.rows:
            before = perf_counter()
            first = env.poll_vector_step()
            self._timers.env += perf_counter() - before
            self._write(first)
        self._begin(explore)
        whole = limit if isinstance(limit, WholeEpisodeLimit) else None
        if whole is not None:
            whole.begin(env.env_steps)
        taken, full = 0, False
        while not full:
            actions, before = self._answer(), perf_counter()
            env.send_vector_actions(actions)
            frame = env.poll_vector_step()
            self._timers.env += perf_counter() - before
            taken += num_envs if frame.begun is None else num_envs - frame.begun.tobytes().count(1)
            full = (
                taken >= limit.length * num_envs
                if whole is None
                else whole.note_frame(frame.done, env.env_steps)
            )
            self._write(frame, ask=not full)
        return taken

    def record(self, metrics: Metrics) -> None:
        """Record the episodes that the last fragment ended; to be called when it has been closed."""
        finished = self._buffer.finished
        policy_id = self._group.policy_ids[self._policy]
        metrics.record_many(policy_id, finished.returns.tolist(), finished.lengths.tolist())
        self._rows = slice(0, self._env.num_envs)

    def stand(self, numbered: Column) -> tuple[Column, int]:
        """Return [E] how many episodes have begun, and how many run.

        Args:
            numbered: [E] how many have a number. Where a last observation is a row of its own, the next episode has one
                when the fragment is closed, and begins with the next step.
        """
        if not self._buffer.closed:
            return numbered, self._env.num_envs
        between = self._env.resetting
        return numbered - between, self._env.num_envs - int(np.count_nonzero(between))

    def leave(self) -> Column:
        """Give the environment back, to be polled; return [E] env steps so far.

        The rows that wait are dropped: what came before them has its whole reward already.
        """
        self._group.reset_buffer()
        self._env.leave_vector_steps()
        steps: Column = self._env.env_steps.copy()
        return steps


def frame_loop(
    env: BaseEnv,
    groups: list[PolicyGroup],
    only: str | None,
    table: TrajectoryTable,
    tracker: EpisodeTracker,
    timers: Timers,
) -> VectorRolloutLoop | None:
    """Return the short way round, None where one network without a memory is not all."""
    if only is None or not isinstance(env, LockstepEnvs) or len(groups) != 1:
        return None
    group = groups[0]
    if not isinstance(group, NetworkPolicyGroup) or group.state_sizes:
        return None
    if group.path is not None and not group.path.whole:
        return None
    return VectorRolloutLoop(env, group, group.policy_ids.index(only), table, tracker, timers)


class SyncVectorLoop(VectorStepper):
    """A stretch of env steps that all copies take together."""

    def __init__(
        self,
        env: GymEnvs,
        group: NetworkPolicyGroup,
        policy: int,
        table: TrajectoryTable,
        tracker: EpisodeTracker,
        block: PendingRows,
        timers: Timers,
    ) -> None:
        """Begin where every copy waits.

        Args:
            env: The copies.
            group: Whose network answers; its buffer is closed and holds the one row of each copy.
            policy: Index of the policy in it.
            table: Keeps what the episodes that run have earned.
            tracker: Numbers the episodes, and is told which of them run when the stretch ends.
            block: The rows that wait.
            timers: Told of what environments and the network take.
        """
        buffer = group.take_frames(policy, tracker.lives(env.num_envs), tracker.new_ids, going_on=True)
        super().__init__(env.env_steps, group, policy, table, buffer, timers)
        self._env = env
        self._tracker = tracker
        self._block = block
        self._answered = False
        # Where the episodes that run began, and those that ended since the last `record`.
        self._starts = [env.episode_start(index) for index in range(env.num_envs)]
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._when: list[When] = []

    @property
    def fits(self) -> bool:
        """Whether no connector has come."""
        return self._group.path is None

    @property
    def running_ids(self) -> list[int]:
        """The ids of the episodes [E] that run."""
        ids: list[int] = self._buffer.running().tolist()
        return ids

    def sample(self, frames: int, explore: bool) -> int:
        """Take so many env steps of each copy; return how many, fewer where a poll has more to tell."""
        env, slots = self._env, self._env.all_slots
        self._begin(explore)
        for taken in range(frames):
            actions, before = self._answer(), perf_counter()
            env.send_actions(slots, actions)
            frame = env.poll_vector_step()
            self._timers.env += perf_counter() - before
            if frame is None:
                self._answered = True
                return taken
            self._write(frame, ask=taken < frames - 1)
            self._add_up(frame)
        return frames

    def record(self, metrics: Metrics) -> None:
        """Record the episodes that ended since the last time."""
        if self._returns:
            policy_id = self._group.policy_ids[self._policy]
            metrics.record_many(policy_id, self._returns, self._lengths, self._when)
            self._returns, self._lengths, self._when = [], [], []

    def closed(self, metrics: Metrics) -> None:
        """Record, for the fragment has been closed, and the rows that wait have moved."""
        self.record(metrics)
        self._rows = slice(0, self._env.num_envs)

    def leave(self) -> list[PendingRows]:
        """End the stretch; return the rows that wait, none if a poll has more to tell."""
        ids, policy_id = self.running_ids, self._group.policy_ids[self._policy]
        self._group.leave_frames(self._buffer, answered=self._answered)
        self._tracker.go_on(ids, policy_id)
        if self._answered:
            return []
        self._block.rows = self._rows
        return [self._block]

    def _add_up(self, frame: VectorStep) -> None:
        """Add up what the episodes earn, step by step as the long way does."""
        returns = self._table.returns
        returns[: len(frame.rewards)] += frame.rewards
        if frame.done is None:
            return
        for index in frame.done.nonzero()[0].tolist():
            self._returns.append(returns.item(index))
            returns[index] = 0.0
            until = self.env_steps.item(index)
            self._lengths.append(until - self._starts[index])
            self._starts[index] = until
            self._when.append(self._tracker.when(index, until))


def copies_loop(
    env: BaseEnv,
    groups: list[PolicyGroup],
    only: str | None,
    table: TrajectoryTable,
    tracker: EpisodeTracker,
    block: PendingRows | None,
    timers: Timers,
) -> SyncVectorLoop | None:
    """Return a stretch of the short way, None where not all copies wait for one plain network without a memory."""
    if only is None or block is None or not isinstance(env, GymEnvs) or len(groups) != 1:
        return None
    group = groups[0]
    if not isinstance(group, NetworkPolicyGroup) or group.state_sizes or group.path is not None:
        return None
    policy, buffer = group.policy_ids.index(only), group.buffer
    if buffer.rows != env.num_envs or buffer.carried or not tracker.all_follow(only):
        return None
    # Every copy has one row, in the order of the copies.
    rows = np.arange(buffer.rows)[block.rows]
    ordered = np.array_equal(block.slots, env.all_slots) and np.array_equal(rows, env.all_slots)
    if not ordered or block.taken is not None or not np.all(block.which == policy):
        return None
    return SyncVectorLoop(env, group, policy, table, tracker, block, timers)
