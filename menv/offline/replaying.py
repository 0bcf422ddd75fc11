"""`replay`: repeats a recorded episode in its environment and reports where the two differ."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from menv.base_env import AgentId
from menv.env_context import EnvContext
from menv.errors import ConfigError
from menv.offline.episodes import RecordedEpisode, RecordedTrajectory
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
        what: "obs", "reward", "end", or "steps", if the trajectory has another length.
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
    episode = path if isinstance(path, RecordedEpisode) else _episode(path, number)
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
    spaces = {one.agent_id: (one.observation_space, one.action_space) for one in episode.trajectories}
    watcher = EpisodeWatcher(base_env, lambda agent: spaces.get(agent, (None, None)))
    actions = {agent: _actions(episode, agent) for agent in spaces}
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
    return list(_differences(episode, watcher.finished[0][1]))


def _episode(path: str | os.PathLike[str], number: int) -> RecordedEpisode:
    found = None if number < 0 else next(itertools.islice(read_episodes(path), number, None), None)
    if found is None:
        raise ConfigError(
            f"replay: no episode {number} in {os.fspath(path)!r}, expected the number of one; they count from 0"
        )
    return found


def _actions(episode: RecordedEpisode, agent: AgentId) -> Iterator[Any]:
    return itertools.chain.from_iterable(
        one.steps.actions for one in episode.trajectories if one.agent_id == agent
    )


def _differences(recorded: RecordedEpisode, replayed: RecordedEpisode) -> list[ReplayDifference]:
    found: list[ReplayDifference] = []
    for agent in dict.fromkeys(one.agent_id for one in recorded.trajectories):
        ours, theirs = (
            [one for one in episode.trajectories if one.agent_id == agent] for episode in (recorded, replayed)
        )
        for one, other in itertools.zip_longest(ours, theirs):
            found += _of_trajectory(agent, one, other)
    return sorted(found, key=lambda one: one.step)


def _of_trajectory(
    agent: AgentId, one: RecordedTrajectory | None, other: RecordedTrajectory | None
) -> Iterator[ReplayDifference]:
    if one is None or other is None:
        counts = [0 if each is None else len(each.steps.rewards) for each in (one, other)]
        yield ReplayDifference(0, agent, "steps", *counts)
        return
    ours, theirs = one.steps, other.steps
    times = np.arange(len(ours.rewards) + 1) if ours.env_t is None else ours.env_t
    for place, (left, right) in enumerate(zip(ours.obs, theirs.obs, strict=False)):
        if not _same(left, right):
            yield ReplayDifference(int(times[place]), agent, "obs", left, right)
    for place, (left, right) in enumerate(zip(ours.rewards, theirs.rewards, strict=False)):
        if left != right:
            yield ReplayDifference(int(times[place]), agent, "reward", float(left), float(right))
    counts = [len(ours.rewards), len(theirs.rewards)]
    ends = [(steps.terminated, steps.truncated) for steps in (ours, theirs)]
    if counts[0] != counts[1]:
        yield ReplayDifference(int(times[min(counts)]), agent, "steps", *counts)
    elif ends[0] != ends[1]:
        yield ReplayDifference(int(times[-1]), agent, "end", *ends)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Mapping):
        return isinstance(right, Mapping) and all(_same(left[key], right.get(key)) for key in left)
    if isinstance(left, tuple):
        return isinstance(right, tuple) and all(map(_same, left, right))
    return bool(np.array_equal(left, right))
