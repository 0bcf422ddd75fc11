"""`RecordedEnvs`: recorded episodes as an external `BaseEnv`, which `config["input"]` names by a path.

The sampler takes them like the episodes of clients that chose their own actions: the same connectors, policy mapping,
postprocessing and replay buffer. Epochs never end: each one reads the parts of all files in a new order, and the
episodes of a part in a new order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from menv import rng
from menv.adapters.adapter import Adapter
from menv.adapters.agent_tracker import AgentTracker, SlotAllocator
from menv.adapters.external import next_chunk
from menv.base_env import ExternalSteps, ExternalTrajectory, IntArray, Ready, TrajectoryChunk, Unclaimed
from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.offline.episodes import RecordedEpisode
from menv.offline.files import episode_sources
from menv.spaces import alike

_EPISODES_AT_ONCE = 16
"""Episodes of one poll at most; each is a sub-environment."""
_SOURCES_AT_ONCE = 8
"""Parts of files whose episodes are mixed."""
_UNKNOWN_WEIGHTS = -1
"""The number of the weights that chose recorded actions: no weights of this run."""


class RecordedEnvs(Adapter):
    """The episodes of the recordings that a path, a pattern or `"minari:NAME"` names, again and again.

    Args:
        pattern: Which.
        ioctx: The spaces that they must have; a space that is None is read from the recording.
        seed: Of the order.

    Raises:
        ConfigError: There is no such recording, or an agent in it has other spaces.
    """

    external = True
    counts_steps = False

    def __init__(self, pattern: str, ioctx: InputContext, seed: int | None = None) -> None:
        self._pattern, self._sources = pattern, episode_sources(pattern)
        declared = ioctx.observation_space is not None or ioctx.observation_spaces
        known = ioctx.possible_agents if declared else ()
        spaces: dict[Any, Sequence[Any]] = {agent: ioctx.spaces_of(agent) for agent in known}
        for source in self._sources:
            for agent, recorded in source.spaces.items():
                given = spaces.get(agent, ioctx.spaces_of(agent))
                pairs = zip(given, recorded, strict=True)
                spaces[agent] = [own if wanted is None else wanted for wanted, own in pairs]
                _check_agent(source.where, agent, recorded, spaces[agent], known)
        self.possible_agents: list[Any] = list(spaces)
        self.observation_space, self.action_space = ioctx.observation_space, ioctx.action_space
        self.observation_spaces = {agent: pair[0] for agent, pair in spaces.items()}
        self.action_spaces = {agent: pair[1] for agent, pair in spaces.items()}
        self._rng = np.random.default_rng(rng.key(0 if seed is None else seed, rng.MAPPING))
        self._episodes, self._read = self._shuffled(), 0
        allocator = self._allocator = SlotAllocator()
        self._trackers = [AgentTracker(index, index, allocator, None) for index in range(_EPISODES_AT_ONCE)]
        self._env_steps: IntArray = np.zeros(_EPISODES_AT_ONCE, np.int64)
        self._room, self._by_agent_steps = float("inf"), False

    def limit_steps(self, steps: float, by_agent_steps: bool) -> None:
        self._room, self._by_agent_steps = steps, by_agent_steps

    def poll(self, timeout: float | None = None) -> Ready:
        """Return as many whole episodes as the sampler wants steps, at most a few."""
        chunks: list[TrajectoryChunk] = []
        unclaimed: list[Unclaimed] = []
        room = self._room
        for tracker in self._trackers:
            episode = next(self._episodes)
            tracker.reopen(f"{episode.name}, number {self._read}")
            self._read += 1
            index, steps = tracker.env_index, max(1, episode.env_steps)
            self._env_steps[index] += steps
            tracker.episode_steps = steps
            now = int(self._env_steps[index])
            chunks += [next_chunk(tracker, part, now) for part in _chunks_of(episode, steps)]
            unclaimed += [
                Unclaimed(tracker.env_id, agent, reward, index) for agent, reward in episode.unclaimed.items()
            ]
            rows = sum(len(one.steps.rewards) for one in episode.trajectories)
            room -= rows if self._by_agent_steps else steps
            if room <= 0:
                break
        none, seats = np.zeros(0, np.int64), self._allocator.seats
        return Ready(none, [], np.zeros(0), self._env_steps, unclaimed=unclaimed, played=chunks, seats=seats)

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Do nothing: recorded agents wait for no action."""

    def _shuffled(self) -> Iterator[RecordedEpisode]:
        while True:
            order = self._rng.permutation(len(self._sources)).tolist()
            for first in range(0, len(order), _SOURCES_AT_ONCE):
                some = order[first : first + _SOURCES_AT_ONCE]
                episodes = [episode for number in some for episode in self._sources[number].read()]
                for place in self._rng.permutation(len(episodes)).tolist():
                    yield episodes[place]
            if not self._read:
                raise ConfigError(
                    f"{self._pattern}: no complete episode, expected at least one; record longer"
                )


def _chunks_of(episode: RecordedEpisode, env_steps: int) -> Iterator[ExternalTrajectory]:
    """Yield the episode in chunks, in each of which an agent has one trajectory at most."""
    rounds: list[dict[Any, ExternalSteps]] = [{}]
    for one in episode.trajectories:
        if all(one.agent_id in agents for agents in rounds):
            rounds.append({})
        next(agents for agents in rounds if one.agent_id not in agents)[one.agent_id] = one.steps
    for agents in rounds:
        last = agents is rounds[-1]
        flags = last and not episode.truncated, last and episode.truncated
        yield ExternalTrajectory(agents, env_steps, *flags, _UNKNOWN_WEIGHTS)


def _check_agent(
    where: str, agent: Hashable, own: Sequence[Any], wanted: Sequence[Any], known: Sequence[Any]
) -> None:
    if known and agent not in known:
        raise ConfigError(
            f"{where}: agent {agent!r:.60} is not in the environment, expected one of {list(known)[:20]}; choose the "
            "environment that was recorded"
        )
    for kind, recorded, space in zip(("observation", "action"), own, wanted, strict=True):
        if space is not None and not alike(recorded, space):
            raise ConfigError(
                f"{where}: the {kind} space of agent {agent!r:.60} is {recorded}, expected {space} as in the "
                "environment; choose the environment that was recorded"
            )
