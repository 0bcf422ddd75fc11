"""The rows of a fragment, sorted into trajectories.

`menv.sampling.rollout_buffer` calls it when a fragment closes. Pure functions of arrays: a stable sort by slot, the
ends found by binary search, rewards moved from the row they came in with to the row that earned them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from menv.base_env import AgentId, Column
from menv.episode import Episode
from menv.sample_batch import SampleBatch


@dataclass(slots=True)
class TrajectorySplit:
    """N rows in S trajectories.

    Attributes:
        order: [N] row indices, trajectory after trajectory by slot, each in time.
        starts: [S] position of each trajectory's first row in `order`.
        lengths: [S] rows of each trajectory.
        held: [S] True where the trajectory lives on, so that its last row is not complete.
        end_order: [M] indices of the ends, in the order of the trajectories that they belong to.
        end_segments: [M] index of the trajectory of each end, in that order.
        withdrawn: [S] True where the end takes the last row with it, because nobody knows what its action led to;
            the row before leads to what it observed.
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
        """Return [N] True for rows whose reward is complete, in the sorted order."""
        mask = np.ones(len(self.order), np.bool_)
        mask[self.last[self.incomplete]] = False
        return mask

    def rewards(self, income: Column, fresh: Column, at_end: Column) -> Column:
        """Return [N] what each row's action earned, in the sorted order.

        Args:
            income: [N] what came in with each row, in the order of writing.
            fresh: [S] True where the first row begins a trajectory; what came in before the first
                action joins that action's row.
            at_end: [M] what came in with each end.
        """
        came = income[self.order]
        earned = np.empty_like(came)
        earned[:-1] = came[1:]
        earned[self.last] = 0.0
        earned[self.last[self.end_segments]] = at_end[self.end_order]
        first = self.starts[fresh]
        earned[first] += came[first]
        return earned

    def sources(self) -> Column:
        """Return [N] what came after each row, in the sorted order: a row index, or N + the index of an end.

        It is -1 for the last row of a trajectory that lives on.
        """
        after = np.empty_like(self.order)
        after[:-1] = self.order[1:]
        after[self.last] = -1
        after[self.last[self.end_segments]] = len(self.order) + self.end_order
        return after

    def flags(self, at_end: Column) -> Column:
        """Return [N] flags in the sorted order, False but at the ends, which have `at_end` [M]."""
        flags = np.zeros(len(self.order), np.bool_)
        # Where the last row is withdrawn the one before it is the last; without one there is none to flag.
        some = self.lengths[self.end_segments] > self.withdrawn[self.end_segments]
        owners = self.end_segments[some]
        flags[self.last[owners] - self.withdrawn[owners]] = at_end[self.end_order[some]]
        return flags

    def by_env(self, places: Column, pieces: Column, env_index: Column) -> tuple[Column, Column]:
        """Sort trajectories by sub-environment, in each by their first rows: in an order that slots have no part in.

        Args:
            places: Positions in the sorted order of rows of these trajectories, ascending.
            pieces: Indices of these trajectories, ascending.
            env_index: [S].

        Returns:
            Both in the new order.
        """
        keys = env_index[pieces] * (len(self.order) + 1) + self.order[self.starts[pieces]]
        if (keys[1:] > keys[:-1]).all():
            return places, pieces
        by_key = np.argsort(keys, kind="stable")
        rank = np.empty(len(self.starts), np.int64)
        rank[pieces[by_key]] = np.arange(len(pieces))
        return places[np.argsort(np.repeat(rank, self.lengths)[places], kind="stable")], pieces[by_key]

    def steps(self, first: Column) -> Column:
        """Return [N] each row's index within its trajectory, whose first row here has index `first` [S]."""
        steps: Column = np.arange(len(self.order)) + np.repeat(first - self.starts, self.lengths)
        return steps


