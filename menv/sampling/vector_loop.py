"""The vector loop: whole vector steps go through one policy's network, without look-ups or objects per row.

`VectorLoop` takes them from lockstep environments, which step as one batch. Rows, random draws and episodes are the
same as in `menv.sampling.rollout_loop`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from menv.adapters.adapter import Adapter
from menv.adapters.vector import LockstepEnvs
from menv.base_env import SINGLE_AGENT, Column, VectorStep
from menv.errors import ContractError
from menv.inference.backend import non_finite_error
from menv.inference.network_policy import NetworkGroup
from menv.metrics import Metrics, Timers
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.fragment_limit import FragmentLimit
from menv.sampling.policy_group import (
    ActionSampler,
    PolicyGroup,
    check_bounds,
    outside_space_error,
)
from menv.sampling.trajectories import TrajectoryTable
from menv.spaces import OutsideSpaceError


class VectorLoop:
    """Takes vector steps of one lockstep environment with one feedforward policy, from the first poll on.

    The slot of an agent is the index of its sub-environment. Starts and ends of trajectories are collected, and passed
    to the buffer for many steps at once. Where the final observation of an episode is a row of its own, because the
    next step resets, that row is the first of the next trajectory.

    Args:
        env: The environment.
        group: The group of the policy.
        networks: Its networks.
        policy: The policy's index in it.
        table: Its entries of the slots are set.
        tracker: Knows the running episodes.
        timers: Count the seconds of environments and policies.

    Attributes:
        env_steps: [E] env steps of each sub-environment, the array that the environment itself counts in.
    """

    def __init__(
        self,
        env: LockstepEnvs,
        group: PolicyGroup,
        networks: NetworkGroup,
        policy: int,
        table: TrajectoryTable,
        tracker: EpisodeTracker,
        timers: Timers,
    ) -> None:
        self._env = env
        self.env_steps: Column = env.env_steps
        self._group = group
        self._networks = networks
        self._sampler = ActionSampler(networks.backend.head.draw, networks.backend.head.noise_width)
        self._policy = policy
        self._table = table
        self._tracker = tracker
        self._timers = timers
        self._buffer = group.buffer
        self._slots = np.arange(env.num_envs)
        self._lives = (tracker.agent_keys(env.num_envs) >> np.uint64(1)).astype(np.int64)
        # [E] where the running episodes began, as a number of vector steps after the last `_flush`.
        self._begun_at = np.zeros(env.num_envs, np.int64)
        self._begin(self._slots, 0)
        # Positions of the last vector step.
        self._rows = slice(0, 0)
        # Of each vector step since the last `_flush`: None, or the sub-environments [K] that are done, and their flags.
        self._ended: list[tuple[Column, Column, Column] | None] = []
        # Final observations, None if they are rows, and their infos.
        self._finals: list[Any] | None = []
        self._final_infos: list[Mapping[str, Any]] = []
        # Returns and lengths of the fragment's episodes.
        self._returns: list[float] = []
        self._lengths: list[int] = []

    @property
    def fits(self) -> bool:
        """Whether no connector needs to know which agent a row belongs to."""
        return _fits(self._group)

    def _act(self, explore: bool) -> Any:
        before, networks = perf_counter(), self._networks
        obs, mask = self._buffer.inputs(self._rows)
        noise = self._sampler.rows(self._slots, self._table, self.env_steps) if explore else None
        decision = networks.backend.decide(obs, mask, noise, self._policy)
        if not decision.is_finite:
            self._flush()
            check_bounds(self._group.strategy, self._buffer)
            raise non_finite_error(networks.backend, networks.policy_ids, self._policy, obs)
        self._buffer.set_actions(self._rows, decision.actions, decision.dist_inputs)
        path = self._group.strategy.path
        if path is None:
            actions = networks.output(decision.actions)
        else:
            actions = path.answers(self._policy, decision.actions, obs, mask, None)
        self._timers.act += perf_counter() - before
        return actions

    def _rows_of(self, step: VectorStep) -> tuple[Column, Column | None]:
        path, over = self._group.strategy.path, step.done if step.finals is None else None
        if path is not None:
            return path.rows(self._policy, step.obs, over=over)[:2]
        return self._networks.preprocess(step.obs, False if over is None else over)

    def _add(self, step: VectorStep) -> None:
        """Add the rows of a vector step."""
        try:
            obs, mask = self._rows_of(step)
        except OutsideSpaceError as error:
            env_step = int(self.env_steps[error.row])
            raise outside_space_error(error.row, SINGLE_AGENT, f"env step {env_step}", error) from error
        self._rows = self._buffer.add(self._slots, obs, mask, step.rewards)
        if step.infos:
            self._buffer.add_infos(step.infos, None)
        if step.done is None:
            self._ended.append(None)
            return
        done = step.done.nonzero()[0]
        self._ended.append((done, step.terminated.take(done), step.truncated.take(done)))
        if step.finals is None:
            self._finals = None
            self._final_infos += [step.infos[index] if step.infos else {} for index in done.tolist()]
        else:
            assert self._finals is not None
            self._finals += step.finals
            self._final_infos += step.final_infos

    def _check_rewards(self) -> None:
        """Raise if a reward of the fragment is not finite: one reduction instead of one for each step."""
        incoming = self._buffer.incoming
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isfinite(np.add.reduce(incoming)):
                return
            finite, expected = np.isfinite(incoming), "expected a finite number; look for a division by zero"
            if finite.all():
                finite = np.isfinite(np.add.accumulate(incoming))
                expected = "with which no float64 holds their sum, expected smaller ones; scale the rewards"
        row = int(np.argmin(finite))
        raise ContractError(
            f"env {row % len(self._slots)}, env step {row // len(self._slots)} of the fragment: the reward is "
            f"{incoming[row]}, {expected}"
        )

    def _flush(self) -> None:
        """Pass starts and ends to the buffer, and the returns and lengths of episodes to `fragment_closed`."""
        ended, self._ended = self._ended, []
        count, num_envs = len(ended), len(self._slots)
        first = self._buffer.rows - count * num_envs
        returns = self._returns_at_ends(ended, self._buffer.incoming[first:].reshape(-1, num_envs))
        if returns:
            slots, terminated, truncated = map(np.concatenate, zip(*filter(None, ended), strict=True))
            steps = [number for number, parts in enumerate(ended) if parts is not None]
            at = np.repeat(steps, [len(part) for part in returns])
            self._count(slots, at, np.concatenate(returns))
            flags = terminated.astype(np.bool_), truncated.astype(np.bool_)
            rows = first + at * num_envs + slots
            self._buffer.end_all(slots, rows, *flags, self._finals, self._final_infos)
            self._begin(slots, -1 if self._finals is None else 0)
            self._final_infos = []
            self._finals = None if self._finals is None else []
        self._begun_at -= count

    def _begin(self, slots: Column, released: int) -> None:
        count = len(slots)
        ids = self._tracker.new_ids(slots)
        zeros = np.zeros(count, np.int64)
        starts = (
            slots, zeros + self._policy, zeros == 0, ids, zeros, slots, self._lives[slots], [SINGLE_AGENT] * count
        )  # fmt: skip
        self._buffer.start_all(starts, released)

    def _returns_at_ends(self, ended: Sequence[tuple[Column, ...] | None], rewards: Column) -> list[Column]:
        """Add rewards [T, E] to the returns in the order of the general loop; return those of ended episodes."""
        returns, found = self._table.returns[: len(self._slots)], []
        with np.errstate(over="ignore", invalid="ignore"):
            for earned, parts in zip(rewards, ended, strict=True):
                returns += earned
                if parts is not None:
                    found.append(returns.take(parts[0]))
                    returns[parts[0]] = 0.0
        return found

    def _count(self, slots: Column, at: Column, returns: Column) -> None:
        """Count the episodes [K] that ended on slots in vector steps `at`, in time order."""
        # Where the final observation is a row, the next vector step is a reset.
        next_begins = at + (self._finals is None)
        order = np.argsort(slots, kind="stable")
        again = np.flatnonzero(slots[order[1:]] == slots[order[:-1]])
        begun = self._begun_at[slots]
        begun[order[again + 1]] = next_begins[order[again]]
        self._begun_at[slots] = next_begins
        self._returns += returns.tolist()
        self._lengths += (at - begun).tolist()

    def _take_step(self, explore: bool) -> VectorStep:
        actions, before, env = self._act(explore), perf_counter(), self._env
        env.send_vector_actions(actions)
        step = env.poll_vector_step()
        self._timers.env += perf_counter() - before
        return step

    def sample(self, limit: FragmentLimit, explore: bool) -> int:
        """Take a fragment's steps; return the env steps of all sub-environments together."""
        env = self._env
        num_envs = env.num_envs
        if not self._buffer.rows:
            before = perf_counter()
            first = env.poll_vector_step()
            self._timers.env += perf_counter() - before
            self._add(first)
        limit.begin(env.env_steps)
        count, full = 0, False
        while not full:
            step = self._take_step(explore)
            count += num_envs if step.begun is None else num_envs - step.begun.tobytes().count(1)
            full = limit.end_vector_step(count, step.done, env.env_steps)
            self._add(step)
        self._check_rewards()
        self._flush()
        return count

    def fragment_closed(self, metrics: Metrics) -> None:
        """Record the episodes that ended; the pending rows are the first of the closed buffer now."""
        if self._returns:
            metrics.record_many(self._group.policy_ids[self._policy], self._returns, self._lengths)
            self._returns, self._lengths = [], []
        self._rows = slice(0, len(self._slots))

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


def vector_loop(
    env: Adapter,
    groups: list[PolicyGroup],
    only: str | None,
    table: TrajectoryTable,
    tracker: EpisodeTracker,
    timers: Timers,
) -> VectorLoop | None:
    """Return the loop for a lockstep environment without polls, if one feedforward network acts for all agents."""
    group, networks = groups[0], groups[0].strategy.networks
    if not isinstance(env, LockstepEnvs) or only is None or networks is None or len(groups) > 1:
        return None
    if networks.state_sizes or not _fits(group):
        return None
    policy = group.policy_ids.index(only)
    group.reset_buffer()
    for index, key in enumerate(tracker.agent_keys(env.num_envs).tolist()):
        table.assign(index, 0, policy, index, key)
    return VectorLoop(env, group, networks, policy, table, tracker, timers)


def _fits(group: PolicyGroup) -> bool:
    return group.strategy.path is None or group.strategy.path.whole
