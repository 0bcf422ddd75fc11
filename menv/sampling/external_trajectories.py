"""Trajectory chunks that external clients collected, added to the buffers as whole columns.

`menv.sampling.rollout_loop` passes the chunks that came with a poll. No policy acts here. Log-probabilities that a
client does not send are computed with the weights that it acted with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from menv.base_env import AgentChunk, AgentId, Column, EnvId, ExternalSteps, Ready, TrajectoryChunk
from menv.inference.network_policy import NetworkGroup
from menv.sample_batch import SampleBatch
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.policy_group import (
    PendingRows,
    PolicyGroup,
    outside_space_error,
    record_distribution,
    refused_action_error,
)
from menv.sampling.rollout_buffer import RolloutBuffer
from menv.sampling.trajectories import TrajectoryTable
from menv.spaces import OutsideSpaceError

OldWeights: TypeAlias = Callable[[str, int | None, Column, Any, Column, Any], tuple[Column, Column] | None]
"""`(policy_id, weights_seq_no, obs, mask, actions, state)` to distribution inputs and log-probabilities, or None if the
weights with that number are gone."""


class ExternalTrajectoryWriter:
    """Adds trajectory chunks to the buffers.

    Attributes:
        old_weights: Evaluates actions under earlier weights, where a client sends no log-probabilities.
        weights_seq_no: The number of the weights that act now.
        max_staleness: How many numbers older weights may be; None for any.
        off_policy_rows: Rows whose log-probabilities are unknown.
        stale_rows: The off-policy rows whose weights are too old.
        adds_env_t: Whether rows record env steps.
        connectors_since: By policy id, the number of the first weights with the present connectors. Clients with older
            weights saw other rows.
    """

    def __init__(
        self, tracker: EpisodeTracker, table: TrajectoryTable, groups: Sequence[PolicyGroup]
    ) -> None:
        self.old_weights: OldWeights | None = None
        self.weights_seq_no = 0
        self.max_staleness: int | None = None
        self.off_policy_rows = self.stale_rows = 0
        self.adds_env_t = False
        self.connectors_since: Mapping[str, int] = {}
        self._tracker = tracker
        self._table = table
        self._groups = groups
        # [slots] the row of the last observation, which waits for the next chunk; -1 without one.
        self._waiting = np.zeros(0, np.int64)

    def write(self, ready: Ready) -> Column:
        """Add the chunks of a poll; return [R] the env index of each row with an action."""
        self._tracker.set_env_steps(ready.env_steps)
        acted: list[Column] = []
        for chunk in ready.played:
            for part in chunk.agents:
                acted.append(np.full(self._write_agent(chunk, part, ready), chunk.env_index))
            if chunk.episode is not None:
                self._tracker.finish_episode(chunk.episode)
        return np.concatenate(acted) if acted else np.zeros(0, np.int64)

    def record_actions(
        self,
        group: PolicyGroup,
        block: PendingRows,
        actions: list[Any],
        seats: Sequence[tuple[EnvId, AgentId]],
    ) -> list[Any]:
        """Store and return actions that clients chose for the rows of a block."""
        try:
            group.record_actions(block, actions)
        except OutsideSpaceError as error:
            raise refused_action_error(*seats[int(block.slots[error.row])], error.why) from error
        self.off_policy_rows += len(actions)
        return actions

    def fragment_closed(self) -> None:
        """Find the waiting rows at their new positions, after the buffers were closed."""
        slots = np.flatnonzero(self._waiting >= 0)
        # Sorted by row, so that neighbors are found as a slice.
        slots = slots[np.argsort(self._waiting[slots])]
        groups = self._table.groups[slots]
        for number in np.unique(groups).tolist():
            mine = slots[groups == number]
            moved = self._groups[number].buffer.moved(self._waiting[mine])
            self._waiting[mine] = np.arange(moved.start, moved.stop) if isinstance(moved, slice) else moved

    def _write_agent(self, chunk: TrajectoryChunk, part: AgentChunk, ready: Ready) -> int:
        """Add the steps of one agent; return its number of actions."""
        slot, steps = part.slot, part.steps
        if part.join is not None:
            self._tracker.add_agent(part.join)
        if slot >= len(self._waiting):
            more = len(self._table.groups) - len(self._waiting)
            self._waiting = np.append(self._waiting, np.full(more, -1))
        count = 0 if steps is None else len(steps.rewards)
        if count:
            self._write_steps(chunk, part, steps, ready)
        if part.end is not None:
            self._waiting[slot] = -1
            self._tracker.end_trajectory(part.end, self._end_env_steps(chunk, steps, ready))
        return count

    def _write_steps(
        self, chunk: TrajectoryChunk, part: AgentChunk, steps: ExternalSteps, ready: Ready
    ) -> None:
        """Add the rows of n actions and the row that waits afterwards; the first row may exist already."""
        slot, count = part.slot, len(steps.rewards)
        entry = self._table.entry(slot)
        group = self._groups[entry.group]
        known = self._waiting.item(slot)
        first, last = int(known >= 0), count + (part.end is None)
        # The last step of an episode adds no row if it comes alone.
        rows = np.zeros(0, np.int64)
        if first < last:
            rows = self._add(group, chunk, part, slice(first, last), ready)
        if known >= 0:
            rows = np.concatenate(([known], rows))
        self._waiting[slot] = rows[count] if part.end is None else -1
        done = rows[:count]
        try:
            group.strategy.record_external_steps(group.buffer, done, slot, entry.policy, steps)
        except OutsideSpaceError as error:
            raise refused_action_error(chunk.env_id, ready.seats[slot][1], error.why) from error
        self._mark_off_policy(group, chunk, entry.policy, done, steps)

    def _add(
        self, group: PolicyGroup, chunk: TrajectoryChunk, part: AgentChunk, which: slice, ready: Ready
    ) -> Column:
        slot, steps = part.slot, part.steps
        entry = self._table.entry(slot)
        incoming = np.concatenate(([0.0], steps.rewards))
        self._table.returns[slot] += incoming[which].sum()
        # Connectors process one observation after the other and may update on each.
        parts = (
            [which]
            if group.strategy.path is None
            else [slice(at, at + 1) for at in range(which.start, which.stop)]
        )
        places = []
        for own in parts:
            count = own.stop - own.start
            indices = np.full(count, chunk.env_index)
            block = PendingRows(np.full(count, slot), entry.policy, indices, slice(0, 0))
            alone = Ready(block.slots, steps.obs, incoming[own], ready.env_steps, seats=ready.seats)
            try:
                connected = group.strategy.rows(block, steps.obs[own], incoming[own], alone)
            except OutsideSpaceError as error:
                env_id, agent_id = ready.seats[slot]
                row = own.start + error.row
                raise outside_space_error(env_id, agent_id, f"observation {row} of a chunk", error) from error
            added = group.buffer.add(block.slots, *connected)
            places.append(np.arange(added.start, added.stop))
        rows = np.concatenate(places)
        if self.adds_env_t:
            group.buffer.set_env_t(rows, _env_t(chunk, steps)[which])
        return rows

    def _end_env_steps(self, chunk: TrajectoryChunk, steps: ExternalSteps | None, ready: Ready) -> Column:
        """Return the env steps [E] at the end of a trajectory."""
        if not self.adds_env_t:
            return ready.env_steps
        when = np.array(ready.env_steps)
        when[chunk.env_index] = (
            chunk.now if steps is None or not len(steps.rewards) else _env_t(chunk, steps)[-1]
        )
        return when

    def _mark_off_policy(
        self, group: PolicyGroup, chunk: TrajectoryChunk, which: int, rows: Column, steps: ExternalSteps
    ) -> None:
        """Compute missing log-probabilities, and mark rows as off-policy where that is impossible."""
        number, stale = chunk.weights_seq_no, False
        if number is not None and self.max_staleness is not None:
            stale = self.weights_seq_no - number > self.max_staleness
        if number is not None:
            stale = stale or number < self.connectors_since.get(group.policy_ids[which], 0)
        known = steps.logp is not None or steps.dist_inputs is not None
        networks = group.strategy.networks
        if not stale and not known and networks is not None:
            stale = not self._add_logp(networks, group.buffer, which, rows, number)
        if stale:
            self.stale_rows += len(rows)
            self.off_policy_rows += len(rows)
            group.buffer.mark(SampleBatch.OFF_POLICY, rows, np.True_)

    def _add_logp(
        self, networks: NetworkGroup, buffer: RolloutBuffer, which: int, rows: Column, number: int | None
    ) -> bool:
        """Store log-probabilities under the weights of a number; False if these weights are gone."""
        if self.old_weights is None:
            return number is None or number == self.weights_seq_no
        columns = buffer.columns_at(rows, ("obs", "action_mask", "actions"))
        state = buffer.states_at(rows) if networks.state_sizes else None
        found = self.old_weights(
            networks.policy_ids[which],
            number,
            columns["obs"],
            columns.get("action_mask"),
            columns["actions"],
            state,
        )
        if found is None:
            return False
        record_distribution(networks.backend.head, buffer, rows, *found)
        return True


def _env_t(chunk: TrajectoryChunk, steps: ExternalSteps) -> Column:
    """Return the env steps [n + 1] of a chunk's observations."""
    if steps.env_t is not None:
        return chunk.began + steps.env_t
    # Without further information: one observation per env step, the last one at the chunk's last env step.
    return chunk.now - len(steps.rewards) + np.arange(len(steps.rewards) + 1)
