"""The episodes that run between two fragments, as a plain tree, and taking them up in another process.

A `menv.sampling.sampler` that is written down asks for it. Episodes are their seeds and actions
(`menv.adapters.poll_events`),
to be played again; beside them lies the row that each agent has left. Whatever each part keeps of an agent it gives and
takes itself: here it is put together, and decided which episodes can go on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from menv.adapters.local_envs import CreatedEnvs
from menv.adapters.poll_events import EpisodeReplay
from menv.base_env import AgentId, Column
from menv.episode import Episode
from menv.inference.action_sampler import TrajectoryTable
from menv.policy_map import PolicyMap
from menv.sample_batch import SampleBatch
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.rollout_loop import RolloutLoop
from menv.serialization import is_plain

# Rows that are noted at least before those of finished episodes are let go.
_ROWS = 65_536
LONGEST = 200_000
"""Rows of one episode; a longer one is not kept, because playing it again would take too long."""


class RecordedStep(NamedTuple):
    """Pieces of trajectories in the order in which they left a buffer.

    Attributes:
        group: Number of the group.
        eps_id: [S] their episodes.
        agent_index: [S] their agents' numbers in these.
        lengths: [S] rows of each.
        turn: [S] numbers by which those of one agent are in order.
        actions: [N, ...] one piece after the other, as the batch holds them.
    """

    group: int
    eps_id: Column
    agent_index: Column
    lengths: Column
    turn: Column
    actions: Column

    def of(self, episodes: Column) -> RecordedStep:
        """Return the pieces of some episodes."""
        mine = np.isin(self.eps_id, episodes)
        rows = np.repeat(mine, self.lengths)
        return RecordedStep(
            self.group, self.eps_id[mine], self.agent_index[mine], self.lengths[mine], self.turn[mine],
            self.actions[rows],
        )  # fmt: skip


class EpisodeRecorder:
    """What has been noted since the running episodes began.

    Attributes:
        rows: Rows that are noted.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._noted: list[RecordedStep] = []
        self._next = _ROWS
        self._too_long: set[int] = set()

    @property
    def full(self) -> bool:
        """Whether `keep` is due."""
        return self.rows > self._next

    def note(self, group: int, batch: SampleBatch) -> None:
        """Note the rows of one policy's part of a fragment."""
        pieces = batch.segments
        actions = batch[SampleBatch.ACTIONS].copy()
        parts = (pieces.eps_id, pieces.agent_index, pieces.lengths, pieces.unroll_id)
        self._noted.append(RecordedStep(group, *parts, actions))
        self.rows += len(actions)

    def keep(self, episodes: Collection[int]) -> None:
        """Let go of all episodes but those that run."""
        self._too_long &= set(episodes)
        self._shorten(episodes)
        rows: dict[int, int] = {}
        for noted in self._noted:
            for eps_id, length in zip(noted.eps_id.tolist(), noted.lengths.tolist(), strict=True):
                rows[eps_id] = rows.get(eps_id, 0) + length
        self._too_long |= {eps_id for eps_id, count in rows.items() if count > LONGEST}
        if self._too_long:
            self._shorten(episodes)
        # Twice as many before the next time: what it costs stays a small share of the rows that come.
        self._next = _ROWS + 2 * self.rows

    def actions_of(self, episode: int) -> dict[int, list[Column]] | None:
        """Return each agent's actions in order, by its number; None for an episode that was too long.

        Call `keep` before: what is asked of episode after episode should be little.
        """
        if episode in self._too_long:
            return None
        found: dict[int, list[tuple[int, Column]]] = {}
        for noted in self._noted:
            if episode not in noted.eps_id:
                continue
            ends = np.cumsum(noted.lengths)
            for piece in np.flatnonzero(noted.eps_id == episode).tolist():
                part = noted.actions[ends[piece] - noted.lengths[piece] : ends[piece]]
                found.setdefault(int(noted.agent_index[piece]), []).append((int(noted.turn[piece]), part))
        # A life that nobody learns from is in another batch than those before and after it.
        return {
            agent: [part for _, part in sorted(parts, key=itemgetter(0))] for agent, parts in found.items()
        }

    def put(self, group: int, episode: int, agent_index: int, actions: Column) -> None:
        """Note what an agent did before, when its episode is taken up again."""
        one = np.ones(1, np.int64)
        self._noted.append(
            RecordedStep(group, one * episode, one * agent_index, one * len(actions), -one, actions)
        )
        self.rows += len(actions)

    def _shorten(self, episodes: Collection[int]) -> None:
        """Keep the pieces of some episodes, those of one group joined."""
        wanted = np.array(sorted(set(episodes) - self._too_long), np.int64)
        parts = [part for part in (noted.of(wanted) for noted in self._noted) if len(part.lengths)]
        joined = []
        for group in sorted({part.group for part in parts}):
            mine = [part for part in parts if part.group == group]
            joined.append(
                RecordedStep(
                    group, *(np.concatenate(columns) for columns in list(zip(*mine, strict=True))[1:])
                )
            )
        self._noted = joined
        self.rows = sum(len(noted.actions) for noted in joined)


Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EpisodeCheckpoint:
    """Writes down the episodes of one sampler, and takes up those of another.

    Attributes:
        env: The sub-environments.
        policy_map: Who answers for whom from now on.
        groups: Who answers.
        table: What lives have earned.
        tracker: The episodes.
        rows: The rows that wait.
        action_log: What was done in the episodes.
    """

    env: CreatedEnvs
    policy_map: PolicyMap
    groups: Sequence[PolicyGroup]
    table: TrajectoryTable
    tracker: EpisodeTracker
    rows: RolloutLoop
    action_log: EpisodeRecorder

    def state(self) -> Tree:
        """Return the episodes that can be played again, their rows and all seats; {} where no file can hold these."""
        seats = list(self.env.seats), list(self.env.free_slots)
        if not is_plain(seats):
            return {}
        self.action_log.keep(self.tracker.running_ids)
        rows = [self._rows_of(number) for number in range(len(self.groups))]
        found = [self._recorded(index, rows) for index in range(self.env.num_envs)]
        episodes = [episode for episode in found if episode is not None]
        written = {episode["env_index"] for episode in episodes}
        kept = [_of_envs(part, written) for part in rows]
        # Readers that know of no connectors that remember look for episodes at the old place only, and break these off.
        theirs = {index for part in kept for index in _of_those_who_remember(part)}
        parted = [[one for one in episodes if (one["env_index"] in theirs) is told] for told in (False, True)]
        return {"episodes": parted[0], "remembering": parted[1], "rows": kept, "seats": seats}

    def take_up(self, env_steps: Column, tree: Mapping[str, Any] | None) -> int:
        """Let the sub-environments go on, as far as they can with the episodes that another sampler wrote down.

        Args:
            env_steps: [E] env steps so far.
            tree: What `Sampler.state` of the other one returned; None where its sub-environments were others.

        Returns:
            How many episodes go on.
        """
        episodes = {} if tree is None else self._fitting(tree)
        recorded = {index: self._as_recorded(one) for index, one in episodes.items()}
        seats = tree["seats"] if tree is not None and recorded else ([], [])
        fresh = self.env.resume(env_steps, recorded, seats)
        resumed = {index: one for index, one in episodes.items() if index not in fresh}
        for index, one in resumed.items():
            self._begin(index, one, env_steps)
        waiting: list[tuple[int, int, Tree]] = []
        for part in () if tree is None else tree["rows"]:
            waiting += self._seat(_of_envs(part, resumed))
        self.rows.resume(env_steps.copy(), self.env.seats, waiting)
        return len(resumed)

    def _rows_of(self, number: int) -> Tree:
        part = self.groups[number].living_state()
        slots = part["slot"]
        return part | {"returns": self.table.returns[slots], **self.rows.state(number, slots)}

    def _recorded(self, index: int, rows: Sequence[Tree]) -> Tree | None:
        """Return what is written down of a running episode, None if that cannot be all of it."""
        env, tracker = self.env, self.tracker
        episode, shown = tracker.running.get(index), env.shown(index)
        if episode is None or shown is None or not tracker.goes_on(index, self.policy_map):
            return None
        homes = {tracker.home(policy)[0] for policy, _ in episode.seats().values()}
        if not all(self.groups[number].replays for number in homes):
            return None
        done = self.action_log.actions_of(episode.episode_id)
        if done is None:
            return None
        own = [_of_envs(part, [index]) for part in rows]
        tree = {
            "env_index": index,
            "start": env.episode_start(index),
            "stop": int(env.env_steps[index]),
            "seed": env.episode_seed(index),
            "slots": dict(env.slots_of(index)),
            "shown": shown,
            "actions": {number: np.concatenate(parts) for number, parts in done.items()},
            "last": _last_actions(own),
            "episode": episode.state(),
        }
        return tree if is_plain([tree, own]) else None

    def _fitting(self, tree: Mapping[str, Any]) -> dict[int, Tree]:
        """Return the episodes that can be taken up as far as policies and rows are concerned, by index."""
        specs = self.policy_map.specs
        episodes = {
            episode["env_index"]: episode
            for episode in [*tree["episodes"], *tree.get("remembering", ())]
            if all(policy in specs for policy, _ in episode["episode"]["policies"].values())
        }
        for part in tree["rows"]:
            for place, index in enumerate(part["env_index"].tolist()):
                if index in episodes:
                    home = self.groups[self.tracker.home(part["policy"][place])[0]]
                    if not home.buffer.fits(part["columns"]):
                        del episodes[index]
        return episodes

    def _as_recorded(self, episode: Tree) -> EpisodeReplay:
        actions: dict[AgentId, Iterator[Any]] = {}
        for agent, (policy, number) in episode["episode"]["policies"].items():
            home, which = self.tracker.home(policy)[:2]
            parts = [part[number] for part in (episode["actions"], episode["last"]) if number in part]
            group = self.groups[home]
            actions[agent] = iter(group.env_actions(np.concatenate(parts), which) if parts else ())
        fields = {name: episode[name] for name in ("start", "stop", "seed", "slots", "shown")}
        return EpisodeReplay(actions=actions, **fields)

    def _begin(self, index: int, one: Tree, env_steps: Column) -> None:
        episode = Episode.from_state(index, one["episode"])
        self.tracker.take_up(episode, one["start"], env_steps)
        policies = {number: policy for policy, number in episode.seats().values()}
        for number, actions in one["actions"].items():
            home = self.tracker.home(policies[number])[0]
            self.action_log.put(home, episode.episode_id, number, actions)

    def _seat(self, part: Tree) -> Iterator[tuple[int, int, Tree]]:
        """Put the trajectories of a group, and their rows, where their policies are now.

        Yields:
            The number of each group that some of them are in, the first of their rows there, and these.
        """
        homes = [self.tracker.home(policy) for policy in part["policy"]]
        numbers = np.array([number for number, _ in homes], np.int64)
        for number in np.unique(numbers).tolist():
            mine = _chosen(part, numbers == number)
            self.tracker.sit(mine["slot"], mine["policy"], mine["env_index"], mine["agent_id"])
            self.table.returns[mine["slot"]] = mine["returns"]
            mine["policy"] = np.array([index for _, index in homes], np.int64)[numbers == number]
            yield number, self.groups[number].take_up(mine), mine


def _last_actions(parts: Sequence[Tree]) -> dict[int, Any]:
    """Return the actions of those who have acted and have not seen yet what it led to, by number in the episode."""
    last: dict[int, Any] = {}
    for part in parts:
        for place in np.flatnonzero(part["columns"]["answered"]).tolist():
            last[int(part["agent_index"][place])] = part["columns"]["actions"][place : place + 1]
    return last


def _of_those_who_remember(part: Tree) -> list[int]:
    pairs = zip(part["env_index"].tolist(), part["remembered"], strict=True)
    return [index for index, life in pairs if life is not None]


def _of_envs(part: Tree, indices: Collection[int]) -> Tree:
    return _chosen(part, np.isin(part["env_index"], sorted(indices)))


def _chosen(part: Tree, mask: npt.NDArray[np.bool_]) -> Tree:
    places = np.flatnonzero(mask)
    found: Tree = {"columns": {name: column[places] for name, column in part["columns"].items()}}
    for name, values in part.items():
        if name != "columns":
            found[name] = (
                [values[place] for place in places.tolist()] if isinstance(values, list) else values[places]
            )
    return found
