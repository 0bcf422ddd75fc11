"""Checkpoints of running episodes: the sampler stores them between two fragments and resumes them in another process.

An episode is its seed and actions, from which `menv.adapters` replays it, plus the carried row of
each agent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.adapters.adapter import CreatedEnvs
from menv.adapters.poll_events import EpisodeReplay
from menv.base_env import AgentId, Column
from menv.episode import Episode
from menv.policy_map import PolicyMap
from menv.sample_batch import SampleBatch
from menv.sampling.episode_tracker import EpisodeTracker
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.rollout_buffer import ANSWERED
from menv.sampling.rollout_loop import RolloutLoop
from menv.sampling.trajectories import TrajectoryTable
from menv.serialization import is_plain

LONGEST = 200_000
"""Rows of an episode; a longer one is not kept, because replaying it would take too long."""

Tree = dict[str, Any]
_OF_REPLAY = ("start", "stop", "seed", "slots", "shown")


class EpisodeCheckpoint:
    """Records the actions of one sampler's running episodes, stores these episodes, and continues those of another.

    An episode that does not fit is dropped.
    """

    def __init__(
        self,
        env: CreatedEnvs,
        groups: Sequence[PolicyGroup],
        table: TrajectoryTable,
        tracker: EpisodeTracker,
        loop: RolloutLoop,
    ) -> None:
        self._env = env
        self._groups = groups
        self._table = table
        self._tracker = tracker
        self._loop = loop
        # Of each running episode: for each agent's number the actions of its chunks, each with the chunk's number;
        # None if it is too long.
        self._actions: dict[int, dict[int, list[tuple[int, Column]]] | None] = {}
        self._rows: dict[int, int] = {}

    def record(self, batches: Iterable[SampleBatch], running: Iterable[int]) -> None:
        """Record the actions of a fragment's batches; drop all episodes except those that run."""
        known, rows = self._actions, self._rows
        found = self._actions = {episode: known.get(episode, {}) for episode in running}
        self._rows = {episode: rows.get(episode, 0) for episode in found}
        for batch in batches:
            chunks, actions, stop = batch.segments, batch[SampleBatch.ACTIONS], 0
            columns = (chunks.eps_id, chunks.agent_index, chunks.lengths, chunks.unroll_id)
            for episode, agent, length, number in zip(*(column.tolist() for column in columns), strict=True):
                stop += length
                by_agent = found.get(episode)
                if by_agent is not None:
                    by_agent.setdefault(agent, []).append((number, actions[stop - length : stop].copy()))
                    self._rows[episode] += length
                    if self._rows[episode] > LONGEST:
                        found[episode] = None

    def actions_of(self, episode: int) -> dict[int, Column] | None:
        """Return each agent's actions in order, by the agent's number; None of an episode that is too long."""
        by_agent = self._actions.get(episode, {})
        if by_agent is None:
            return None
        # Chunks that are excluded from training come from another batch.
        return {
            agent: np.concatenate([part for _, part in sorted(parts, key=itemgetter(0))])
            for agent, parts in by_agent.items()
        }

    def state(self, policy_map: PolicyMap) -> Tree:
        """Return the episodes that can be replayed, their rows and all seats; {} if the seats cannot be stored."""
        seats = list(self._env.seats), list(self._env.free_slots)
        if not is_plain(seats):
            return {}
        rows = [self._rows_of(number) for number in range(len(self._groups))]
        found = [self._episode(index, rows, policy_map) for index in range(self._env.num_envs)]
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

    def _episode(self, index: int, rows: Sequence[Tree], policy_map: PolicyMap) -> Tree | None:
        """Return the checkpoint of a running episode, None if it cannot be stored completely."""
        env, tracker = self._env, self._tracker
        episode, replay = tracker.running.get(index), env.running(index)
        if episode is None or replay.shown is None or not tracker.keeps_policies(index, policy_map):
            return None
        groups = {tracker.locate_policy(policy)[0] for policy, _ in episode.seats().values()}
        if not all(self._groups[number].strategy.can_replay for number in groups):
            return None
        actions = self.actions_of(episode.episode_id)
        if actions is None:
            return None
        own = [_of_envs(part, [index]) for part in rows]
        tree = {
            "env_index": index,
            **{name: getattr(replay, name) for name in _OF_REPLAY},
            "actions": actions,
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
            actions[agent] = iter(group.strategy.env_actions(np.concatenate(parts), which) if parts else ())
        return EpisodeReplay(**{name: episode[name] for name in _OF_REPLAY}, actions=actions)

    def _begin(self, index: int, one: Tree, env_steps: Column) -> None:
        episode = Episode.from_state(index, one["episode"])
        self._tracker.restore_episode(episode, one["start"], env_steps)
        # These are earlier than all chunks that follow.
        self._actions[episode.episode_id] = {
            number: [(-1, actions)] for number, actions in one["actions"].items()
        }
        self._rows[episode.episode_id] = sum(map(len, one["actions"].values()))

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
        for place in np.flatnonzero(part["columns"].get(ANSWERED, ())).tolist():
            last[int(part["agent_index"][place])] = part["columns"]["actions"][place : place + 1]
    return last


def _of_envs(part: Tree, indices: Collection[int]) -> Tree:
    found: Tree = _select(part, np.isin(part["env_index"], sorted(indices)))
    return found


def _select(values: Any, mask: npt.NDArray[np.bool_]) -> Any:
    if isinstance(values, dict):
        return {name: _select(column, mask) for name, column in values.items()}
    return list(compress(values, mask)) if isinstance(values, list) else values[mask]
