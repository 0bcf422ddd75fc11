"""The episode tracker: which episodes run, which agents act in them, and with which policies.

`menv.sampling.rollout_loop` passes each poll's joins and ends to it before the rows. It maps agents to policies when
they first appear, starts and ends trajectories in the buffers, and records finished episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from menv import rng
from menv.base_env import (
    COMMON,
    AgentId,
    Column,
    End,
    Ends,
    EnvId,
    EpisodeEnd,
    EpisodeEnds,
    Join,
    Joins,
    Ready,
    Unclaimed,
)
from menv.episode import MEMBER_REWARDS, Episode
from menv.metrics import AS_THEY_COME, When
from menv.policy_map import PolicyMap
from menv.sampling.callback_runner import CallbackRunner
from menv.sampling.episode_arrays import EpisodeArrays
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.trajectories import TrajectoryStart, TrajectoryTable

_KEPT_KEYS = _MOST_EXPECTED = 65_536


class EpisodeTracker:
    """The running episodes of one sampler.

    An episode keeps the policy map that it began with; policies that are added or removed do not change it.

    Args:
        groups: The policy groups; each policy is in exactly one.
        table: Written when an agent joins.
        callbacks: Called when episodes begin and end.
        seed: Key of every random draw.
        first_index: Index of this process's first sub-environment among all.
        worker: The sampler, which mapping functions receive as `worker`.

    Attributes:
        running: The running episodes by env id.
        by_columns: Whether no code asks for the objects of episodes.
    """

    by_columns = False

    def __init__(
        self,
        groups: Sequence[PolicyGroup],
        table: TrajectoryTable,
        callbacks: CallbackRunner,
        *,
        seed: int,
        first_index: int,
        worker: Any,
    ) -> None:
        self.running: dict[EnvId, Episode] = {}
        self._arrays: EpisodeArrays | None = None
        # The policy map and the policies' places when the episode began.
        self._maps: dict[EnvId, PolicyMap] = {}
        # Episodes of clients, who asked for policies before they sent steps.
        self._expected: dict[EnvId, Episode] = {}
        self._policy_places: dict[EnvId, dict[str, tuple[int, int]]] = {}
        self._groups = groups
        self._table = table
        self._callbacks = callbacks
        self._seed = seed
        self._first_index = first_index
        self._worker = worker
        env = worker.base_env
        self._created = env.replayable
        self._external = env.external
        self._events_have_order = env.events_have_order
        self._only_agent = env.only_agent
        self._places: dict[str, tuple[int, int]] = {}
        self.index_policies()
        self._agent_keys: dict[tuple[int, AgentId], int] = {}
        # [E] the key of each sub-environment's episodes.
        self._episode_keys: rng.Keys = np.zeros(0, np.uint64)
        # [E] how many episodes have begun in each sub-environment.
        self._begun: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        # [E] of the current poll.
        self._env_steps: Column = self._begun

    @property
    def begun(self) -> npt.NDArray[np.int64]:
        """[E] how many episodes have begun in each sub-environment."""
        if self._arrays is not None:
            self._arrays.settle()
        return self._begun

    @property
    def running_ids(self) -> list[int]:
        """The ids of the running episodes."""
        of_arrays = [] if self._arrays is None else self._arrays.ids.tolist()
        return [*of_arrays, *(episode.episode_id for episode in self.running.values())]

    def index_policies(self) -> None:
        """Find each policy's group index and index in the group, after groups have changed.

        Removed policies stay as long as an agent is bound to them.
        """
        found = {
            policy_id: (number, index)
            for number, group in enumerate(self._groups)
            for index, policy_id in enumerate(group.policy_ids)
        }
        # Clients may name policies that were removed.
        bound = set(self._places) if self._external else set()
        for episode in self.running.values():
            bound |= {policy_id for policy_id, _ in episode.seats().values()}
        # A new dict, because running episodes keep the old one: another policy may have the id now.
        self._places = {name: home for name, home in self._places.items() if name in bound} | found

    def locate_policy(self, policy_id: str) -> tuple[int, int]:
        """Return the index of a policy's group, and the policy's index in it."""
        return self._places[policy_id]

    def resume(self, begun: Column, num_envs: int) -> None:
        """Continue the numbers of episodes from a checkpoint, where `begun` [...] had begun."""
        self.widen(num_envs)
        self._begun[:] = begun if len(begun) == num_envs else begun.max(initial=0)

    def apply(self, ready: Ready) -> None:
        """Record a poll's ends, episodes and joins, in this order."""
        self.set_env_steps(ready.env_steps)
        if ready.faults:
            self._callbacks.record_faults(ready.faults)
        if self.by_columns:
            if self._only_agent is not None and not ready.faults:
                _make_columns(ready, self._only_agent)
            if _is_columns(ready):
                self._apply_columns(ready)
                return
        self.use_objects()
        if ready.ended or ready.unclaimed or ready.episodes:
            self._take_ends(ready)
        for join in ready.joined:
            self.add_agent(join)

    def _apply_columns(self, ready: Ready) -> None:
        ended: Any = ready.ended
        episodes: Any = ready.episodes
        joined: Any = ready.joined
        unclaimed = ready.unclaimed
        if self.running:
            # They began as objects and end as objects.
            ended, old_ends = self._apart(ended)
            episodes, old_episodes = self._apart(episodes)
            if self._arrays is not None and len(old_episodes):
                self._arrays.begin_next(old_episodes.env_indices, ready.env_steps)
            theirs = [entry for entry in unclaimed if entry.env_id in self.running]
            unclaimed = [entry for entry in unclaimed if entry.env_id not in self.running]
            self._take_ends(replace(ready, ended=old_ends, episodes=old_episodes, unclaimed=theirs))
            joined, old_joins = self._apart(joined)
            for join in old_joins:
                self.add_agent(join)
        if not (len(ended) or unclaimed or len(episodes) or len(joined)):
            return
        arrays = self._arrays or self._new_arrays(joined.names)
        if len(ended):
            arrays.end(ended, self._table, self._groups)
        if unclaimed:
            arrays.credit_unclaimed(unclaimed, self._worker.metrics)
        if len(episodes):
            arrays.finish(episodes, ready.env_steps)
        if len(joined):
            arrays.join(joined, self._table, self._groups)

    def _apart(self, part: Any) -> tuple[Any, Any]:
        """Return the entries of columns without episodes that are objects, and the entries of these."""
        if not len(part):
            return part, part
        running: Any = list(self.running)
        old = np.isin(part.env_indices, running)
        return part[~old], part[old]

    def _new_arrays(self, names: Sequence[AgentId]) -> EpisodeArrays:
        policy_map, number = self._worker.policy_map, len(self._env_steps)
        # No episode is asked: `by_columns` says that the mapping needs none.
        policies = [policy_map.only or policy_map.policy_for(name, None, self._worker) for name in names]
        places = np.array([self._places[policy] for policy in policies], np.int64)
        self._arrays = EpisodeArrays(
            names, policies, places, self.agent_keys(number, names), self._episode_keys, self._begun,
            self._env_steps,
        )  # fmt: skip
        return self._arrays

    def use_objects(self) -> None:
        """Represent the running episodes as objects; new ones may be arrays again, with the policy map of then."""
        arrays, self._arrays = self._arrays, None
        if arrays is None:
            return
        self._record(arrays)
        for episode in arrays.as_objects():
            self.running[episode.env_id] = episode
            self._keep_policies(episode.env_id)

    def fragment_closed(self) -> None:
        """Record the episodes that ended and are not objects, after the buffers were closed."""
        if self._arrays is not None:
            self._record(self._arrays)
            self._arrays.fragment_closed()

    def _record(self, arrays: EpisodeArrays) -> None:
        first_index = self._first_index if self._events_have_order else None
        arrays.record(self._worker.metrics, first_index)

    def set_env_steps(self, env_steps: Column) -> None:
        """Set the env steps [E]; sub-environments may have appeared."""
        self._env_steps = env_steps
        self.widen(len(env_steps))

    def agent_key(self, env_index: int, agent_id: AgentId) -> int:
        """Return the key of an agent's random draws, which is the same in every process."""
        if len(self._agent_keys) >= _KEPT_KEYS:
            self._agent_keys.clear()
        env = self._first_index + env_index
        key = rng.key(self._seed, env, rng.stable_hash(agent_id), rng.ACTION)
        self._agent_keys[env_index, agent_id] = key
        return key

    def _take_ends(self, ready: Ready) -> None:
        for end in ready.ended:
            self.end_trajectory(end, ready.env_steps)
        credited = 0
        for finished in ready.episodes:
            if finished.unclaimed > credited:
                self._credit_unclaimed(ready.unclaimed[credited : finished.unclaimed])
                credited = finished.unclaimed
            index, when = finished.env_index, AS_THEY_COME
            if self._events_have_order:
                when = ready.env_steps.item(index), self._first_index + index
            self.finish_episode(finished, when)
        if len(ready.unclaimed) > credited:
            self._credit_unclaimed(ready.unclaimed[credited:])

    def end_trajectory(self, end: End, env_steps: Column) -> None:
        """End a trajectory at these env steps [E]."""
        episode, seat = self.running[end.env_id], self._table.entry(end.slot)
        group = self._groups[seat.group]
        if self._callbacks.active:
            episode.look_at(end.agent_id, end.obs, end.info)
        earned = self._table.returns.item(end.slot) + end.reward
        episode.credit(end.agent_id, earned)
        if end.info and MEMBER_REWARDS in end.info:
            episode.credit_members(end.agent_id, end.info[MEMBER_REWARDS])
        group.end(end, seat.policy)
        if self._callbacks.keeps:
            group.buffer.set_end_env_t(int(env_steps[seat.env_index]) - end.ago)

    def finish_episode(self, finished: EpisodeEnd, when: When = AS_THEY_COME) -> None:
        """End an episode; an episode without actions begins here, so that it is recorded too."""
        episode = self.running.get(finished.env_id) or self._begin(finished.env_id, finished.env_index)
        if episode.unseen and not finished.faulty:
            possible, episode.length = self._worker.base_env.possible_agents or (), finished.env_steps
            for agent_id in [one for one in episode.unseen if one in possible]:
                self._bind(episode, agent_id)
        for by_env in (self.running, self._maps, self._policy_places):
            del by_env[finished.env_id]
        episode.length = finished.env_steps
        if finished.info is not None and self._callbacks.active:
            episode.look_at(COMMON, None, finished.info)
        for group in self._groups:
            group.strategy.end_episode(finished.env_id)
        self._callbacks.end(episode, finished.env_index, finished.faulty, when)

    def _credit_unclaimed(self, unclaimed: Sequence[Unclaimed]) -> None:
        for entry in unclaimed:
            episode = self.running.get(entry.env_id) or self._begin(entry.env_id, entry.env_index)
            episode.credit_unclaimed(entry.agent_id, entry.reward)

    def add_agent(self, join: Join) -> None:
        """Bind an agent to a policy and start its trajectory."""
        slot, env_id, agent_id, env_index, trained, named = join
        episode = self.running.get(env_id) or self._begin(env_id, env_index)
        seat = episode.seat_of(agent_id)
        again = 0 if seat is None else episode.come_again(agent_id)
        if seat is None:
            episode.length = self._env_steps.item(env_index) - episode.begun_at
            seat = self._bind(episode, agent_id, named)
        # Clients may name a policy that was added after the episode began.
        number, index = self._policy_places[env_id].get(seat[0]) or self._places[seat[0]]
        key = self._agent_keys.get((env_index, agent_id)) or self.agent_key(env_index, agent_id)
        self._table.assign(slot, number, index, env_index, key)
        life = key >> 1 if not again else rng.key(key, again) >> 1
        self._groups[number].start(
            TrajectoryStart(slot, index, trained, episode.episode_id, seat[1], env_index, life, agent_id)
        )

    def _bind(self, episode: Episode, agent_id: AgentId, named: str | None = None) -> tuple[str, int]:
        """Bind an agent to a policy, `named` if a client chose it; return the policy and the agent's number."""
        policy_map = self._maps[episode.env_id]
        policy_id = named or policy_map.only or policy_map.policy_for(agent_id, episode, self._worker)
        return episode.bind(agent_id, policy_id)

    def _begin(self, env_id: EnvId, env_index: int) -> Episode:
        number = self._begun.item(env_index)
        self._begun[env_index] = number + 1
        episode_id = rng.key(self._episode_keys.item(env_index), number) >> 5
        expected = self._expected.get(env_id) if self._expected else None
        episode = self.running[env_id] = expected or Episode(episode_id, env_id)
        if expected is not None:
            # Only now, because another thread looks for it first there, then among the running ones.
            self._expected.pop(env_id, None)
        created = self._created
        episode.begun_at = int(
            created.episode_start(env_index) if created is not None else self._env_steps[env_index]
        )
        self._keep_policies(env_id)
        self._callbacks.begin(episode, env_index)
        return episode

    def expect(self, env_id: EnvId) -> Episode:
        """Return an episode that runs, or that will begin with a client's first steps; any thread may ask."""
        found = self._expected.get(env_id) or self.running.get(env_id)
        if found is None:
            found = self._expected[env_id] = Episode(rng.stable_hash(env_id) >> 5, env_id)
            if len(self._expected) > _MOST_EXPECTED:
                self._expected.pop(next(iter(self._expected)), None)
        return found

    def _keep_policies(self, env_id: EnvId) -> None:
        self._maps[env_id], self._policy_places[env_id] = self._worker.policy_map, self._places

    def agent_keys(self, num_envs: int, names: Sequence[AgentId]) -> rng.Keys:
        """Return the keys [E, A] of the agents' random draws; see `agent_key`."""
        seeds = np.full(num_envs, self._seed & 0xFFFFFFFFFFFFFFFF, np.uint64)
        of_envs = rng.keys(seeds, self._first_index + np.arange(num_envs))
        hashes = np.array([rng.stable_hash(name) for name in names], np.uint64).astype(np.int64)
        of_agents = rng.keys(of_envs[:, None], hashes)
        return rng.keys(of_agents, np.array([rng.ACTION]))

    def widen(self, num_envs: int) -> None:
        """Make room for new sub-environments."""
        before = len(self._begun)
        if num_envs <= before:
            return
        new = [
            rng.key(self._seed, self._first_index + index, rng.MAPPING) for index in range(before, num_envs)
        ]
        self._episode_keys = np.append(self._episode_keys, np.array(new, np.uint64))
        self._begun = np.append(self._begun, np.zeros(num_envs - before, np.int64))


def _make_columns(ready: Ready, only_agent: AgentId) -> None:
    """Represent joins, ends and episodes as columns."""
    names = (only_agent,)
    if ready.joined:
        ready.joined = Joins.of_only_agents(ready.joined, names)
    if ready.ended:
        ready.ended = Ends.of_only_agents(ready.ended, names)
    if ready.episodes:
        ready.episodes = EpisodeEnds.of(ready.episodes)


def _is_columns(ready: Ready) -> bool:
    """Return whether joins, ends and episodes, as far as there are any, are columns."""
    joined, ended, episodes = (
        type(ready.joined) is Joins,
        type(ready.ended) is Ends,
        type(ready.episodes) is EpisodeEnds,
    )
    return (joined or not ready.joined) and (ended or not ready.ended) and (episodes or not ready.episodes)
