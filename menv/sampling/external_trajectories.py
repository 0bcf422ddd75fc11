"""Pieces of episodes that external clients played by themselves, written down as whole columns.

`menv.sampling.rollout_loop` hands over what came with a poll. Nobody is asked for actions here; log-probabilities
that a client does not send are computed from the weights that it says it acted with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from menv.base_env import AgentChunk, AgentId, Column, EnvId, ExternalSteps, Ready, TrajectoryChunk
from menv.inference.action_sampler import TrajectoryTable
from menv.sample_batch import SampleBatch
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.network_policy_group import NetworkPolicyGroup
from menv.sampling.policy_group import PendingRows, PolicyGroup, outside, refused
from menv.sampling.rollout_buffer import RecurrentRolloutBuffer
from menv.spaces import OutsideSpaceError

OldWeights: TypeAlias = Callable[[str, int | None, Column, Any, Column, Any], tuple[Column, Column] | None]
"""`(policy_id, weights_seq_no, obs, mask, actions, state)` to distribution inputs and log-probabilities of actions in
the network's form, None where the weights of that number are gone."""


@dataclass(slots=True)
class IngestCounts:
    """Rows that came from elsewhere.

    Attributes:
        off_policy: Rows whose probabilities nobody knows.
        stale: Those of them whose weights are too old.
    """

    off_policy: int = 0
    stale: int = 0


