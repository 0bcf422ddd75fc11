"""Checkpoints of running episodes: the sampler stores them between two fragments and resumes them in another process.

An episode is its seed and actions (`EpisodeRecorder`), from which `menv.adapters` replays it, plus the carried row of
each agent.
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

_ROWS = 65_536
"""Rows that are recorded before rows of finished episodes are dropped."""
LONGEST = 200_000
"""Rows of an episode; a longer one is not kept, because replaying it would take too long."""


class RecordedActions(NamedTuple):
    """The actions [N, ...] of S trajectory chunks of one policy group; `turn` [S] orders the chunks of an agent."""

    group: int
    eps_id: Column
    agent_index: Column
    lengths: Column
    turn: Column
    actions: Column

    def of(self, episodes: Column) -> RecordedActions:
        """Return the chunks of some episodes."""
        mine = np.isin(self.eps_id, episodes)
        rows = np.repeat(mine, self.lengths)
        return RecordedActions(
            self.group, self.eps_id[mine], self.agent_index[mine], self.lengths[mine], self.turn[mine],
            self.actions[rows],
        )  # fmt: skip


class EpisodeRecorder:
    """The actions of the running episodes, one array copy per policy and fragment.

    Attributes:
        rows: The number of recorded rows.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._entries: list[RecordedActions] = []
        self._next = _ROWS
        self._too_long: set[int] = set()

    @property
    def full(self) -> bool:
        """Whether it is time to call `keep_only`."""
        return self.rows > self._next

    def record(self, group: int, batch: SampleBatch) -> None:
        """Record a policy's rows of a fragment."""
        chunks = batch.segments
        actions = batch[SampleBatch.ACTIONS].copy()
        parts = (chunks.eps_id, chunks.agent_index, chunks.lengths, chunks.unroll_id)
        self._entries.append(RecordedActions(group, *parts, actions))
        self.rows += len(actions)

    def keep_only(self, episodes: Collection[int]) -> None:
        """Drop all episodes except the running ones."""
        self._too_long &= set(episodes)
        self._shorten(episodes)
        rows: dict[int, int] = {}
        for entry in self._entries:
            for eps_id, length in zip(entry.eps_id.tolist(), entry.lengths.tolist(), strict=True):
                rows[eps_id] = rows.get(eps_id, 0) + length
        self._too_long |= {eps_id for eps_id, count in rows.items() if count > LONGEST}
        if self._too_long:
            self._shorten(episodes)
        # The threshold doubles, so that the cost per row stays small.
        self._next = _ROWS + 2 * self.rows

    def actions_of(self, episode: int) -> dict[int, list[Column]] | None:
        """Return each agent's actions in order, by its number; None for an episode that was too long.

        Call `keep_only` first, because every call searches all recorded rows.
        """
        if episode in self._too_long:
            return None
        found: dict[int, list[tuple[int, Column]]] = {}
        for entry in self._entries:
            if episode not in entry.eps_id:
                continue
            ends = np.cumsum(entry.lengths)
            for chunk in np.flatnonzero(entry.eps_id == episode).tolist():
                part = entry.actions[ends[chunk] - entry.lengths[chunk] : ends[chunk]]
                found.setdefault(int(entry.agent_index[chunk]), []).append((int(entry.turn[chunk]), part))
        # Chunks that are excluded from training come from another batch.
        return {
            agent: [part for _, part in sorted(parts, key=itemgetter(0))] for agent, parts in found.items()
        }

    def restore(self, group: int, episode: int, agent_index: int, actions: Column) -> None:
        """Record an agent's earlier actions in an episode from a checkpoint."""
        one = np.ones(1, np.int64)
        self._entries.append(
            RecordedActions(group, one * episode, one * agent_index, one * len(actions), -one, actions)
        )
        self.rows += len(actions)

    def _shorten(self, episodes: Collection[int]) -> None:
        """Keep the chunks of some episodes and join them by group."""
        wanted = np.array(sorted(set(episodes) - self._too_long), np.int64)
        parts = [part for part in (entry.of(wanted) for entry in self._entries) if len(part.lengths)]
        joined = []
        for group in sorted({part.group for part in parts}):
            mine = [part for part in parts if part.group == group]
            joined.append(
                RecordedActions(
                    group, *(np.concatenate(columns) for columns in list(zip(*mine, strict=True))[1:])
                )
            )
        self._entries = joined
        self.rows = sum(len(entry.actions) for entry in joined)


Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EpisodeCheckpoint:
    """Stores the running episodes of one sampler, and continues the episodes of another.

    An episode that does not fit is dropped.
    """

    env: CreatedEnvs
    policy_map: PolicyMap
    groups: Sequence[PolicyGroup]
    table: TrajectoryTable
    tracker: EpisodeTracker
    rows: RolloutLoop
    recorder: EpisodeRecorder

    def state(self) -> Tree:
        """Return the episodes that can be replayed, their rows and all seats; {} if the seats cannot be stored."""
        seats = list(self.env.seats), list(self.env.free_slots)
        if not is_plain(seats):
            return {}
        self.recorder.keep_only(self.tracker.running_ids)
        rows = [self._rows_of(number) for number in range(len(self.groups))]
        found = [self._recorded(index, rows) for index in range(self.env.num_envs)]
        episodes = [episode for episode in found if episode is not None]
        written = {episode["env_index"] for episode in episodes}
        kept = [_of_envs(part, written) for part in rows]
        # Older readers, which cannot restore connector state, read "episodes" only and drop the others.
        with_state = {index for part in kept for index in _envs_with_connector_state(part)}
        parted = [
            [one for one in episodes if (one["env_index"] in with_state) is split] for split in (False, True)
        ]
        return {"episodes": parted[0], "remembering": parted[1], "rows": kept, "seats": seats}

    def restore(self, env_steps: Column, tree: Mapping[str, Any] | None) -> int:
        """Resume the sub-environments at these env steps [E], with the episodes of a checkpoint that fit.

        `tree` is None where the sub-environments were others. Returns the number of episodes that continue.
        """
        episodes = {} if tree is None else self._fitting(tree)
        recorded = {index: self._replay(one) for index, one in episodes.items()}
        seats = tree["seats"] if tree is not None and recorded else ([], [])
        fresh = self.env.resume(env_steps, recorded, seats)
        resumed = {index: one for index, one in episodes.items() if index not in fresh}
        for index, one in resumed.items():
            self._begin(index, one, env_steps)
        waiting: list[tuple[int, int, Tree]] = []
        for part in () if tree is None else tree["rows"]:
            waiting += self._restore_rows(_of_envs(part, resumed))
        self.rows.restore(env_steps.copy(), self.env.seats, waiting)
        return len(resumed)

    def _rows_of(self, number: int) -> Tree:
        part = self.groups[number].carried_state()
        slots = part["slot"]
        return part | {"returns": self.table.returns[slots], **self.rows.state(number, slots)}

    def _recorded(self, index: int, rows: Sequence[Tree]) -> Tree | None:
        """Return the checkpoint of a running episode, None if it cannot be stored completely."""
        env, tracker = self.env, self.tracker
        episode, shown = tracker.running.get(index), env.shown(index)
        if episode is None or shown is None or not tracker.keeps_policies(index, self.policy_map):
            return None
        groups = {tracker.locate_policy(policy)[0] for policy, _ in episode.seats().values()}
        if not all(self.groups[number].can_replay for number in groups):
            return None
        done = self.recorder.actions_of(episode.episode_id)
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
        """Return the episodes whose policies and rows fit, by env index."""
        specs = self.policy_map.specs
        episodes = {
            episode["env_index"]: episode
            for episode in [*tree["episodes"], *tree.get("remembering", ())]
            if all(policy in specs for policy, _ in episode["episode"]["policies"].values())
        }
        for part in tree["rows"]:
            for place, index in enumerate(part["env_index"].tolist()):
                if index in episodes:
                    home = self.groups[self.tracker.locate_policy(part["policy"][place])[0]]
                    if not home.buffer.fits(part["columns"]):
                        del episodes[index]
        return episodes

    def _replay(self, episode: Tree) -> EpisodeReplay:
        actions: dict[AgentId, Iterator[Any]] = {}
        for agent, (policy, number) in episode["episode"]["policies"].items():
            home, which = self.tracker.locate_policy(policy)[:2]
            parts = [part[number] for part in (episode["actions"], episode["last"]) if number in part]
            group = self.groups[home]
            actions[agent] = iter(group.env_actions(np.concatenate(parts), which) if parts else ())
        fields = {name: episode[name] for name in ("start", "stop", "seed", "slots", "shown")}
        return EpisodeReplay(actions=actions, **fields)

    def _begin(self, index: int, one: Tree, env_steps: Column) -> None:
        episode = Episode.from_state(index, one["episode"])
        self.tracker.restore_episode(episode, one["start"], env_steps)
        policies = {number: policy for policy, number in episode.seats().values()}
        for number, actions in one["actions"].items():
            home = self.tracker.locate_policy(policies[number])[0]
            self.recorder.restore(home, episode.episode_id, number, actions)

    def _restore_rows(self, part: Tree) -> Iterator[tuple[int, int, Tree]]:
        """Restore a stored group's rows in the groups that have their policies now.

        Yields the index of each group, the position of its first row, and its rows.
        """
        located = [self.tracker.locate_policy(policy) for policy in part["policy"]]
        numbers = np.array([number for number, _ in located], np.int64)
        for number in np.unique(numbers).tolist():
            mine = _select(part, numbers == number)
            self.tracker.restore_slots(mine["slot"], mine["policy"], mine["env_index"], mine["agent_id"])
            self.table.returns[mine["slot"]] = mine["returns"]
            mine["policy"] = np.array([index for _, index in located], np.int64)[numbers == number]
            yield number, self.groups[number].restore(mine), mine


def _last_actions(parts: Sequence[Tree]) -> dict[int, Any]:
    """Return the actions whose next observation is still missing, by the agent's number in the episode."""
    last: dict[int, Any] = {}
    for part in parts:
        for place in np.flatnonzero(part["columns"]["answered"]).tolist():
            last[int(part["agent_index"][place])] = part["columns"]["actions"][place : place + 1]
    return last


def _envs_with_connector_state(part: Tree) -> list[int]:
    pairs = zip(part["env_index"].tolist(), part["remembered"], strict=True)
    return [index for index, life in pairs if life is not None]


def _of_envs(part: Tree, indices: Collection[int]) -> Tree:
    return _select(part, np.isin(part["env_index"], sorted(indices)))


def _select(part: Tree, mask: npt.NDArray[np.bool_]) -> Tree:
    places = np.flatnonzero(mask)
    found: Tree = {"columns": {name: column[places] for name, column in part["columns"].items()}}
    for name, values in part.items():
        if name != "columns":
            found[name] = (
                [values[place] for place in places.tolist()] if isinstance(values, list) else values[places]
            )
    return found
