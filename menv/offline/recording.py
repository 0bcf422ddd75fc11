"""Recording: `record` plays episodes into a file, `RecordCallbacks` records the episodes of a training run.

Both watch the polls of a `BaseEnv` and the actions that it is sent, so that they see what the environment gives and
takes: observations before connectors, and actions after them.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from menv import rng
from menv.adapters.adapter import Adapter
from menv.base_env import AgentId, End, ExternalSteps, Ready
from menv.callbacks import DefaultCallbacks
from menv.env_context import EnvContext
from menv.episode import Episode
from menv.errors import ConfigError
from menv.offline.episodes import RecordedEpisode, RecordedTrajectory
from menv.offline.files import path_to_write, write_episodes
from menv.policy import Policy
from menv.policy_map import DEFAULT_POLICY, PolicyMap, adapt_mapping_fn
from menv.registry import describe_env, make_env
from menv.sampling.infer_policies import AgentSpaces
from menv.sampling.local_inference import local_policy_inference
from menv.spaces import own_copy
from menv.workers.convert import to_base_env

_ENVS = 8
"""Sub-environments that `record` steps together."""


class _Open:
    """A trajectory that is being recorded."""

    __slots__ = ("actions", "agent_id", "begun_at", "early", "env_index", "env_t", "obs", "rewards")

    def __init__(self, agent_id: AgentId, env_index: int) -> None:
        self.agent_id, self.env_index = agent_id, env_index
        self.obs: list[Any] = []
        self.actions: list[Any] = []
        self.rewards: list[float] = []
        self.env_t: list[int] = []
        # The reward before the first action, which counts for that action.
        self.early = 0.0


class EpisodeWatcher:
    """Watches an environment and keeps each episode that ends, without policy ids, in `finished`.

    Args:
        base_env: The environment, of which no poll was made yet.
        spaces_of: Returns the observation and action space of an agent.
        env: The name of the environment.

    Attributes:
        finished: Indices of sub-environments and their episodes, in the order of their ends.
    """

    def __init__(
        self, base_env: Adapter, spaces_of: Callable[[AgentId], tuple[Any, Any]], env: str = ""
    ) -> None:
        self.finished: deque[tuple[int, RecordedEpisode]] = deque()
        self._created, self._spaces_of, self._env = base_env.replayable, spaces_of, env
        self._open: dict[int, _Open] = {}
        # By index of the sub-environment: of the running episode.
        self._ended: dict[int, list[RecordedTrajectory]] = {}
        self._unclaimed: dict[int, dict[AgentId, float]] = {}
        self._begun: dict[int, tuple[int, int | None]] = {}
        for method, watch in (("poll", self._poll), ("send_actions", self._send_actions)):
            setattr(base_env, method, partial(watch, getattr(base_env, method)))

    def _poll(self, poll: Callable[..., Ready], *args: Any) -> Ready:
        ready = poll(*args)
        for end in ready.ended:
            self._end(end, ready)
        rest = list(ready.unclaimed)
        for episode in ready.episodes:
            while len(ready.unclaimed) - len(rest) < episode.unclaimed:
                self._count(rest.pop(0))
            self._finish(episode.env_index, episode.env_steps, episode.faulty)
        for entry in rest:
            self._count(entry)
        for join in ready.joined:
            self._open[join.slot] = _Open(join.agent_id, join.env_index)
            if join.env_index not in self._begun:
                self._begun[join.env_index] = self._start_of(join.env_index, ready)
        for row, slot in enumerate(ready.slots.tolist()):
            one, reward = self._open[slot], float(ready.rewards[row])
            self._add_reward(one, reward)
            one.obs.append(own_copy(ready.obs[row]))
            one.env_t.append(self._now(one.env_index, ready))
        return ready

    def _send_actions(self, send: Callable[..., None], slots: Any, actions: Any = None) -> None:
        send(slots, actions)
        for slot, action in zip(np.asarray(slots).tolist(), actions, strict=True):
            one = self._open[slot]
            one.actions.append(own_copy(action))
            one.rewards.append(one.early)
            one.early = 0.0

    def _start_of(self, index: int, ready: Ready) -> tuple[int, int | None]:
        created = self._created
        if created is None:
            return int(ready.env_steps[index]), None
        return created.episode_start(index), created.running(index).seed

    def _now(self, index: int, ready: Ready) -> int:
        return int(ready.env_steps[index]) - self._begun[index][0]

    def _add_reward(self, one: _Open, reward: float) -> None:
        if one.rewards:
            one.rewards[-1] += reward
        else:
            one.early += reward

    def _end(self, end: End, ready: Ready) -> None:
        one = self._open.pop(end.slot)
        self._add_reward(one, end.reward)
        obs, count = one.obs, len(one.actions)
        if end.withdrawn:
            count = min(count, len(obs) - 1)
        else:
            obs.append(None if end.obs is None else own_copy(end.obs))
            one.env_t.append(self._now(one.env_index, ready) - end.ago)
        lost = one.early + sum(one.rewards[count:])
        if lost:
            own = self._unclaimed.setdefault(one.env_index, {})
            own[one.agent_id] = own.get(one.agent_id, 0.0) + lost
        steps = ExternalSteps(
            obs, one.actions[:count], np.array(one.rewards[:count], np.float64), end.terminated, end.truncated,
            env_t=np.array(one.env_t),
        )  # fmt: skip
        trajectory = RecordedTrajectory(one.agent_id, steps, *self._spaces_of(one.agent_id))
        self._ended.setdefault(one.env_index, []).append(trajectory)

    def _count(self, entry: Any) -> None:
        own = self._unclaimed.setdefault(entry.env_index, {})
        own[entry.agent_id] = own.get(entry.agent_id, 0.0) + entry.reward

    def _finish(self, index: int, env_steps: int, faulty: bool) -> None:
        trajectories, unclaimed = self._ended.pop(index, []), self._unclaimed.pop(index, {})
        _, seed = self._begun.pop(index, (0, None))
        if not faulty:
            self.finished.append(
                (index, RecordedEpisode(trajectories, seed, self._env, env_steps, unclaimed))
            )


def with_policies(episode: RecordedEpisode, policy_of: Callable[[AgentId], str]) -> RecordedEpisode:
    """Return an episode with the policy of each agent."""
    trajectories = [replace(one, policy_id=policy_of(one.agent_id)) for one in episode.trajectories]
    return replace(episode, trajectories=trajectories)


class RecordCallbacks(DefaultCallbacks):
    """Records the training episodes of a run: `callbacks=RecordCallbacks("games/run.parquet")`.

    Each process writes the episodes that ended in a fragment into a file of its own, such as
    `games/run-0-00001.parquet`, where 0 is the number of the worker. Existing files stay. Episodes of
    evaluations and of clients are not recorded.

    Args:
        path: The folder and the beginning of the names; .parquet or .jsonl.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path_to_write("RecordCallbacks", path)
        self._base_env: Any = None
        self._watcher: EpisodeWatcher | None = None
        self._episodes: list[RecordedEpisode] = []
        self._files = 0

    def on_sub_environment_created(
        self, *, worker: Any, sub_environment: Any, env_context: Any, env_index: int, **kwargs: Any
    ) -> None:
        """Watch the environments of this process before their first poll."""
        if env_context.in_evaluation or worker.base_env is self._base_env:
            return
        self._base_env = worker.base_env
        kinds = [AgentSpaces(sub_environment, "observation"), AgentSpaces(sub_environment, "action")]
        self._watcher = EpisodeWatcher(
            worker.base_env,
            lambda agent: (kinds[0].found(agent), kinds[1].found(agent)),
            _name_of(sub_environment),
        )

    def on_episode_created(self, *, base_env: Any, **kwargs: Any) -> None:
        """Refuse environments that show no sub-environments."""
        if self._watcher is None and base_env.replayable is None and not base_env.get_sub_environments():
            raise ConfigError(
                f"RecordCallbacks: {type(base_env).__name__} shows no sub-environments, expected environments that "
                "menv steps; record where the episodes are played"
            )

    def on_episode_end(self, *, base_env: Any, episode: Any, env_index: int, **kwargs: Any) -> None:
        """Keep an episode until the fragment is complete."""
        if self._watcher is None or base_env is not self._base_env:
            return
        finished = self._watcher.finished
        place = next((place for place, (index, _) in enumerate(finished) if index == env_index), None)
        if place is not None:
            self._episodes.append(with_policies(finished[place][1], episode.policy_for))
            del finished[place]

    def on_sample_end(self, *, worker: Any, samples: Any, **kwargs: Any) -> None:
        """Write the episodes that ended."""
        if self._episodes and worker.base_env is self._base_env:
            write_episodes(self._next_file(worker.worker_index), self._episodes)
            self._episodes = []

    def _next_file(self, worker_index: int) -> Path:
        """Return the next name that has no file: an earlier run, or an earlier process of this worker, wrote some."""
        for number in itertools.count(self._files + 1):
            path = self._path.with_name(f"{self._path.stem}-{worker_index}-{number:05d}{self._path.suffix}")
            if not path.exists():
                break
        self._files = number
        return path


