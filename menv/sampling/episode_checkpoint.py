"""Checkpoints of running episodes: the sampler stores them between two fragments and resumes them in another process.

An episode is its seed and actions, from which `menv.adapters` replays it, plus the carried row of
each agent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.adapters.adapter import CreatedEnvs
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

Tree = dict[str, Any]


class EpisodeCheckpoint:
    """Records the actions of one sampler's running episodes, stores these episodes, and continues those of another.

    An episode that does not fit is dropped.

    Attributes:
        rows: The number of recorded rows.
    """

    def __init__(
        self,
        env: CreatedEnvs,
        groups: Sequence[PolicyGroup],
        table: TrajectoryTable,
        tracker: EpisodeTracker,
        loop: RolloutLoop,
    ) -> None:
        self.rows = 0
        self._env = env
        self._groups = groups
        self._table = table
        self._tracker = tracker
        self._loop = loop
        # Of each batch: the episode, agent, length and turn of its chunks, and the actions of its rows.
        self._recorded: list[tuple[Column, ...]] = []
        self._next = _ROWS
        self._too_long: set[int] = set()

    @property
    def full(self) -> bool:
        """Whether it is time to call `keep_only`."""
        return self.rows > self._next

    def record(self, batch: SampleBatch) -> None:
        """Record a policy's rows of a fragment."""
        chunks, actions = batch.segments, batch[SampleBatch.ACTIONS].copy()
        self._recorded.append((chunks.eps_id, chunks.agent_index, chunks.lengths, chunks.unroll_id, actions))
        self.rows += len(actions)

    def keep_only(self, episodes: Collection[int]) -> None:
        """Drop all episodes except the running ones, and those of the running ones that are too long."""
        if self._recorded:
            eps_id, _, lengths, *_ = zip(*self._recorded, strict=True)
            ids, places = np.unique(np.concatenate(eps_id), return_inverse=True)
            self._too_long |= set(ids[np.bincount(places, np.concatenate(lengths)) > LONGEST].tolist())
        self._too_long &= set(episodes)
        wanted = np.array(sorted(set(episodes) - self._too_long), np.int64)
        recorded, self._recorded, self.rows = self._recorded, [], 0
        for *chunks, actions in recorded:
            mine = np.isin(chunks[0], wanted)
            if mine.any():
                kept = actions if mine.all() else actions[np.repeat(mine, chunks[2])]
                self._recorded.append((*(column[mine] for column in chunks), kept))
                self.rows += len(kept)
        # The threshold doubles, so that the cost per row stays small.
        self._next = _ROWS + 2 * self.rows

    def actions_of(self, episodes: Collection[int]) -> dict[int, dict[int, Column]]:
        """Return each agent's actions in order, by episode and the agent's number, of running episodes.

        Other episodes are dropped; episodes that are too long have no entry.
        """
        self.keep_only(episodes)
        found: dict[int, dict[int, list[tuple[int, Column]]]] = {
            episode: {} for episode in episodes if episode not in self._too_long
        }
        for *chunks, actions in self._recorded:
            stop = 0
            for episode, agent, length, turn in zip(*(column.tolist() for column in chunks), strict=True):
                stop += length
                found[episode].setdefault(agent, []).append((turn, actions[stop - length : stop]))
        # Chunks that are excluded from training come from another batch.
        return {
            episode: {
                agent: np.concatenate([part for _, part in sorted(parts, key=itemgetter(0))])
                for agent, parts in by_agent.items()
            }
            for episode, by_agent in found.items()
        }

    def state(self, policy_map: PolicyMap) -> Tree:
        """Return the episodes that can be replayed, their rows and all seats; {} if the seats cannot be stored."""
        seats = list(self._env.seats), list(self._env.free_slots)
        if not is_plain(seats):
            return {}
        actions = self.actions_of(self._tracker.running_ids)
        rows = [self._rows_of(number) for number in range(len(self._groups))]
        found = [self._episode(index, rows, actions, policy_map) for index in range(self._env.num_envs)]
        episodes = [episode for episode in found if episode is not None]
        written = {episode["env_index"] for episode in episodes}
        kept = [_of_envs(part, written) for part in rows]
        return {"episodes": episodes, "rows": kept, "seats": seats}

    def restore(self, policy_map: PolicyMap, env_steps: Column, tree: Mapping[str, Any] | None) -> int:
        """Resume the sub-environments at these env steps [E], with the episodes of a checkpoint that fit.

        `tree` is None where the sub-environments were others. Returns the number of episodes that continue.
        """
        episodes = {} if tree is None else self._fitting(tree, policy_map)
        recorded = {index: self._replay(one) for index, one in episodes.items()}
        seats = tree["seats"] if tree is not None and recorded else ([], [])
        fresh = self._env.resume(env_steps, recorded, seats)
        resumed = {index: one for index, one in episodes.items() if index not in fresh}
        for index, one in resumed.items():
            self._begin(index, one, env_steps)
        waiting: list[tuple[int, int, Tree]] = []
        for part in () if tree is None else tree["rows"]:
            waiting += self._restore_rows(_of_envs(part, resumed))
        self._loop.restore(env_steps.copy(), self._env.seats, waiting)
        return len(resumed)

    def _rows_of(self, number: int) -> Tree:
        part = self._groups[number].carried_state()
        slots = part["slot"]
        return part | {"returns": self._table.returns[slots], **self._loop.state(number, slots)}

    def _episode(
        self,
        index: int,
        rows: Sequence[Tree],
        actions: Mapping[int, Mapping[int, Column]],
        policy_map: PolicyMap,
    ) -> Tree | None:
        """Return the checkpoint of a running episode, None if it cannot be stored completely."""
        env, tracker = self._env, self._tracker
        episode, shown = tracker.running.get(index), env.shown(index)
        if episode is None or shown is None or not tracker.keeps_policies(index, policy_map):
            return None
        groups = {tracker.locate_policy(policy)[0] for policy, _ in episode.seats().values()}
        if not all(self._groups[number].can_replay for number in groups):
            return None
        if episode.episode_id not in actions:
            return None
        own = [_of_envs(part, [index]) for part in rows]
        tree = {
            "env_index": index,
            "start": env.episode_start(index),
            "stop": int(env.env_steps[index]),
            "seed": env.episode_seed(index),
            "slots": dict(env.slots_of(index)),
            "shown": shown,
            "actions": actions[episode.episode_id],
            "last": _last_actions(own),
            "episode": episode.state(),
        }
        return tree if is_plain([tree, own]) else None

    def _fitting(self, tree: Mapping[str, Any], policy_map: PolicyMap) -> dict[int, Tree]:
        """Return the episodes whose policies and rows fit, by env index."""
        episodes = {
            episode["env_index"]: episode
            for episode in tree["episodes"]
            if all(policy in policy_map.specs for policy, _ in episode["episode"]["policies"].values())
        }
        for part in tree["rows"]:
            for place, index in enumerate(part["env_index"].tolist()):
                if index in episodes:
                    home = self._groups[self._tracker.locate_policy(part["policy"][place])[0]]
                    if not home.buffer.fits(part["columns"]):
                        del episodes[index]
        return episodes

    def _replay(self, episode: Tree) -> EpisodeReplay:
        actions: dict[AgentId, Iterator[Any]] = {}
        for agent, (policy, number) in episode["episode"]["policies"].items():
            home, which = self._tracker.locate_policy(policy)[:2]
            parts = [part[number] for part in (episode["actions"], episode["last"]) if number in part]
            group = self._groups[home]
            actions[agent] = iter(group.env_actions(np.concatenate(parts), which) if parts else ())
        fields = {name: episode[name] for name in ("start", "stop", "seed", "slots", "shown")}
        return EpisodeReplay(actions=actions, **fields)

    def _begin(self, index: int, one: Tree, env_steps: Column) -> None:
        episode = Episode.from_state(index, one["episode"])
        self._tracker.restore_episode(episode, one["start"], env_steps)
        for number, actions in one["actions"].items():
            # These are earlier than all chunks that follow.
            chunk = (episode.episode_id, number, len(actions), -1)
            self._recorded.append((*(np.array([field], np.int64) for field in chunk), actions))
            self.rows += len(actions)

    def _restore_rows(self, part: Tree) -> Iterator[tuple[int, int, Tree]]:
        """Restore a stored group's rows in the groups that have their policies now.

        Yields the index of each group, the position of its first row, and its rows.
        """
        located = [self._tracker.locate_policy(policy) for policy in part["policy"]]
        numbers = np.array([number for number, _ in located], np.int64)
        for number in np.unique(numbers).tolist():
            mine = _select(part, numbers == number)
            self._tracker.restore_slots(mine["slot"], mine["policy"], mine["env_index"], mine["agent_id"])
            self._table.returns[mine["slot"]] = mine["returns"]
            mine["policy"] = np.array([index for _, index in located], np.int64)[numbers == number]
            yield number, self._groups[number].restore(mine), mine


def _last_actions(parts: Sequence[Tree]) -> dict[int, Any]:
    """Return the actions whose next observation is still missing, by the agent's number in the episode."""
    last: dict[int, Any] = {}
    for part in parts:
        for place in np.flatnonzero(part["columns"]["answered"]).tolist():
            last[int(part["agent_index"][place])] = part["columns"]["actions"][place : place + 1]
    return last


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
