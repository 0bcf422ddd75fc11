"""The vector loops: whole vector steps go through one policy's network, without look-ups or objects per row.

`VectorRolloutLoop` runs lockstep environments, which step as one batch. `SyncVectorLoop` runs copies of one
`gymnasium.Env` while all of them wait together; it takes over from the general loop and hands back to it without losing
anything. Rows, random draws and episodes are the same as in `menv.sampling.rollout_loop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.adapters.gym import GymEnvs
from menv.adapters.lockstep import LockstepEnvs
from menv.base_env import SINGLE_AGENT, BaseEnv, Column, VectorStep
from menv.inference.action_sampler import AHEAD, TrajectoryTable
from menv.inference.backend import FixedBatchRunner
from menv.metrics import Metrics, Timers, When
from menv.sample_batch import SampleBatch
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.fragment_limit import Flags, FragmentLimit, WholeEpisodeLimit
from menv.sampling.network_policy_group import NetworkPolicyGroup
from menv.sampling.policy_group import PendingRows, PolicyGroup, outside_space_error
from menv.sampling.vector_rollout_buffer import VectorRolloutBuffer
from menv.spaces import OutsideSpaceError


class VectorStepper:
    """Acts for vector steps with one policy and stores them in the buffer; the base of both loops.

    Attributes:
        env_steps: [E] env steps of each sub-environment, the array that the environment itself counts in.
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
        self.env_steps = env_steps
        self._group = group
        self._policy = policy
        self._table = table
        self._buffer = buffer
        self._timers = timers
        # Positions of the last vector step.
        self._rows = slice(0, buffer.rows)
        # Vector steps since random numbers were drawn ahead.
        self._since = AHEAD
        self._runner: FixedBatchRunner
        self._explore = True

    @property
    def fits(self) -> bool:
        """Whether no connector needs to know which agent a row belongs to."""
        return self._group.path is None or self._group.path.whole

    def _begin(self, explore: bool) -> None:
        obs, mask = self._last_obs()
        self._explore = explore
        self._runner = self._group.backend.fixed_batch(
            self._policy, len(obs), masked=mask is not None, explore=explore
        )
        self._feed(obs, mask)

    def _last_obs(self) -> tuple[Column, Column | None]:
        buffer, rows = self._buffer, self._rows
        masks = buffer.masks
        return buffer.obs[rows], None if masks is None else masks[rows]

    def _feed(self, obs: Column, mask: Column | None) -> None:
        """Give the network its next inputs."""
        before, noise, sampler = perf_counter(), None, self._group.action_sampler
        if self._explore:
            if self._since >= AHEAD:
                sampler.draw_ahead(self._table, self.env_steps)
                self._since = 0
            noise = sampler.ahead(self.env_steps)
        self._since += 1
        self._runner.load(obs, mask, noise)
        self._timers.act += perf_counter() - before

    def _act(self) -> Any:
        before, group = perf_counter(), self._group
        decision = self._runner.decide()
        if not decision.is_finite:
            raise group.non_finite_error(self._policy, *self._last_obs())
        self._buffer.set_actions(self._rows, decision.actions, decision.dist_inputs)
        if group.path is None:
            actions = group.output(decision.actions)
        else:
            actions = group.path.answers(self._policy, decision.actions, *self._last_obs(), None)
        self._timers.act += perf_counter() - before
        return actions

    def _add(self, step: VectorStep, *, act_next: bool = False) -> None:
        """Add a vector step; with `act_next` it is acted on in this fragment, so the network gets its inputs now."""
        try:
            obs, mask = self._group.vector_rows(self._policy, step)
        except OutsideSpaceError as error:
            env_step = int(self.env_steps[error.row])
            raise outside_space_error(error.row, SINGLE_AGENT, f"env step {env_step}", error) from error
        if act_next:
            self._feed(obs, mask)
        self._rows = self._buffer.add_step(step, obs, mask)


