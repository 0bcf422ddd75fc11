"""Trajectories: which slot stands for which, and the split of a fragment's rows into them.

`TrajectoryTable` says to which policy and sub-environment each slot belongs. `menv.sampling.rollout_buffer` splits its
rows when a fragment closes: a stable sort by slot, ends found by binary search, and rewards moved from the row that
they arrived with to the row whose action earned them. Everything is arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from menv.base_env import AgentId, Column
from menv.episode import Episode
from menv.rng import Keys
from menv.sample_batch import SampleBatch


@dataclass(slots=True)
class TrajectorySplit:
    """N rows sorted into S trajectories.

    Attributes:
        order: [N] row indices, one trajectory after the other by slot, each in time order.
        starts: [S] position of each trajectory's first row in `order`.
        lengths: [S] rows of each trajectory.
        held: [S] True where the trajectory continues, so that its last row is not complete.
        end_order: [M] indices of the ends, in the order of their trajectories.
        end_segments: [M] the trajectory of each end, in that order.
        withdrawn: [S] True where the end removes the last row, because the effect of its action is unknown; the
            row's observation is the next one of the row before.
    """

    order: Column
    starts: Column
    lengths: Column
    held: Column
    end_order: Column
    end_segments: Column
    withdrawn: Column

    @property
    def incomplete(self) -> Column:
        """[S] True where the last row is not released."""
        both: Column = self.held | self.withdrawn
        return both

    @property
    def last(self) -> Column:
        """[S] position of each trajectory's last row in `order`."""
        return self.starts + self.lengths - 1

    def released(self) -> Column:
        """Return [N] True for rows whose reward is complete, in sorted order."""
        mask = np.ones(len(self.order), np.bool_)
        mask[self.last[self.incomplete]] = False
        return mask

    def rewards(self, incoming: Column, fresh: Column, at_end: Column) -> Column:
        """Return [N] the reward of each row's action, in sorted order.

        `incoming` [N] are the rewards that arrived with rows, `at_end` [M] with ends. Where the trajectory starts here,
        `fresh` [S], the reward before the first action is added to that action's.
        """
        came = incoming[self.order]
        earned = np.empty_like(came)
        earned[:-1] = came[1:]
        earned[self.last] = 0.0
        earned[self.last[self.end_segments]] = at_end[self.end_order]
        first = self.starts[fresh]
        earned[first] += came[first]
        return earned

    def sources(self) -> Column:
        """Return [N] the successor of each row, in sorted order: a row index, or N + the index of an end.

        It is -1 for the last row of a trajectory that continues.
        """
        after = np.empty_like(self.order)
        after[:-1] = self.order[1:]
        after[self.last] = -1
        after[self.last[self.end_segments]] = len(self.order) + self.end_order
        return after

    def flags(self, at_end: Column) -> Column:
        """Return [N] flags in sorted order: `at_end` [M] at the ends, else False."""
        flags = np.zeros(len(self.order), np.bool_)
        # Where the last row is withdrawn, the flag belongs to the row before it, if there is one.
        some = self.lengths[self.end_segments] > self.withdrawn[self.end_segments]
        owners = self.end_segments[some]
        flags[self.last[owners] - self.withdrawn[owners]] = at_end[self.end_order[some]]
        return flags

    def by_env(self, places: Column, pieces: Column, env_index: Column) -> tuple[Column, Column]:
        """Sort trajectories by sub-environment and first row, an order that does not depend on slots.

        `places` are sorted positions of rows, `pieces` indices of their trajectories, both ascending; `env_index` [S].
        """
        keys = env_index[pieces] * (len(self.order) + 1) + self.order[self.starts[pieces]]
        if (keys[1:] > keys[:-1]).all():
            return places, pieces
        by_key = np.argsort(keys, kind="stable")
        rank = np.empty(len(self.starts), np.int64)
        rank[pieces[by_key]] = np.arange(len(pieces))
        return places[np.argsort(np.repeat(rank, self.lengths)[places], kind="stable")], pieces[by_key]

    def steps(self, first: Column) -> Column:
        """Return [N] each row's index in its trajectory, whose first row here has index `first` [S]."""
        steps: Column = np.arange(len(self.order)) + np.repeat(first - self.starts, self.lengths)
        return steps


