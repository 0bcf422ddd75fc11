"""Running episodes as arrays, for environments that report joins and ends as columns.

`menv.sampling.episode_tracker` uses it where nobody asks for an `Episode`: no callback, no mapping function, no custom
policy. A poll costs a few array operations, however many episodes end in it. What can wait, such as the ids of
episodes, is computed for all trajectories together when a fragment closes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from menv import rng
from menv.base_env import AgentId, Column, Ends, EpisodeEnds, Flags, FloatArray, IntArray, Joins, Unclaimed
from menv.episode import Episode
from menv.metrics import Metrics
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.trajectories import TrajectoryTable

_UNSEEN = -1


class EpisodeArrays:
    """The episodes of E sub-environments with A agents each.

    Args:
        names: The agent ids, by number.
        policies: The policy of each agent.
        places: [A, 2] the index of each policy's group, and the policy's index in it.
        keys: [E, A] keys of the agents' random draws.
        episode_keys: [E] keys of the episodes' ids.
        begun: [E] how many episodes have begun in each sub-environment; it is counted on.

    Attributes:
        running: [E] whether an episode runs here.
        begun_at: [E] env steps of each sub-environment when its episode began.
    """

    def __init__(
        self,
        names: Sequence[AgentId],
        policies: Sequence[str],
        places: IntArray,
        keys: rng.Keys,
        episode_keys: rng.Keys,
        begun: IntArray,
    ) -> None:
        count, self._agents = keys.shape
        self.names = names
        self._pairs = list(zip(names, policies, strict=True))
        self._ids = np.fromiter(names, object, len(names))
        self._places = places
        self._keys = keys.reshape(-1)
        self._episode_keys = episode_keys
        self._begun = begun
        self.running: Flags = np.zeros(count, np.bool_)
        self.begun_at: IntArray = np.zeros(count, np.int64)
        # [E] the number of each episode.
        self._numbers: IntArray = np.zeros(count, np.int64)
        # [E * A] returns so far without the running trajectories; the agent's number in the order of appearance; how
        # many times it came back; whether it was paid before it appeared.
        self._returns: FloatArray = np.zeros(keys.size)
        self._seats: IntArray = np.full(keys.size, _UNSEEN)
        self._again: IntArray = np.zeros(keys.size, np.int64)
        self._paid: Flags = np.zeros(keys.size, np.bool_)
        # Whether any agent came back, or was paid before it appeared.
        self._is_regular = True
        # [slots] the place among E * A that each slot has in the table.
        self._assigned: IntArray = np.full(64, _UNSEEN)
        # Returns [K, A], which of them exist, and lengths [K] of episodes that ended.
        self._finished: list[tuple[FloatArray, Flags | None, IntArray]] = []

    @property
    def ids(self) -> IntArray:
        """The ids of the running episodes."""
        return self._ids_of(np.flatnonzero(self.running), self._numbers[self.running])

    def _ids_of(self, envs: IntArray, numbers: IntArray) -> IntArray:
        return (rng.keys(self._episode_keys[envs], numbers) >> np.uint64(5)).astype(np.int64)

    def _begin_missing(self, envs: IntArray, env_steps: Column) -> IntArray | None:
        """Begin an episode in each of these sub-environments that has none, and return them."""
        running = self.running[envs]
        if np.count_nonzero(running) == len(envs):
            return None
        missing = envs[~running] if np.count_nonzero(running) else envs
        if self._agents > 1:
            missing = np.unique(missing)
        self.running[missing] = True
        numbers = self._begun[missing]
        self._numbers[missing] = numbers
        self._begun[missing] = numbers + 1
        self.begun_at[missing] = env_steps[missing]
        self._of(self._returns)[missing] = 0.0
        self._of(self._seats)[missing] = _UNSEEN
        if not self._is_regular:
            self._of(self._again)[missing] = 0
            self._of(self._paid)[missing] = False
        return missing

    def _of(self, column: Column) -> Column:
        """Return a column [E * A] by sub-environment: [E], or [E, A] with several agents."""
        return column if self._agents == 1 else column.reshape(-1, self._agents)

    def join(
        self, joins: Joins, env_steps: Column, table: TrajectoryTable, groups: Sequence[PolicyGroup]
    ) -> None:
        """Start the trajectories of agents, at these env steps [E]."""
        slots, envs, agents = joins.slots, joins.env_indices, joins.agents
        self._begin_missing(envs, env_steps)
        at = envs if self._agents == 1 else envs * self._agents + agents
        seats, again = self._seat(at, envs), self._again[at]
        while slots.max() >= len(self._assigned):
            self._assigned = np.append(self._assigned, np.full_like(self._assigned, _UNSEEN))
        if np.count_nonzero(self._assigned[slots] == at) == len(at):
            table.returns[slots] = 0.0
        else:
            table.assign_all(slots, self._places[agents], envs, self._keys[at])
            self._assigned[slots] = at
        columns = slots, agents, envs, at, seats, self._numbers[envs], again
        for number, mine in _by_group(table, slots, groups):
            groups[number].buffer.start_all(
                columns if mine is None else [c[mine] for c in columns], self._starts
            )

    def _seat(self, at: IntArray, envs: IntArray) -> IntArray:
        """Return the agents' numbers [K] in their episodes."""
        seats = self._seats[at]
        new = seats == _UNSEEN
        if self._agents == 1:
            seats = np.zeros(len(at), np.int64)
        elif np.count_nonzero(new):
            # Agents that appear in the same poll are numbered in the order of its joins.
            mine = envs[new]
            order = np.argsort(mine, kind="stable")
            ranks = np.empty(len(mine), np.int64)
            ranks[order] = np.arange(len(mine)) - np.searchsorted(mine[order], mine[order])
            seen = (self._seats.reshape(-1, self._agents)[mine] != _UNSEEN).sum(axis=1)
            seats[new] = seen + ranks
        self._seats[at] = seats
        if np.count_nonzero(new) < len(new):
            self._is_regular = False
            self._again[at[~new]] += 1
        return seats

    def _starts(self, columns: Sequence[Column]) -> Sequence[Column]:
        """Return the fields of `TrajectoryStart`, given the columns [K] of `join`."""
        slots, agents, envs, at, seats, numbers, again = columns
        lives = self._keys[at]
        back = again > 0
        lives[back] = rng.keys(lives[back], again[back])
        return (
            slots, self._places[agents, 1], np.ones(len(slots), np.bool_), self._ids_of(envs, numbers), seats, envs,
            (lives >> np.uint64(1)).astype(np.int64), self._ids[agents],
        )  # fmt: skip

    def end(self, ends: Ends, table: TrajectoryTable, groups: Sequence[PolicyGroup]) -> None:
        """End trajectories."""
        slots = ends.slots
        at = ends.env_indices if self._agents == 1 else ends.env_indices * self._agents + ends.agents
        self._returns[at] += table.returns[slots] + ends.rewards
        for number, mine in _by_group(table, slots, groups):
            groups[number].buffer.end_all(ends if mine is None else ends[mine])

    def credit_unclaimed(self, unclaimed: Sequence[Unclaimed], env_steps: Column, metrics: Metrics) -> None:
        """Add rewards that belong to no action."""
        self._is_regular = False
        envs = np.array([entry.env_index for entry in unclaimed], np.int64)
        self._begin_missing(envs, env_steps)
        for entry in unclaimed:
            at = entry.env_index * self._agents + self.names.index(entry.agent_id)
            self._returns[at] += entry.reward
            self._paid[at] = True
            metrics.add_unclaimed(entry.reward)

    def finish(self, episodes: EpisodeEnds, env_steps: Column) -> None:
        """Record episodes that ended."""
        envs = episodes.env_indices
        empty = self._begin_missing(envs, env_steps)
        self.running[envs] = False
        has_return = None
        if empty is not None or self._agents > 1:
            has_return = (self._of(self._seats)[envs] != _UNSEEN) | self._of(self._paid)[envs]
        self._finished.append((self._of(self._returns)[envs], has_return, episodes.env_steps))

    def flush(self, metrics: Metrics) -> None:
        """Record the episodes that ended since the last call."""
        finished, self._finished = self._finished, []
        if not finished:
            return
        returns, flags, lengths = zip(*finished, strict=True)
        earned = np.concatenate(returns).reshape(-1, self._agents)
        has_return = None
        if any(flag is not None for flag in flags):
            exist = [
                np.ones_like(one, np.bool_) if flag is None else flag
                for one, flag in zip(returns, flags, strict=True)
            ]
            has_return = np.concatenate(exist).reshape(-1, self._agents)
        metrics.record_many(self._pairs, earned, has_return, np.concatenate(lengths))

    def as_objects(self) -> list[Episode]:
        """Return the running episodes as objects, and forget them."""
        found = []
        for index in np.flatnonzero(self.running).tolist():
            episode = Episode(int(self._ids_of(np.array([index]), self._numbers[[index]])[0]), index)
            episode.begun_at = int(self.begun_at[index])
            own = slice(index * self._agents, (index + 1) * self._agents)
            seats, paid, again = self._seats[own], self._paid[own], self._again[own].tolist()
            for agent in np.argsort(seats, kind="stable").tolist():
                reward = float(self._returns[own][agent])
                if seats[agent] != _UNSEEN:
                    episode.bind(*self._pairs[agent])
                    episode.credit(self.names[agent], reward)
                elif paid[agent]:
                    episode.credit_unclaimed(self.names[agent], reward)
                for _ in range(again[agent]):
                    episode.come_again(self.names[agent])
            found.append(episode)
        self.running[:] = False
        return found


def _by_group(
    table: TrajectoryTable, slots: IntArray, groups: Sequence[PolicyGroup]
) -> list[tuple[int, Flags | None]]:
    """Return each group that some of K slots belong to, and [K] which are its own; None if all are."""
    if len(groups) == 1:
        return [(0, None)]
    numbers = table.groups[slots]
    present = np.unique(numbers).tolist()
    return [(number, numbers == number if len(present) > 1 else None) for number in present]