def record(
    source: Any,
    env: Any,
    path: str | os.PathLike[str],
    *,
    episodes: int,
    policy_mapping_fn: Any = None,
    env_config: Mapping[str, Any] | None = None,
    explore: bool | None = None,
    seed: int = 0,
) -> dict[AgentId, float]:
    """Play episodes of an environment and write them into a new file.

    Args:
        source: What acts: an algorithm, a policy, policies by id, or a function of an observation, or functions by id.
        env: The environment, as for an algorithm.
        path: The file, .parquet or .jsonl.
        episodes: How many.
        policy_mapping_fn: The policy of each agent, as in `multiagent`. None takes the algorithm's, or the only policy,
            or the one that is named like the agent.
        env_config: Items of the `EnvContext`.
        explore: Whether policies sample actions; None is their default.
        seed: Of resets and of sampled actions.

    Returns:
        The mean return of each agent.

    Raises:
        ConfigError: An agent has no policy, or the environment cannot be recorded.
        MissingExtraError: pyarrow is not installed.
        NotWrittenError: The file cannot be written.
    """
    # Before the episodes are played.
    path_to_write("record", path)
    found = list(_played(_Players(source, policy_mapping_fn, explore, seed), env, episodes, env_config, seed))
    write_episodes(path, found)
    returns: dict[AgentId, float] = {}
    for episode in found:
        for one in episode.trajectories:
            returns[one.agent_id] = returns.get(one.agent_id, 0.0) + float(one.steps.rewards.sum()) / len(
                found
            )
    return returns