def split_trajectories(
    slots: Column, end_slots: Column, end_rows: Column, withdrawn: Collection[int] = ()
) -> TrajectorySplit:
    """Sort rows into trajectories.

    `slots` [N] are in the order of adding. `end_rows` [M] are the rows that had been added when the trajectory on
    `end_slots` [M] ended; `withdrawn` are indices of ends that remove the last row.
    """
    n = len(slots)
    # numpy sorts 16-bit integers by radix, several times as fast as wider ones.
    small = slots.astype(np.uint16) if n and slots.max() < 1 << 16 else slots
    order = np.argsort(small, kind="stable")
    by_slot = slots[order].astype(np.int64)
    place = by_slot * (n + 1) + order
    at = np.searchsorted(place, end_slots * (n + 1) + end_rows) - 1
    changes = np.ones(n, np.bool_)
    changes[:-1] = by_slot[1:] != by_slot[:-1]
    is_end = np.zeros(len(order), np.bool_)
    is_end[at] = True
    changes |= is_end
    last = np.flatnonzero(changes)
    starts = np.concatenate(([0], last[:-1] + 1)) if len(order) else last
    by_place = np.argsort(at, kind="stable")
    gone = np.zeros(len(last), np.bool_)
    if withdrawn:
        gone[np.searchsorted(last, at[list(withdrawn)])] = True
    return TrajectorySplit(
        order, starts, last + 1 - starts, ~is_end[last],
        by_place, np.searchsorted(last, at[by_place]), gone,
    )  # fmt: skip


class TrajectoryStart(NamedTuple):
    """The start of a trajectory; its first row follows in the same poll.

    Attributes:
        slot: The slot until it ends.
        policy: Index of the policy in its group.
        trained: Whether policies may learn from it.
        eps_id: The id of its episode.
        agent_index: The agent's number in the episode.
        env_index: Index of the sub-environment.
        life: Key of the agent episode: 63 bits of env index among all, agent, and its number in the episode.
        agent_id: The agent, for messages.
    """

    slot: int
    policy: int
    trained: bool
    eps_id: int
    agent_index: int
    env_index: int
    life: int
    agent_id: AgentId


@dataclass(slots=True)
class Trajectories:
    """The S trajectories of a buffer, one entry each in every array.

    Arrays instead of objects, so that thousands of running agents cost nothing when a fragment closes.

    Attributes:
        slot: [S]; these and the other columns up to `agent_id` are the fields of `TrajectoryStart`.
        released: [S] rows released so far.
        prev_action: [S, ...] the last released action, zeros without one.
        prev_reward: [S] its reward.
        excluded: [S] True where the last `training_enabled` info says False.
    """

    slot: Column
    policy: Column
    trained: Column
    eps_id: Column
    agent_index: Column
    env_index: Column
    life: Column
    agent_id: Column
    released: Column
    prev_action: Column
    prev_reward: Column
    excluded: Column

    @classmethod
    def begun(cls, starts: Iterable[Sequence[Any] | Column], actions: Column) -> Trajectories:
        """Return new trajectories from columns, one for each field of `TrajectoryStart`.

        `actions` gives the shape and type of an action.
        """
        slot, policy, trained, eps_id, agent_index, env_index, life, agent_id = starts
        count = len(agent_id)
        return cls(
            np.asarray(slot, np.int64),
            np.asarray(policy, np.int64),
            np.asarray(trained, np.bool_),
            np.asarray(eps_id, np.int64),
            np.asarray(agent_index, np.int64),
            np.asarray(env_index, np.int64),
            np.asarray(life, np.int64),
            np.fromiter(agent_id, object, count),
            np.zeros(count, np.int64),
            np.zeros((count, *actions.shape[1:]), actions.dtype),
            np.zeros(count, np.float64),
            np.zeros(count, np.bool_),
        )

    def take(self, which: Column | slice) -> Trajectories:
        """Return the trajectories selected by a mask or by indices."""
        return Trajectories(*(getattr(self, name)[which] for name in self.__slots__))

    def and_then(self, others: Sequence[Trajectories]) -> Trajectories:
        """Return these trajectories and `others`, sorted by slot; the order on a slot is kept."""
        parts = [[getattr(one, name) for one in (self, *others)] for name in self.__slots__]
        together = Trajectories(*map(np.concatenate, parts))
        return together.take(np.argsort(together.slot, kind="stable"))


