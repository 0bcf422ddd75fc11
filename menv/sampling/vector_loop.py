"""The vector loops: whole vector steps go through one policy's network, without look-ups or objects per row.

`VectorRolloutLoop` runs lockstep environments, which step as one batch. `SyncVectorLoop` runs copies of one
`gymnasium.Env` while all of them wait together; it takes over from the general loop and hands back to it without losing
anything. Rows, random draws and episodes are the same as in `menv.sampling.rollout_loop`.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from menv.adapters.adapter import Adapter
from menv.base_env import SINGLE_AGENT, Column, VectorStep
from menv.inference.action_sampler import AHEAD, TrajectoryTable
from menv.inference.backend import FixedBatchRunner
from menv.metrics import Metrics, Timers, When
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.fragment_limit import FragmentLimit, WholeEpisodeLimit
from menv.sampling.network_policy_group import NetworkPolicyGroup
from menv.sampling.policy_group import PendingRows, PolicyGroup, outside_space_error
from menv.sampling.vector_rollout_buffer import VectorRolloutBuffer
from menv.spaces import OutsideSpaceError


class VectorRolloutLoop:
    """Collects fragments from one lockstep environment, which has not been polled, with one policy.

    Attributes:
        env_steps: [E] env steps of each sub-environment, the array that the environment itself counts in.
    """

    def __init__(
        self,
        env: Any,
        group: NetworkPolicyGroup,
        policy: int,
        table: TrajectoryTable,
        buffer: VectorRolloutBuffer,
        timers: Timers,
    ) -> None:
        self._env = env
        self.env_steps: Column = env.env_steps
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

    def sample(self, limit: FragmentLimit, explore: bool) -> int:
        """Take a fragment's vector steps; return the env steps of all sub-environments together."""
        env = self._env
        num_envs = env.num_envs
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
    env: Adapter,
    groups: list[PolicyGroup],
    only: str | None,
    table: TrajectoryTable,
    tracker: EpisodeTracker,
    timers: Timers,
) -> VectorRolloutLoop | None:
    """Return the loop for a lockstep environment, None unless one feedforward network acts for all agents."""
    group, vector_env = _only_network(groups, only), env.vector_steps
    if group is None or only is None or vector_env is None:
        return None
    if group.path is not None and not group.path.whole:
        return None
    policy, keys = group.policy_ids.index(only), tracker.agent_keys(env.num_envs)
    for index, key in enumerate(keys.tolist()):
        table.assign(index, 0, policy, index, key)
    lives = (keys >> np.uint64(1)).astype(np.int64)
    buffer = group.use_vector_buffer(policy, lives, tracker.new_ids)
    return VectorRolloutLoop(vector_env, group, policy, table, buffer, timers)


def _only_network(groups: list[PolicyGroup], only: str | None) -> NetworkPolicyGroup | None:
    """Return the group of the only policy, None unless it is a feedforward network."""
    if only is None or len(groups) != 1 or not isinstance(groups[0], NetworkPolicyGroup):
        return None
    return None if groups[0].state_sizes else groups[0]


class SyncVectorLoop(VectorRolloutLoop):
    """Steps all copies of a `gymnasium.Env` together, from a moment at which every copy waits.

    The group's buffer is closed and holds the one row of each copy, which are `block`.
    """

    def __init__(self, tracker: EpisodeTracker, block: PendingRows, *parts: Any) -> None:
        super().__init__(*parts)
        self._tracker = tracker
        self._block = block
        self._acted = False
        # The first env steps of running episodes, and the episodes that ended since the last `record`.
        self._starts = [self._env.episode_start(index) for index in range(self._env.num_envs)]
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

    def take_steps(self, steps: int, explore: bool) -> int:
        """Take vector steps and return how many; fewer than `steps` if the next poll needs the general loop."""
        env = self._env
        slots = env.all_slots
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

    def hand_back(self) -> list[PendingRows]:
        """Return the pending rows to the general loop, none if the actions were already sent."""
        ids, policy_id = self.running_ids, self._group.policy_ids[self._policy]
        self._group.reset_buffer()
        self._buffer.hand_over(self._group.buffer, answered=self._acted)
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
    env: Adapter,
    groups: list[PolicyGroup],
    only: str | None,
    table: TrajectoryTable,
    tracker: EpisodeTracker,
    block: PendingRows | None,
    timers: Timers,
) -> SyncVectorLoop | None:
    """Return the loop for copies, None unless all wait for one feedforward network without connectors."""
    group, copies = _only_network(groups, only), env.copies
    if group is None or only is None or block is None or copies is None:
        return None
    policy, rows = group.policy_ids.index(only), group.buffer
    if group.path is not None or rows.rows != env.num_envs or rows.carried or not tracker.all_use(only):
        return None
    # Every copy has one row, in the order of the copies.
    places = np.arange(rows.rows)[block.rows]
    ordered = np.array_equal(block.slots, copies.all_slots) and np.array_equal(places, copies.all_slots)
    if not ordered or block.taken is not None or not np.all(block.which == policy):
        return None
    lives = (tracker.agent_keys(env.num_envs) >> np.uint64(1)).astype(np.int64)
    buffer = group.use_vector_buffer(policy, lives, tracker.new_ids, keep_rows=True)
    return SyncVectorLoop(tracker, block, copies, group, policy, table, buffer, timers)