class VectorRolloutLoop(VectorStepper):
    """Collects fragments from one lockstep environment, which has not been polled, with one policy."""

    def __init__(
        self,
        env: LockstepEnvs,
        group: NetworkPolicyGroup,
        policy: int,
        table: TrajectoryTable,
        tracker: EpisodeTracker,
        timers: Timers,
    ) -> None:
        keys = [tracker.agent_key(index, SINGLE_AGENT) for index in range(env.num_envs)]
        lives = np.array(keys, np.uint64) >> np.uint64(1)
        buffer = group.use_vector_buffer(policy, lives.astype(np.int64), tracker.new_ids)
        super().__init__(env.env_steps, group, policy, table, buffer, timers)
        self._env = env
        for index, key in enumerate(keys):
            table.assign(index, 0, policy, index, key)

    def sample(self, limit: FragmentLimit, explore: bool) -> int:
        """Take a fragment's vector steps; return the env steps of all sub-environments together."""
        env, num_envs = self._env, self._env.num_envs
        if not self._buffer.rows:
            before = perf_counter()
            first = env.poll_vector_step()
            self._timers.env += perf_counter() - before
            self._add(first)
        self._begin(explore)
        whole = limit if isinstance(limit, WholeEpisodeLimit) else None
        if whole is not None:
            whole.begin(env.env_steps)
        count, full = 0, False
        while not full:
            actions, before = self._act(), perf_counter()
            env.send_vector_actions(actions)
            step = env.poll_vector_step()
            self._timers.env += perf_counter() - before
            count += num_envs if step.begun is None else num_envs - step.begun.tobytes().count(1)
            full = (
                count >= limit.length * num_envs
                if whole is None
                else whole.end_vector_step(step.done, env.env_steps)
            )
            self._add(step, act_next=not full)
        return count

    def record(self, metrics: Metrics) -> None:
        """Record the episodes that ended in the fragment that was just closed."""
        buffer, policy_id = self._buffer, self._group.policy_ids[self._policy]
        metrics.record_many(policy_id, buffer.finished_returns.tolist(), buffer.finished_lengths.tolist())
        self._rows = slice(0, self._env.num_envs)

    def count_episodes(self, numbered: Column) -> tuple[Column, int]:
        """Return how many episodes have begun [E] and how many are running; `numbered` [E] have an id.

        Where a final observation is a row of its own, the next episode has an id before it begins.
        """
        if not self._buffer.closed:
            return numbered, self._env.num_envs
        between = self._env.resetting
        return numbered - between, self._env.num_envs - int(np.count_nonzero(between))

    def leave(self) -> Column:
        """Return the environment to the general loop; return its env steps [E].

        Pending rows are dropped; the rows before them have their whole reward already.
        """
        self._group.reset_buffer()
        self._env.leave_vector_steps()
        steps: Column = self._env.env_steps.copy()
        return steps


def vector_rollout_loop(
    env: BaseEnv,
    groups: list[PolicyGroup],
    only: str | None,
    table: TrajectoryTable,
    tracker: EpisodeTracker,
    timers: Timers,
) -> VectorRolloutLoop | None:
    """Return the loop for a lockstep environment, None unless one feedforward network acts for all agents."""
    if only is None or not isinstance(env, LockstepEnvs) or len(groups) != 1:
        return None
    group = groups[0]
    if not isinstance(group, NetworkPolicyGroup) or group.state_sizes:
        return None
    if group.path is not None and not group.path.whole:
        return None
    return VectorRolloutLoop(env, group, group.policy_ids.index(only), table, tracker, timers)


class SyncVectorLoop(VectorStepper):
    """Steps all copies of a `gymnasium.Env` together, from a moment at which every copy waits.

    The group's buffer is closed and holds the one row of each copy, which are `block`.
    """

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
        lives = tracker.life_keys(env.num_envs)
        buffer = group.use_vector_buffer(policy, lives, tracker.new_ids, keep_rows=True)
        super().__init__(env.env_steps, group, policy, table, buffer, timers)
        self._env = env
        self._tracker = tracker
        self._block = block
        self._acted = False
        # The first env steps of running episodes, and the episodes that ended since the last `record`.
        self._starts = [env.episode_start(index) for index in range(env.num_envs)]
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._when: list[When] = []

    @property
    def fits(self) -> bool:
        return self._group.path is None

    @property
    def running_ids(self) -> list[int]:
        """The ids of the running episodes [E]."""
        ids: list[int] = self._buffer.running().tolist()
        return ids

    def sample(self, steps: int, explore: bool) -> int:
        """Take vector steps and return how many; fewer than `steps` if the next poll needs the general loop."""
        env, slots = self._env, self._env.all_slots
        self._begin(explore)
        for done in range(steps):
            actions, before = self._act(), perf_counter()
            env.send_actions(slots, actions)
            step = env.poll_vector_step()
            self._timers.env += perf_counter() - before
            if step is None:
                self._acted = True
                return done
            self._add(step, act_next=done < steps - 1)
            self._add_returns(step)
        return steps

    def record(self, metrics: Metrics) -> None:
        """Record the episodes that ended since the last call."""
        if self._returns:
            policy_id = self._group.policy_ids[self._policy]
            metrics.record_many(policy_id, self._returns, self._lengths, self._when)
            self._returns, self._lengths, self._when = [], [], []

    def fragment_closed(self, metrics: Metrics) -> None:
        """Record episodes; the pending rows are the first of the closed buffer now."""
        self.record(metrics)
        self._rows = slice(0, self._env.num_envs)

    def leave(self) -> list[PendingRows]:
        """Return the pending rows to the general loop, none if the actions were already sent."""
        ids, policy_id = self.running_ids, self._group.policy_ids[self._policy]
        self._group.leave_vector_buffer(self._buffer, answered=self._acted)
        self._tracker.set_running(ids, policy_id)
        if self._acted:
            return []
        self._block.rows = self._rows
        return [self._block]

    def _add_returns(self, step: VectorStep) -> None:
        """Add rewards to the returns in the order of the general loop, for equal sums."""
        returns = self._table.returns
        returns[: len(step.rewards)] += step.rewards
        if step.done is None:
            return
        for index in step.done.nonzero()[0].tolist():
            self._returns.append(returns.item(index))
            returns[index] = 0.0
            until = self.env_steps.item(index)
            self._lengths.append(until - self._starts[index])
            self._starts[index] = until
            self._when.append(self._tracker.when(index, until))