def _played(
    players: _Players, env: Any, episodes: int, env_config: Mapping[str, Any] | None, seed: int
) -> Iterator[RecordedEpisode]:
    """Yield the first episodes to begin, in the order of their ends, so that short ones are not preferred."""
    count = min(_ENVS, episodes)

    def make(index: int) -> Any:
        return make_env(env, EnvContext(dict(env_config or {}), worker_index=0, vector_index=index))

    first = make(0)
    base_env = to_base_env(first, make, count, seed=seed)
    spaces = AgentSpaces(first, "observation"), AgentSpaces(first, "action")
    name = env if isinstance(env, str) else describe_env(env)
    watcher = EpisodeWatcher(base_env, lambda agent: (spaces[0].found(agent), spaces[1].found(agent)), name)
    left = [len(range(index, episodes, count)) for index in range(count)]
    try:
        while max(left) > 0:
            ready = base_env.poll()
            players.forget(ready)
            base_env.send_actions(ready.slots, players.actions(ready))
            while watcher.finished:
                index, episode = watcher.finished.popleft()
                left[index] -= 1
                if left[index] >= 0:
                    yield with_policies(episode, players.policy_of)
    finally:
        base_env.stop()


class _Players:
    """The policies of `record`, and which agent has which."""

    def __init__(self, source: Any, mapping: Any, explore: bool | None, seed: int) -> None:
        if hasattr(source, "get_policy"):
            multi = source.config.multiagent
            mapping = multi.policy_mapping_fn if mapping is None else mapping
            ids = PolicyMap(multi.policies, multi.policy_mapping_fn).specs
            source = {policy_id: source.get_policy(policy_id) for policy_id in ids}
        self._policies = dict(source) if isinstance(source, Mapping) else {DEFAULT_POLICY: source}
        for place, (policy_id, policy) in enumerate(self._policies.items()):
            if isinstance(policy, Policy):
                # A copy: its random numbers and its memory of agents are its own.
                own = self._policies[policy_id] = copy.deepcopy(policy)
                if hasattr(own, "set_draws_state"):
                    own.set_draws_state([rng.key(seed, place), 0])
            elif not callable(policy):
                raise ConfigError(
                    f"record: {policy!r:.60} as the policy {policy_id!r}, expected an algorithm, a Policy, a function "
                    "of an observation, or a dict of these; pass one"
                )
        self._mapping = None if mapping is None else adapt_mapping_fn(mapping)
        self._explore = explore
        self._ids: dict[AgentId, str] = {}
        # By slot: the number of its trajectory, so that recurrent policies begin with their first state in each.
        self._lives: dict[int, int] = {}

    def policy_of(self, agent: AgentId) -> str:
        """Return the id of an agent's policy."""
        if agent not in self._ids:
            only = next(iter(self._policies)) if len(self._policies) == 1 else str(agent)
            name = only if self._mapping is None else self._mapping(agent, Episode(0, 0), None)
            if name not in self._policies:
                raise ConfigError(
                    f"record: agent {agent!r:.60} has the policy {name!r:.60}, expected one of "
                    f"{sorted(self._policies)[:20]}; pass a policy_mapping_fn"
                )
            self._ids[agent] = name
        return self._ids[agent]

    def forget(self, ready: Ready) -> None:
        """Begin the trajectories of a poll."""
        for join in ready.joined:
            self._lives[join.slot] = self._lives.get(join.slot, -1) + 1

    def actions(self, ready: Ready) -> list[Any]:
        """Return the actions of all rows of a poll."""
        rows: dict[str, list[int]] = {}
        slots = ready.slots.tolist()
        for row, slot in enumerate(slots):
            rows.setdefault(self.policy_of(ready.seats[slot][1]), []).append(row)
        found: list[Any] = [None] * len(slots)
        for policy_id, mine in rows.items():
            policy, obs = self._policies[policy_id], [ready.obs[row] for row in mine]
            if not isinstance(policy, Policy):
                answers = list(map(policy, obs))
            else:
                lives = [(slots[row], self._lives[slots[row]]) for row in mine]
                agents = [ready.seats[slots[row]][1] for row in mine]
                given = local_policy_inference(policy, lives, agents, obs, explore=self._explore)
                answers = [action for action, _, _ in given]
            for row, action in zip(mine, answers, strict=True):
                found[row] = action
        return found


def _name_of(env: Any) -> str:
    """Return the id of a gymnasium environment, or the name of its class."""
    spec = getattr(env, "spec", None)
    return str(getattr(spec, "id", None) or type(getattr(env, "unwrapped", env)).__name__)
