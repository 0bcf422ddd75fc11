"""`replay`: repeats a recorded episode in its environment and reports where the two differ."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from menv.base_env import AgentId
from menv.env_context import EnvContext
from menv.errors import ConfigError
from menv.offline.episodes import RecordedEpisode, RecordedTrajectory, times_of
from menv.offline.files import read_episodes
from menv.offline.recording import EpisodeWatcher
from menv.registry import is_known, is_ready_made, make_env
from menv.workers.convert import to_base_env
from menv.wrappers.record_episodes import RecordEpisodes


class ReplayDifference(NamedTuple):
    """Where a replay differs from its recording.

    Attributes:
        step: Env step of the episode.
        agent_id: The agent.
        what: "obs", "reward", "end", or "steps", if the agent takes another number of steps.
        recorded: The value in the recording.
        replayed: The value in the replay.
    """

    step: int
    agent_id: AgentId
    what: str
    recorded: Any
    replayed: Any


def replay(
    path: str | os.PathLike[str] | RecordedEpisode,
    env: Any = None,
    *,
    number: int = 0,
    env_config: Mapping[str, Any] | None = None,
    video: str | os.PathLike[str] | None = None,
) -> list[ReplayDifference]:
    """Reset an environment with the seed of a recorded episode, send it the recorded actions, and compare.

    Args:
        path: A file or a pattern of files, or an episode.
        env: The environment, as for an algorithm; None takes the name in the recording, if this process knows it.
        number: Which episode of the files, counted from 0.
        env_config: Items of the `EnvContext`.
        video: A folder in which the replay is rendered to a GIF, or to a text for environments that render texts.

    Returns:
        The differences by step; [] if the episode is repeated exactly.

    Raises:
        ConfigError: There is no such episode, it has no seed, or the environment is unknown.
    """
    episode = path if isinstance(path, RecordedEpisode) else None
    if not isinstance(path, RecordedEpisode) and number >= 0:
        episode = next(itertools.islice(read_episodes(path), number, None), None)
    if episode is None:
        raise ConfigError(
            f"replay: no episode {number} in {path!s:.200}, expected the number of one; they count from 0"
        )
    name = episode.env if env is None else env
    if env is None and not is_known(name):
        raise ConfigError(
            f"replay: env {name!r:.80} in the recording is not known here, expected a registered name; pass env=..."
        )
    if episode.seed is None:
        raise ConfigError(
            f"replay: {episode.name or 'the episode'} has no seed, expected one; set `seed` in the run that records"
        )
    pictures = {"render_mode": "rgb_array"} if video and isinstance(name, str) and is_ready_made(name) else {}
    made = make_env(name, EnvContext({**pictures, **(env_config or {})}))
    base_env = to_base_env(made if video is None else RecordEpisodes(made, video))
    by_agent: dict[AgentId, list[RecordedTrajectory]] = {}
    for one in episode.trajectories:
        by_agent.setdefault(one.agent_id, []).append(one)
    spaces = {agent: (own[0].observation_space, own[0].action_space) for agent, own in by_agent.items()}
    watcher = EpisodeWatcher(base_env, lambda agent: spaces.get(agent, (None, None)))
    actions = {
        agent: itertools.chain.from_iterable(one.steps.actions for one in own)
        for agent, own in by_agent.items()
    }
    try:
        base_env.try_reset(0, seed=episode.seed)
        ready = base_env.poll()
        # The reset may have ended an episode that had not begun.
        watcher.finished.clear()
        while not watcher.finished:
            agents = [ready.seats[slot][1] for slot in ready.slots.tolist()]
            answers = [next(actions.get(agent, iter(())), None) for agent in agents]
            if any(answer is None for answer in answers):
                # The recording ends or another agent acted.
                base_env.try_reset(0, seed=episode.seed)
            else:
                base_env.send_actions(ready.slots, answers)
            ready = base_env.poll()
    finally:
        base_env.stop()
    replayed = watcher.finished[0][0].trajectories
    found = [
        difference
        for agent, own in by_agent.items()
        for difference in _differences(agent, own, [one for one in replayed if one.agent_id == agent])
    ]
    return sorted(found, key=lambda one: one.step)


def _differences(
    agent: AgentId, recorded: Sequence[RecordedTrajectory], replayed: Sequence[RecordedTrajectory]
) -> Iterator[ReplayDifference]:
    counts = [sum(len(one.steps.rewards) for one in own) for own in (recorded, replayed)]
    step = 0
    for ours, theirs in itertools.zip_longest(
        _events(recorded), _events(replayed), fillvalue=(None, "", None)
    ):
        step = step if ours[0] is None else ours[0]
        if ours[1] != theirs[1]:
            yield ReplayDifference(step, agent, "steps", *counts)
            return
        if not _same(ours[2], theirs[2]):
            yield ReplayDifference(step, agent, ours[1], ours[2], theirs[2])


def _events(trajectories: Sequence[RecordedTrajectory]) -> Iterator[tuple[Any, str, Any]]:
    """Yield the env step, the kind and the value of all that the environment gave to an agent, in order."""
    for steps in (one.steps for one in trajectories):
        times = times_of(steps).tolist()
        for t, obs, reward in itertools.zip_longest(times, steps.obs, steps.rewards.tolist()):
            yield t, "obs", obs
            if reward is not None:
                yield t, "reward", reward
        yield times[-1], "end", (steps.terminated, steps.truncated)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Mapping):
        return isinstance(right, Mapping) and all(_same(left[key], right.get(key)) for key in left)
    if isinstance(left, tuple):
        return isinstance(right, tuple) and all(map(_same, left, right))
    return bool(np.array_equal(left, right))
