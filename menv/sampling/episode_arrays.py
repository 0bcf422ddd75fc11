"""Running episodes as arrays, for environments that report joins and ends as columns.

`menv.sampling.episode_tracker` uses it where no code asks for an `Episode`: no callback, no mapping function, no custom
policy. A poll only adds its columns to a log. When a fragment closes, episodes are numbered and returns are summed for
many polls together, so that a poll costs the same however many episodes end in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from menv import rng
from menv.base_env import AgentId, Column, Ends, EpisodeEnds, Flags, FloatArray, IntArray, Joins, Unclaimed
from menv.episode import Episode
from menv.metrics import Metrics
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.trajectories import TrajectoryTable

_NEVER = -1
_NONE: IntArray = np.zeros(0, np.int64)


class EpisodeArrays:
    """The episodes of E sub-environments with A agents each.

    Args:
        names: The agent ids, by number.
        policies: The policy of each agent.
        places: [A, 2] the index of each policy's group, and the policy's index in it.
        keys: [E, A] keys of the agents' random draws.
        episode_keys: [E] keys of the episodes' ids.
        begun: [E] how many episodes have begun in each sub-environment; it is counted on.
        env_steps: [E] env steps of each sub-environment.
    """

    def __init__(
        self,
        names: Sequence[AgentId],
        policies: Sequence[str],
        places: IntArray,
        keys: rng.Keys,
        episode_keys: rng.Keys,
        begun: IntArray,
        env_steps: Column,
    ) -> None:
        count, self._agents = keys.shape
        self.names = names
        self._pairs = list(zip(names, policies, strict=True))
        self._ids = np.fromiter(names, object, len(names))
        self._places = places
        self._keys = keys.reshape(-1)
        self._episode_keys = episode_keys
        self._begun = begun
        # [slots] the place among E * A that each slot has in the table.
        self._assigned: IntArray = np.full(64, _NEVER)
        # [E] the env steps at which the running or the next episode began, its number, and whether it runs.
        self._begun_at: IntArray = env_steps.copy()
        self._numbers: IntArray = begun.copy()
        self._running: Flags = np.zeros(count, np.bool_)
        # Of the running episodes, without the returns of running trajectories.
        self._books = _Books.empty(keys.shape)
        # The log: places among E * A, each with the number of entries of `_ended` before it; and episodes that ended.
        self._joined = _Log()
        self._earned = _Log()
        self._unclaimed = _Log()
        self._amounts: list[FloatArray] = []
        self._ended: list[EpisodeEnds] = []
        self._ended_at: list[IntArray] = []
        # Of the fragment: [3, J] each join's episode number, the agent's number, and how often it had joined before;
        # returns [K, A] of the episodes that ended, which of them exist, lengths [K], environments and env steps.
        self._settled: list[IntArray] = []
        self._num_joins = 0
        self._finished: list[tuple[FloatArray, Flags, IntArray, IntArray, IntArray]] = []

    @property
    def ids(self) -> IntArray:
        """The ids of the running episodes."""
        self.settle()
        return self._ids_of(np.flatnonzero(self._running), self._numbers[self._running])

    def _ids_of(self, envs: IntArray, numbers: IntArray) -> IntArray:
        return (rng.keys(self._episode_keys[envs], numbers) >> np.uint64(5)).astype(np.int64)

    def join(self, joins: Joins, table: TrajectoryTable, groups: Sequence[PolicyGroup]) -> None:
        """Start the trajectories of agents."""
        slots, agents = joins.slots, joins.agents
        at = joins.env_indices if self._agents == 1 else joins.env_indices * self._agents + agents
        while np.maximum.reduce(slots) >= len(self._assigned):
            self._assigned = np.append(self._assigned, np.full_like(self._assigned, _NEVER))
        if np.count_nonzero(self._assigned.take(slots) == at) == len(at):
            table.returns[slots] = 0.0
        else:
            table.assign_all(slots, self._places[agents], joins.env_indices, self._keys[at])
            self._assigned[slots] = at
        self._joined.add(at, len(self._ended))
        first, self._num_joins = self._num_joins, self._num_joins + len(at)
        columns = slots, at, np.arange(first, self._num_joins)
        for number, mine in _by_group(table, slots, groups):
            groups[number].buffer.start_all(
                columns if mine is None else [column[mine] for column in columns], self._starts
            )

    def _starts(self, columns: Sequence[Column]) -> Sequence[Column]:
        """Return the fields of `TrajectoryStart`, given the columns [K] of `join`."""
        self.settle()
        slots, at, joins = columns
        numbers, seats, before = np.concatenate(self._settled, axis=1)[:, joins]
        envs, agents = np.divmod(at, self._agents)
        lives = self._keys[at]
        back = before > 0
        lives[back] = rng.keys(lives[back], before[back])
        return (
            slots, self._places[agents, 1], np.ones(len(slots), np.bool_), self._ids_of(envs, numbers), seats, envs,
            (lives >> np.uint64(1)).astype(np.int64), self._ids[agents],
        )  # fmt: skip

    def end(self, ends: Ends, table: TrajectoryTable, groups: Sequence[PolicyGroup]) -> None:
        """End trajectories."""
        slots = ends.slots
        at = ends.env_indices if self._agents == 1 else ends.env_indices * self._agents + ends.agents
        self._earned.add(at, len(self._ended))
        self._amounts.append(table.returns.take(slots) + ends.rewards)
        for number, mine in _by_group(table, slots, groups):
            groups[number].buffer.end_all(ends if mine is None else ends[mine])

    def credit_unclaimed(self, unclaimed: Sequence[Unclaimed], metrics: Metrics) -> None:
        """Add rewards that belong to no action."""
        places = [entry.env_index * self._agents + self.names.index(entry.agent_id) for entry in unclaimed]
        for log in (self._earned, self._unclaimed):
            log.add(np.array(places), len(self._ended))
        self._amounts.append(np.array([entry.reward for entry in unclaimed], np.float64))
        for entry in unclaimed:
            metrics.add_unclaimed(entry.reward)

    def finish(self, episodes: EpisodeEnds, env_steps: Column) -> None:
        """End episodes at these env steps [E]."""
        self._ended.append(episodes)
        self._ended_at.append(self.begin_next(episodes.env_indices, env_steps))

    def begin_next(self, envs: IntArray, env_steps: Column) -> IntArray:
        """Set the env steps [E] at which the next episodes of these sub-environments [K] begin; return theirs [K]."""
        at: IntArray = env_steps.take(envs)
        self._begun_at[envs] = at
        return at

    def settle(self) -> None:
        """Number the episodes of the log and sum their returns; the log is empty then."""
        if not (self._joined.places or self._earned.places or self._ended):
            return
        where = _EpisodeRows(self._ended, len(self._numbers), self._agents)
        books = _Books.empty((where.count, self._agents))
        books.put(where.first, self._books)
        if self._earned.places:
            # One after the other, so that sums are rounded as if each was added at its poll.
            np.add.at(books.returns, where.of(self._earned), np.concatenate(self._amounts))
        if self._unclaimed.places:
            books.paid[where.of(self._unclaimed)] = True
        if self._joined.places:
            rows, agents = where.of(self._joined)
            before = books.joins[rows, agents] + _earlier(rows * self._agents + agents)
            new = before == 0
            # Agents are numbered in the order in which they appear.
            known = np.count_nonzero(books.joins, axis=1)[rows[new]]
            books.seats[rows[new], agents[new]] = known + _earlier(rows[new])
            np.add.at(books.joins, (rows, agents), 1)
            envs = _flat(self._joined.places) // self._agents
            numbers = self._numbers[envs] + rows - where.first[envs]
            self._settled.append(np.stack((numbers, books.seats[rows, agents], before)))
        if self._ended:
            over, lengths = books.at(where.ended), np.concatenate([one.env_steps for one in self._ended])
            envs = _flat([one.env_indices for one in self._ended])
            self._finished.append((over.returns, over.has_return, lengths, envs, _flat(self._ended_at)))
        self._books = books.at(where.last)
        self._numbers += where.last - where.first
        self._running = np.logical_or.reduce(self._books.has_return, axis=1)
        self._begun[:] = self._numbers + self._running
        self._joined, self._earned, self._unclaimed = _Log(), _Log(), _Log()
        self._amounts, self._ended, self._ended_at = [], [], []

    def record(self, metrics: Metrics, first_index: int | None) -> None:
        """Record the episodes that ended since the last call.

        `first_index` is the index of the first sub-environment among all; None leaves the episodes in their order.
        """
        self.settle()
        finished, self._finished = self._finished, []
        for returns, has_return, lengths, envs, ended_at in finished:
            paid, when = None if has_return.all() else has_return, None
            if first_index is not None:
                when = list(zip(ended_at.tolist(), (first_index + envs).tolist(), strict=True))
            metrics.record_many(self._pairs, returns, paid, lengths, when)

    def fragment_closed(self) -> None:
        """Forget the starts of trajectories, after the buffers were closed, which ask for them."""
        self._settled, self._num_joins = [], 0

    def as_objects(self) -> list[Episode]:
        """Return the running episodes as objects."""
        self.settle()
        found = []
        for index in np.flatnonzero(self._running).tolist():
            episode = Episode(int(self._ids_of(np.array([index]), self._numbers[[index]])[0]), index)
            episode.begun_at = int(self._begun_at[index])
            books = self._books.at(index)
            joins, paid = books.joins.tolist(), books.paid.tolist()
            for agent in np.argsort(books.seats, kind="stable").tolist():
                reward = float(books.returns[agent])
                if joins[agent]:
                    episode.bind(*self._pairs[agent])
                    episode.credit(self.names[agent], reward)
                elif paid[agent]:
                    episode.credit_unclaimed(self.names[agent], reward)
                for _ in range(joins[agent] - 1):
                    episode.come_again(self.names[agent])
            found.append(episode)
        return found


@dataclass(slots=True)
class _Books:
    """What the agents of several episodes have, [episodes, A].

    Attributes:
        returns: Their returns.
        joins: How often they joined.
        seats: Their numbers in the order of appearance.
        paid: Whether they were paid without an action.
    """

    returns: FloatArray
    joins: IntArray
    seats: IntArray
    paid: Flags

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Self:
        seats = np.full(shape, _NEVER)
        return cls(np.zeros(shape), np.zeros(shape, np.int64), seats, np.zeros(shape, np.bool_))

    @property
    def has_return(self) -> Flags:
        """Whether they have a return."""
        return (self.joins > 0) | self.paid

    def at(self, rows: IntArray | int) -> _Books:
        """Return some of the episodes."""
        return _Books(self.returns[rows], self.joins[rows], self.seats[rows], self.paid[rows])

    def put(self, rows: IntArray, others: _Books) -> None:
        """Replace some of the episodes."""
        self.returns[rows], self.joins[rows] = others.returns, others.joins
        self.seats[rows], self.paid[rows] = others.seats, others.paid


class _EpisodeRows:
    """The row of each episode, by sub-environment and time: ended ones, and each running or next one.

    Attributes:
        count: Number of rows.
        first: [E] the rows of the episodes that ran before the log.
        last: [E] the rows of the running or next episodes.
        ended: [K] the rows of the episodes that ended.
    """

    def __init__(self, ended: Sequence[EpisodeEnds], num_envs: int, agents: int) -> None:
        self._agents = agents
        envs = _flat([one.env_indices for one in ended])
        polls = np.repeat(np.arange(len(ended)), [len(one) for one in ended])
        self._width = len(ended) + 1
        self._ends = np.sort(envs * self._width + polls)
        self.count = len(envs) + num_envs
        every = np.arange(num_envs)
        self.first, self.last = self._find(every, 0), self._find(every, self._width)
        self.ended = self._find(envs, polls)

    def of(self, log: _Log) -> tuple[IntArray, IntArray]:
        """Return the rows and the agents of a log's entries."""
        envs, agents = np.divmod(_flat(log.places), self._agents)
        return self._find(envs, log.before()), agents

    def _find(self, envs: IntArray, before: IntArray | int) -> IntArray:
        """Return the rows of the episodes that ran after `before` polls in which episodes ended."""
        rows: IntArray = envs + np.searchsorted(self._ends, envs * self._width + before)
        return rows


class _Log:
    """Places [K] of each poll, with the number of polls before it in which episodes ended."""

    def __init__(self) -> None:
        self.places: list[IntArray] = []
        self._before: list[int] = []

    def add(self, places: IntArray, before: int) -> None:
        self.places.append(places)
        self._before.append(before)

    def before(self) -> IntArray:
        return np.repeat(self._before, [len(places) for places in self.places])


def _flat(parts: Sequence[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else _NONE


def _earlier(values: IntArray) -> IntArray:
    """Return how many equal values come before each of [K]."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    found = np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - np.searchsorted(ranked, ranked)
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