def sync_vector_loop(
    env: BaseEnv,
    groups: list[PolicyGroup],
    only: str | None,
    table: TrajectoryTable,
    tracker: EpisodeTracker,
    block: PendingRows | None,
    timers: Timers,
) -> SyncVectorLoop | None:
    """Return the loop for copies, None unless all wait for one feedforward network without connectors."""
    if only is None or block is None or not isinstance(env, GymEnvs) or len(groups) != 1:
        return None
    group = groups[0]
    if not isinstance(group, NetworkPolicyGroup) or group.state_sizes or group.path is not None:
        return None
    policy, buffer = group.policy_ids.index(only), group.buffer
    if buffer.rows != env.num_envs or buffer.carried or not tracker.all_use(only):
        return None
    # Every copy has one row, in the order of the copies.
    rows = np.arange(buffer.rows)[block.rows]
    ordered = np.array_equal(block.slots, env.all_slots) and np.array_equal(rows, env.all_slots)
    if not ordered or block.taken is not None or not np.all(block.which == policy):
        return None
    return SyncVectorLoop(env, group, policy, table, tracker, block, timers)


class EpisodeHoldback:
    """Holds the rows of running episodes back, by policy, until the episodes end.

    Only for `WholeEpisodeLimit`: lockstep environments cannot wait at the end of an episode. Each of their
    sub-environments has one agent, so that a trajectory is an episode.
    """

    def __init__(self, limit: FragmentLimit) -> None:
        self._limit = limit if isinstance(limit, WholeEpisodeLimit) else None
        self._kept: dict[str, SampleBatch] = {}

    @property
    def active(self) -> bool:
        return self._limit is not None

    @property
    def held_rewards(self) -> float:
        """The rewards of the rows that are held back."""
        return float(sum(batch[SampleBatch.REWARDS].sum() for batch in self._kept.values()))

    def release(
        self, closed: dict[str, SampleBatch], env_steps: int, excluded: Sequence[SampleBatch] = ()
    ) -> tuple[dict[str, SampleBatch], int]:
        """Return the rows of all episodes that ended, each in one chunk, and their env steps; keep the others.

        `closed` are the rows of a fragment by policy, `excluded` its rows that are excluded from training; earlier rows
        of their episodes are dropped.
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
            chunks = batch.segments
            over = np.isin(chunks.eps_id, chunks.eps_id[_ended(batch)])
            released[policy_id] = _in_order(batch, np.flatnonzero(over))
            self._kept[policy_id] = _in_order(batch, np.flatnonzero(~over))
        released = {policy_id: batch for policy_id, batch in released.items() if batch.count}
        return released, dropped + sum(batch.count for batch in released.values())

    def truncate(self) -> None:
        """Mark the running episodes as truncated after their last rows."""
        if self._limit is not None:
            self._limit.forget_episodes()
        for batch in self._kept.values():
            batch[SampleBatch.TRUNCATEDS][batch.segments.ends - 1] = True

    def drop(self, policy_id: str) -> None:
        """Drop the rows of a policy that is removed."""
        self._kept.pop(policy_id, None)


def _ended(batch: SampleBatch) -> Flags:
    """Return [S] True where a chunk is the last one of its episode."""
    last = batch.segments.ends - 1
    flags: Flags = batch[SampleBatch.TERMINATEDS][last] | batch[SampleBatch.TRUNCATEDS][last]
    return flags


def _in_order(batch: SampleBatch, which: npt.NDArray[np.int64]) -> SampleBatch:
    """Return some chunks, those of one sub-environment joined."""
    chunks = batch.segments
    # The kept chunk of a sub-environment comes first, then its continuation.
    which = which[np.argsort(chunks.env_id[which], kind="stable")]
    lengths = chunks.lengths[which]
    before = np.cumsum(lengths) - lengths
    found = batch.take(np.repeat(chunks.starts[which] - before, lengths) + np.arange(int(lengths.sum())))
    # The sampler assigns the final ids.
    found.segments.unroll_id = found.segments.eps_id
    found.segments = found.segments.joined()
    return found
