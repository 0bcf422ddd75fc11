"""Recording: `record` plays episodes into a file, `RecordCallbacks` records the episodes of a training run.

Both watch the polls of a `BaseEnv` and the actions that it is sent, so that they see what the environment gives and
takes: observations before connectors, and actions after them.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from menv import rng
from menv.adapters.adapter import Adapter
from menv.base_env import AgentId, End, ExternalSteps, Ready
from menv.callbacks import DefaultCallbacks
from menv.env_context import EnvContext
from menv.episode import Episode
from menv.errors import ConfigError
from menv.offline.episodes import RecordedEpisode, RecordedTrajectory
from menv.offline.files import path_to_write, spec_as_json, write_episodes
from menv.plain_files import claimed, writing
from menv.policy import Policy
from menv.policy_map import DEFAULT_POLICY, PolicyMap
from menv.registry import make_env
from menv.sampling.infer_policies import AgentSpaces
from menv.sampling.local_inference import local_policy_inference
from menv.spaces import own_copy
from menv.workers.convert import to_base_env

_Running: TypeAlias = tuple[int, int | None, list[RecordedTrajectory], dict[AgentId, float]]
_ENVS = 8
"""Sub-environments that `record` steps together."""


@dataclass(slots=True, eq=False)
class OpenTrajectory:
    """A trajectory that is being recorded; `rewards` are the reward before the first action, then one per action."""

    agent_id: AgentId
    env_index: int
    obs: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=lambda: [0.0])
    policy_id: str | None = None
    env_t: list[int] = field(default_factory=list)


class EpisodeWatcher:
    """Watches an environment from its first poll on.

    Attributes:
        finished: Episodes that ended, without policy ids, by index of their sub-environment.
        open: The trajectories that are being recorded, by slot.
    """

    def __init__(self, base_env: Adapter, env: Any, name: str = "") -> None:
        self.finished: dict[int, list[RecordedEpisode]] = {}
        self.open: dict[int, OpenTrajectory] = {}
        self._created, spec = base_env.replayable, getattr(env, "spec", None)
        known = getattr(spec, "id", None) or type(getattr(env, "unwrapped", env)).__name__
        # The spec of a vector environment makes many at once.
        self._env = name or str(known), spec_as_json(spec) if isinstance(env, gym.Env) else ""
        self._spaces: list[Any] = [AgentSpaces(env, kind) for kind in ("observation", "action")]
        # By index of the sub-environment: its env steps at the reset, its seed, and what happened since.
        self._running: dict[int, _Running] = {}
        for method, watch in (("poll", self._poll), ("send_actions", self._send_actions)):
            setattr(base_env, method, functools.partial(watch, getattr(base_env, method)))

    def _poll(self, poll: Callable[..., Ready], *args: Any) -> Ready:
        ready, counted = poll(*args), 0
        for end in ready.ended:
            self._end(end, ready)
        for episode in ready.episodes:
            for entry in ready.unclaimed[counted : episode.unclaimed]:
                self._add_unclaimed(entry.env_index, entry.agent_id, entry.reward, ready)
            counted = max(counted, episode.unclaimed)
            _, seed, trajectories, unclaimed = self._running.pop(episode.env_index, (0, None, [], {}))
            if trajectories and not episode.faulty:
                env, spec = self._env
                self.finished.setdefault(episode.env_index, []).append(
                    RecordedEpisode(trajectories, seed, env, episode.env_steps, unclaimed, env_spec=spec)
                )
        for entry in ready.unclaimed[counted:]:
            self._add_unclaimed(entry.env_index, entry.agent_id, entry.reward, ready)
        for join in ready.joined:
            self.open[join.slot] = OpenTrajectory(join.agent_id, join.env_index)
        for row, slot in enumerate(ready.slots.tolist()):
            one = self.open[slot]
            one.rewards[-1] += float(ready.rewards[row])
            one.obs.append(own_copy(ready.obs[row]))
            one.env_t.append(self._now(one.env_index, ready))
        return ready

    def _send_actions(self, send: Callable[..., None], slots: Any, actions: Any = None) -> None:
        send(slots, actions)
        for slot, action in zip(np.asarray(slots).tolist(), actions, strict=True):
            one = self.open[slot]
            # The reward before the first action counts for that action.
            one.rewards.append(0.0 if one.actions else one.rewards[0])
            one.actions.append(own_copy(action))

    def _episode(self, index: int, ready: Ready) -> _Running:
        if index not in self._running:
            start, seed, created = int(ready.env_steps[index]), None, self._created
            if created is not None:
                start = created.episode_start(index)
                if created.seed is not None:
                    seed = rng.reset_seed(created.seed, created.first_index + index, start)
            self._running[index] = start, seed, [], {}
        return self._running[index]

    def _now(self, index: int, ready: Ready) -> int:
        return int(ready.env_steps[index]) - self._episode(index, ready)[0]

    def _end(self, end: End, ready: Ready) -> None:
        one = self.open.pop(end.slot)
        obs, rewards = one.obs, one.rewards
        rewards[-1] += end.reward
        if not end.withdrawn:
            obs.append(None if end.obs is None else own_copy(end.obs))
            one.env_t.append(self._now(one.env_index, ready) - end.ago)
        count = min(len(one.actions), len(obs) - 1)
        lost = sum(rewards[count + 1 :] if one.actions else rewards)
        if lost:
            self._add_unclaimed(one.env_index, one.agent_id, lost, ready)
        steps = ExternalSteps(
            obs, one.actions[:count], np.array(rewards[1 : count + 1], np.float64), end.terminated, end.truncated,
            env_t=np.array(one.env_t),
        )  # fmt: skip
        obs_space, action_space = (known.found(one.agent_id) for known in self._spaces)
        trajectory = RecordedTrajectory(one.agent_id, steps, obs_space, action_space, one.policy_id)
        self._episode(one.env_index, ready)[2].append(trajectory)

    def _add_unclaimed(self, index: int, agent_id: AgentId, reward: float, ready: Ready) -> None:
        own = self._episode(index, ready)[3]
        own[agent_id] = own.get(agent_id, 0.0) + reward


class RecordCallbacks(DefaultCallbacks):
    """Records the training episodes of a run: `callbacks=RecordCallbacks("games/run.parquet")`.

    Each process writes the episodes that ended in a fragment into a separate file, such as
    `games/run-0-00001.parquet`, where 0 is the number of the worker. Existing files stay. Episodes of
    evaluations and of clients are not recorded.

    Args:
        path: The folder and the beginning of the names; .parquet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path_to_write("RecordCallbacks", path)
        self._base_env: Any = None
        self._finished: dict[int, list[RecordedEpisode]] = {}
        self._episodes: list[RecordedEpisode] = []

    def on_sub_environment_created(
        self, *, worker: Any, sub_environment: Any, env_context: Any, env_index: int, **kwargs: Any
    ) -> None:
        """Watch the environments of this process before their first poll."""
        if not env_context.in_evaluation and worker.base_env is not self._base_env:
            self._base_env = worker.base_env
            self._finished = EpisodeWatcher(worker.base_env, sub_environment).finished

    def on_episode_start(self, *, base_env: Any, **kwargs: Any) -> None:
        """Refuse environments that show no sub-environments."""
        if self._base_env is None and base_env.replayable is None and not base_env.get_sub_environments():
            raise ConfigError(
                f"RecordCallbacks: {type(base_env).__name__} has no sub-environments, expected environments that menv "
                "steps; record in the process that plays the episodes"
            )

    def on_episode_end(self, *, base_env: Any, episode: Any, env_index: int, **kwargs: Any) -> None:
        """Keep an episode until the fragment is complete."""
        if base_env is self._base_env:
            for one in self._finished.pop(env_index, ()):
                own = [
                    replace(each, policy_id=episode.policy_for(each.agent_id)) for each in one.trajectories
                ]
                self._episodes.append(replace(one, trajectories=own))

    def on_sample_end(self, *, worker: Any, samples: Any, **kwargs: Any) -> None:
        """Write the episodes that ended, into the next file that no earlier run or process of this worker wrote."""
        if self._episodes and worker.base_env is self._base_env:
            names = (
                f"{self._path.stem}-{worker.worker_index}-{number:05d}{self._path.suffix}"
                for number in itertools.count(1)
            )
            with writing("RecordCallbacks", f"a recording {self._path}"):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with claimed(map(self._path.with_name, names)) as (_, draft):
                    write_episodes(draft, self._episodes)
            self._episodes = []


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
        path: The file, .parquet.
        episodes: How many: the first ones to begin, so that short ones are not preferred.
        policy_mapping_fn: The policy of each agent, as in `multiagent`. None takes the algorithm's, or the only policy,
            or the one that is named like the agent.
        env_config: Items of the `EnvContext`.
        explore: Whether policies sample actions; None is their default.
        seed: Of resets and of sampled actions.

    Returns:
        The mean return of each agent.

    Raises:
        ConfigError: The environment cannot be recorded, or nothing in `source` can act.
        ContractError: An agent has no policy.
        MissingExtraError: pyarrow is not installed.
        NotWrittenError: The file cannot be written.
    """
    # Before the episodes are played.
    path_to_write("record", path)
    players, count = _Players(source, policy_mapping_fn, explore, seed), min(_ENVS, episodes)

    def make(index: int) -> Any:
        return make_env(env, EnvContext(dict(env_config or {}), worker_index=0, vector_index=index))

    first = make(0)
    base_env = to_base_env(first, make, count, seed=seed)
    watcher = EpisodeWatcher(base_env, first, env if isinstance(env, str) else "")
    left = [len(range(index, episodes, count)) for index in range(count)]
    found: list[RecordedEpisode] = []
    try:
        while max(left) > 0:
            ready = base_env.poll()
            players.end_episodes(ready)
            waiting = [watcher.open[slot] for slot in ready.slots.tolist()]
            base_env.send_actions(ready.slots, players.actions(waiting, ready.obs))
            for index, ended in watcher.finished.items():
                found += ended[: max(0, left[index])]
                left[index] -= len(ended)
            watcher.finished.clear()
    finally:
        base_env.stop()
    write_episodes(path, found)
    returns: dict[AgentId, float] = {}
    for episode in found:
        acted = [(one.agent_id, float(one.steps.rewards.sum())) for one in episode.trajectories]
        for agent, earned in [*acted, *episode.unclaimed.items()]:
            returns[agent] = returns.get(agent, 0.0) + earned / len(found)
    return returns


class _Players:
    """The policies of `record`, and which agent has which in each episode."""

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
        named = str if mapping is None and len(self._policies) > 1 else mapping
        self._map, self._explore = PolicyMap(list(self._policies), named), explore
        # The running episodes by env index, and how many have begun.
        self._running: dict[int, Episode] = {}
        self._begun, self._seed = 0, seed

    def end_episodes(self, ready: Ready) -> None:
        """Forget the episodes that ended."""
        for episode in ready.episodes:
            self._running.pop(episode.env_index, None)

    def _policy_of(self, one: OpenTrajectory) -> str:
        if one.policy_id is None:
            if one.env_index not in self._running:
                # The id is what a random mapping draws from.
                episode_id = rng.key(self._seed, self._begun) >> 5
                self._running[one.env_index] = Episode(episode_id, one.env_index)
                self._begun += 1
            episode = self._running[one.env_index]
            episode.length = one.env_t[-1]
            one.policy_id = self._map.seat(one.agent_id, episode, None)
        return one.policy_id

    def actions(self, trajectories: Sequence[OpenTrajectory], observations: Sequence[Any]) -> list[Any]:
        """Return an action for each trajectory."""
        found: list[Any] = [None] * len(trajectories)
        by_policy: dict[str, list[int]] = {}
        for row, one in enumerate(trajectories):
            by_policy.setdefault(self._policy_of(one), []).append(row)
        for policy_id, rows in by_policy.items():
            policy, obs = self._policies[policy_id], [observations[row] for row in rows]
            if isinstance(policy, Policy):
                # Recurrent policies begin with their first state in each trajectory.
                keys = [trajectories[row] for row in rows]
                agents = [one.agent_id for one in keys]
                given = local_policy_inference(policy, keys, agents, obs, explore=self._explore)
                answers = [action for action, _, _ in given]
            else:
                answers = list(map(policy, obs))
            for row, action in zip(rows, answers, strict=True):
                found[row] = action
        return found