class ExternalTrajectoryWriter:
    """Writes pieces into buffers.

    Args:
        tracker: What begins and ends.
        table: Whose slots are whose.
        groups: Who would have answered.

    Attributes:
        old_weights: Asked where a client does not say how probable its actions were.
        weights_seq_no: The number of the weights that act now.
        max_staleness: How many numbers older weights may be; None for any.
        counts: What cannot be learned from by everybody.
        dated: Whether rows are dated.
        connectors_since: By policy id, the number of the first weights that came with its present connectors; who acted
            with older ones was shown other rows.
    """

    def __init__(
        self, tracker: EpisodeTracker, table: TrajectoryTable, groups: Sequence[PolicyGroup]
    ) -> None:
        self.old_weights: OldWeights | None = None
        self.weights_seq_no = 0
        self.max_staleness: int | None = None
        self.counts = IngestCounts()
        self.dated = False
        self.connectors_since: Mapping[str, int] = {}
        self._tracker = tracker
        self._table = table
        self._groups = groups
        # [slots] the row of a last observation that waits for the next piece, -1 where none does.
        self._waiting = np.zeros(0, np.int64)

    def take(self, ready: Ready) -> Column:
        """Take in the pieces of a poll.

        Returns:
            [R] the env index of every row in which somebody acted.

        Raises:
            ContractError: An observation is outside its space.
        """
        self._tracker.come_to(ready.env_steps)
        acted: list[Column] = []
        for piece in ready.played:
            for part in piece.agents:
                acted.append(np.full(self._take_agent(piece, part, ready), piece.env_index))
            if piece.episode is not None:
                self._tracker.finish(piece.episode)
        return np.concatenate(acted) if acted else np.zeros(0, np.int64)

    def took(
        self,
        group: PolicyGroup,
        block: PendingRows,
        actions: list[Any],
        seats: Sequence[tuple[EnvId, AgentId]],
    ) -> list[Any]:
        """Write down actions that clients took themselves in the rows of a block, and return them.

        Raises:
            ContractError: One is outside its space.
        """
        try:
            group.took(block, actions)
        except OutsideSpaceError as error:
            raise refused(*seats[int(block.slots[error.row])], error.why) from error
        self.counts.off_policy += len(actions)
        return actions

    def closed(self) -> None:
        """Find the waiting rows again, once the buffers have been closed."""
        slots = np.flatnonzero(self._waiting >= 0)
        # By row: what is next to each other may be found as a slice.
        slots = slots[np.argsort(self._waiting[slots])]
        homes = self._table.groups[slots]
        for number in np.unique(homes).tolist():
            mine = slots[homes == number]
            moved = self._groups[number].buffer.moved(self._waiting[mine])
            self._waiting[mine] = np.arange(moved.start, moved.stop) if isinstance(moved, slice) else moved

    def _take_agent(self, piece: TrajectoryChunk, part: AgentChunk, ready: Ready) -> int:
        """Take in what one agent did; return its number of actions."""
        slot, moves = part.slot, part.steps
        if part.join is not None:
            self._tracker.join(part.join)
        if slot >= len(self._waiting):
            more = len(self._table.groups) - len(self._waiting)
            self._waiting = np.append(self._waiting, np.full(more, -1))
        count = 0 if moves is None else len(moves.rewards)
        if count:
            self._write(piece, part, moves, ready)
        if part.end is not None:
            self._waiting[slot] = -1
            self._tracker.end(part.end, self._ended_at(piece, moves, ready))
        return count

    def _write(self, piece: TrajectoryChunk, part: AgentChunk, moves: ExternalSteps, ready: Ready) -> None:
        """Write the rows of n actions, the first of which may be there already, and the one that waits then."""
        slot, count = part.slot, len(moves.rewards)
        seat = self._table.entry(slot)
        group = self._groups[seat.group]
        known = self._waiting.item(slot)
        first, last = int(known >= 0), count + (part.end is None)
        # The last step of an episode, handed in alone, adds none.
        rows = np.zeros(0, np.int64)
        if first < last:
            rows = self._add(group, piece, part, slice(first, last), ready)
        if known >= 0:
            rows = np.concatenate(([known], rows))
        self._waiting[slot] = rows[count] if part.end is None else -1
        done = rows[:count]
        group.played(done, slot, seat.policy, moves)
        self._judge(group, piece, seat.policy, done, moves)

    def _add(
        self, group: PolicyGroup, piece: TrajectoryChunk, part: AgentChunk, which: slice, ready: Ready
    ) -> Column:
        slot, moves = part.slot, part.steps
        seat = self._table.entry(slot)
        income = np.concatenate(([0.0], moves.rewards))
        self._table.returns[slot] += income[which].sum()
        # Connectors see one observation of a life after the other, and learn from it before the next.
        parts = (
            [which] if group.path is None else [slice(at, at + 1) for at in range(which.start, which.stop)]
        )
        places = []
        for own in parts:
            count = own.stop - own.start
            indices = np.full(count, piece.env_index)
            block = PendingRows(np.full(count, slot), seat.policy, indices, slice(0, 0))
            alone = Ready(block.slots, moves.obs, income[own], ready.env_steps, seats=ready.seats)
            try:
                added = group.write(block, moves.obs[own], income[own], alone)
            except OutsideSpaceError as error:
                env_id, agent_id = ready.seats[slot]
                row = own.start + error.row
                raise outside(env_id, agent_id, f"observation {row} of a piece", error) from error
            assert isinstance(added, slice)
            places.append(np.arange(added.start, added.stop))
        rows = np.concatenate(places)
        if self.dated:
            group.buffer.date(rows, _dates(piece, moves)[which])
        return rows

    def _ended_at(self, piece: TrajectoryChunk, moves: ExternalSteps | None, ready: Ready) -> Column:
        """Return env steps [E] with which a trajectory ends."""
        if not self.dated:
            return ready.env_steps
        when = np.array(ready.env_steps)
        when[piece.env_index] = (
            piece.now if moves is None or not len(moves.rewards) else _dates(piece, moves)[-1]
        )
        return when

    def _judge(
        self, group: PolicyGroup, piece: TrajectoryChunk, which: int, rows: Column, moves: ExternalSteps
    ) -> None:
        """Find out how probable actions were, and mark those of which nobody knows it."""
        number, stale = piece.weights_seq_no, False
        if number is not None and self.max_staleness is not None:
            stale = self.weights_seq_no - number > self.max_staleness
        if number is not None:
            stale = stale or number < self.connectors_since.get(group.policy_ids[which], 0)
        known = moves.logp is not None or moves.dist_inputs is not None
        if not stale and not known and isinstance(group, NetworkPolicyGroup):
            stale = not self._compute(group, which, rows, number)
        if stale:
            self.counts.stale += len(rows)
            self.counts.off_policy += len(rows)
            group.buffer.mark(SampleBatch.OFF_POLICY, rows, np.True_)

    def _compute(self, group: NetworkPolicyGroup, which: int, rows: Column, number: int | None) -> bool:
        """Write down how probable actions were under the weights of a number; False if these are gone."""
        if self.old_weights is None:
            return number is None or number == self.weights_seq_no
        columns = group.buffer.columns_at(rows, ("obs", "action_mask", "actions"))
        state = group.buffer.states_at(rows) if isinstance(group.buffer, RecurrentRolloutBuffer) else None
        policy_id = group.policy_ids[which]
        found = self.old_weights(
            policy_id, number, columns["obs"], columns.get("action_mask"), columns["actions"], state
        )
        if found is None:
            return False
        group.told(rows, *found)
        return True


def _dates(piece: TrajectoryChunk, moves: ExternalSteps) -> Column:
    """Return the env steps [n + 1] of the sub-environment in which the observations of a piece were seen."""
    if moves.env_t is not None:
        return piece.began + moves.env_t
    # Nobody knows better: one in each env step, the last of them with the piece's last one.
    return piece.now - len(moves.rewards) + np.arange(len(moves.rewards) + 1)