class AgentTrajectory(NamedTuple):
    """The rows [T] of one agent episode in one fragment; the episode may still be running."""

    policy_id: str
    agent_id: AgentId
    episode: Episode
    batch: SampleBatch


def agent_trajectories(
    policy_id: str, batch: SampleBatch, episodes: Mapping[int, Episode]
) -> list[AgentTrajectory]:
    """Return the pieces of a policy's batch, in order."""
    agents: dict[int, list[Any]] = {}
    trajectories = []
    for part, eps_id, number in zip(
        batch.split_by_episode(), batch.segments.eps_id.tolist(), batch.segments.agent_index.tolist(), strict=True
    ):  # fmt: skip
        episode = episodes[eps_id]
        if eps_id not in agents:
            agents[eps_id] = episode.get_agents()
        trajectories.append(AgentTrajectory(policy_id, agents[eps_id][number], episode, part))
    return trajectories


class SlotEntry(NamedTuple):
    """Index of the policy group, of the policy in it, of the sub-environment, and key of the agent's random numbers."""

    group: int
    policy: int
    env_index: int
    key: int


class TrajectoryTable:
    """The entries of all slots as columns, which have room for more slots than are in use.

    Attributes:
        groups: [slots] index of the policy group.
        policies: [slots] index of the policy in its group.
        env_indices: [slots] index of the sub-environment.
        keys: [slots] key of the agent's random numbers.
        returns: [slots] return of the agent episode so far.
        version: Grows whenever an entry changes; look-ups of an older version are stale.
        used: Slots up to the highest that was ever in use.
    """

    def __init__(self) -> None:
        self.version = 0
        self.used = 0
        self.groups: Column = np.zeros(64, np.int64)
        self.policies: Column = np.zeros(64, np.int64)
        self.env_indices: Column = np.zeros(64, np.int64)
        self.keys: Keys = np.zeros(64, np.uint64)
        self.returns: npt.NDArray[np.float64] = np.zeros(64, np.float64)
        self._entries: list[SlotEntry | None] = [None] * 64

    def entry(self, slot: int) -> SlotEntry:
        """Return the entry of a slot that is in use."""
        entry = self._entries[slot]
        assert entry is not None
        return entry

    def assign(self, slot: int, group: int, policy: int, env_index: int, key: int) -> None:
        """Begin an agent episode on a slot; its return starts at 0."""
        while slot >= len(self._entries):
            self._grow()
        self.returns[slot] = 0.0
        # As a rule the same agent begins its next episode on the slot.
        if self._entries[slot] == (group, policy, env_index, key):
            return
        self._entries[slot] = SlotEntry(group, policy, env_index, key)
        self.version += 1
        self.used = max(self.used, slot + 1)
        self.groups[slot], self.policies[slot], self.env_indices[slot] = group, policy, env_index
        self.keys[slot] = key

    def assign_all(self, slots: Column, places: Column, env_indices: Column, keys: Keys) -> None:
        """Begin agent episodes on slots [K]; `places` [K, 2] are the indices of group and policy."""
        while len(slots) and slots.max() >= len(self._entries):
            self._grow()
        self.returns[slots] = 0.0
        known = (self.keys[slots] == keys) & (self.groups[slots] == places[:, 0])
        known &= (self.policies[slots] == places[:, 1]) & (self.env_indices[slots] == env_indices)
        for place in np.flatnonzero(~known).tolist():
            group, policy = places[place].tolist()
            self.assign(int(slots[place]), group, policy, int(env_indices[place]), int(keys[place]))

    def _grow(self) -> None:
        self._entries.extend([None] * len(self._entries))
        for name in ("groups", "policies", "env_indices", "keys", "returns"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.zeros_like(column))))