def split_trajectories(
    slots: Column, end_slots: Column, end_rows: Column, withdrawn: Collection[int] = ()
) -> TrajectorySplit:
    """Sort rows into trajectories.

    Args:
        slots: [N] slot of each row, in the order of writing.
        end_slots: [M] slot of each trajectory that ended; it has a row among the N.
        end_rows: [M] number of rows that had been written then.
        withdrawn: Indices of the ends that take the last row with them.
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
    return _pieces(order, changes, at, withdrawn)


def cut_frames(frames: int, num_envs: int, end_slots: Column, end_rows: Column) -> TrajectorySplit:
    """Sort the rows of frames into trajectories: row number f * E + e is that of slot e in frame f.

    Args:
        frames: How many, at least 1.
        num_envs: E.
        end_slots: [M] as for `split_trajectories`.
        end_rows: [M] likewise.
    """
    order = np.arange(frames * num_envs).reshape(frames, num_envs).T.ravel()
    changes = np.zeros(len(order), np.bool_)
    changes[frames - 1 :: frames] = True
    return _pieces(order, changes, end_slots * frames + end_rows // num_envs - 1, ())


def _pieces(order: Column, changes: Column, at: Column, withdrawn: Collection[int]) -> TrajectorySplit:
    """Return what is sorted already.

    Args:
        order: [N] see `TrajectorySplit`.
        changes: [N] True where the next row is of another slot, or there is none; overwritten.
        at: [M] position of the last row of each trajectory that ended.
        withdrawn: See `split_trajectories`.
    """
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


_NAMES = ("policy", "agent_id")


class TrajectoryStart(NamedTuple):
    """A trajectory that begins.

    Attributes:
        slot: Its slot.
        policy: Index of the policy that answers.
        eps_id: Its episode.
        agent_index: The agent's number within the episode.
        env_index: The sub-environment's index.
        life: A key, 63 bits, of the env index among all, the agent, and which of its lives in the episode it is.
    """

    slot: int
    policy: int
    eps_id: int
    agent_index: int
    env_index: int
    life: int = 0


@dataclass(slots=True)
class Trajectories:
    """S trajectories, one entry each in every array.

    Attributes:
        slot: [S].
        policy: [S].
        eps_id: [S].
        agent_index: [S].
        env_index: [S].
        agent_id: [S] of objects, for messages.
        released: [S] rows that have left the buffer.
        prev_action: [S, ...] the last action that has left, zeros if none has.
        prev_reward: [S] its reward.
        life: [S].
        excluded: [S] True where the last info that has `training_enabled` says False.
    """

    slot: Column
    policy: Column
    eps_id: Column
    agent_index: Column
    env_index: Column
    agent_id: Column
    released: Column
    prev_action: Column
    prev_reward: Column
    life: Column
    excluded: Column

    @classmethod
    def begun(cls, starts: Sequence[int] | Column, agent_ids: Sequence[Any], actions: Column) -> Trajectories:
        """Return trajectories of which nothing has left.

        Args:
            starts: The fields of one `TrajectoryStart` after the other.
            agent_ids: [S].
            actions: Shows shape and dtype of an action.
        """
        count = len(agent_ids)
        slot, policy, eps_id, agent_index, env_index, life = np.array(starts, np.int64).reshape(count, 6).T
        return cls(
            slot,
            policy,
            eps_id,
            agent_index,
            env_index,
            np.fromiter(agent_ids, object, count),
            np.zeros(count, np.int64),
            np.zeros((count, *actions.shape[1:]), actions.dtype),
            np.zeros(count, np.float64),
            life,
            np.zeros(count, np.bool_),
        )

    def state(self) -> dict[str, Column]:
        """Return all that is no name: the arrays but those of policies and agents."""
        return {name: getattr(self, name) for name in self.__slots__ if name not in _NAMES}

    @classmethod
    def from_state(cls, policy: Column, agent_ids: Sequence[Any], state: Mapping[str, Any]) -> Trajectories:
        """Return the trajectories of which `state` told.

        Args:
            policy: [S] index of the policy that answers for each by now.
            agent_ids: [S].
            state: May hold more.
        """
        count = len(agent_ids)
        own = {name: state[name] for name in cls.__slots__ if name not in _NAMES}
        return cls(**own | {"policy": policy, "agent_id": np.fromiter(agent_ids, object, count)})

    def take(self, which: Column | slice) -> Trajectories:
        """Return the trajectories selected by a mask or by indices."""
        return Trajectories(*(getattr(self, name)[which] for name in self.__slots__))

    def and_then(self, others: Trajectories) -> Trajectories:
        """Return these trajectories and `others`, by slot; those that share one stay in order."""
        pairs = [(getattr(self, name), getattr(others, name)) for name in self.__slots__]
        together = Trajectories(*(np.concatenate(pair) for pair in pairs))
        return together.take(np.argsort(together.slot, kind="stable"))


class AgentTrajectory(NamedTuple):
    """Rows of one agent's life in one episode.

    Attributes:
        policy_id: Who answered for it.
        agent_id: The agent.
        episode: The episode; it may go on.
        batch: [T] rows, in time.
    """

    policy_id: str
    agent_id: AgentId
    episode: Episode
    batch: SampleBatch


def agent_trajectories(
    policy_id: str, batch: SampleBatch, episodes: Mapping[int, Episode]
) -> list[AgentTrajectory]:
    """Return the pieces of a policy's batch, in order.

    Args:
        policy_id: The policy.
        batch: Its rows of one fragment.
        episodes: By id, all that the rows belong to.
    """
    agents: dict[int, list[Any]] = {}
    pieces = []
    for part, eps_id, number in zip(
        batch.split_by_episode(), batch.segments.eps_id.tolist(), batch.segments.agent_index.tolist(), strict=True
    ):  # fmt: skip
        episode = episodes[eps_id]
        if eps_id not in agents:
            agents[eps_id] = episode.get_agents()
        pieces.append(AgentTrajectory(policy_id, agents[eps_id][number], episode, part))
    return pieces
