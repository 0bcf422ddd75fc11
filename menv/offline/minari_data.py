"""Minari data sets (Farama's format of offline episodes of one agent), read as an input and written from recordings."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from menv.base_env import SINGLE_AGENT, ExternalSteps
from menv.errors import ConfigError, MissingExtraError
from menv.offline.episodes import EpisodeSource, RecordedEpisode, RecordedTrajectory, Space, elements
from menv.offline.files import read_episodes
from menv.spaces import built, columns_of, paths

PREFIX = "minari:"
_AT_ONCE = 200
"""Episodes that are read at once."""


def _minari() -> Any:
    try:
        return import_module("minari")
    except ImportError as error:
        raise MissingExtraError(
            "menv.offline: the package minari is not installed, expected it for Minari data sets; run: pip install "
            "'minari[hdf5]'"
        ) from error


def minari_parts(pattern: str) -> list[EpisodeSource]:
    """Return the episodes of the local data set that `"minari:NAME"` names, in parts."""
    minari, name = _minari(), pattern.removeprefix(PREFIX)
    try:
        dataset = minari.load_dataset(name)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(
            f"{pattern}: no such data set on this machine ({str(error).splitlines()[0]:.100}), expected a local one; "
            f"run: minari download {name}"
        ) from error
    spaces: dict[Any, tuple[Space, Space]] = {SINGLE_AGENT: (dataset.observation_space, dataset.action_space)}
    numbers = [int(number) for number in dataset.episode_indices]
    return [
        EpisodeSource(
            pattern, spaces, partial(_episodes, pattern, dataset, numbers[first : first + _AT_ONCE])
        )
        for first in range(0, len(numbers), _AT_ONCE)
    ]


def _episodes(where: str, dataset: Any, numbers: Sequence[int]) -> Iterator[RecordedEpisode]:
    spaces = dataset.observation_space, dataset.action_space
    for one in dataset.iterate_episodes(numbers):
        count = len(one.rewards)
        terminated, truncated = bool(one.terminations[-1]), bool(one.truncations[-1])
        steps = ExternalSteps(
            _column(spaces[0], one.observations), _column(spaces[1], one.actions), np.asarray(one.rewards, np.float64),
            terminated, truncated or not terminated, env_t=np.arange(count + 1),
        )  # fmt: skip
        trajectory = RecordedTrajectory(SINGLE_AGENT, steps, *spaces)
        yield RecordedEpisode([trajectory], env_steps=count, name=f"{where}, episode {one.id}")


def _column(space: Space, data: Any) -> Any:
    """Return the elements that dicts and tuples of arrays hold."""
    leaves = []
    for keys, _ in paths(space):
        leaf = data
        for key in keys:
            leaf = leaf[key]
        leaves.append(np.asarray(leaf))
    return elements(space, leaves)


def write_minari(pattern: str | os.PathLike[str], name: str) -> list[str]:
    """Write the recordings of a path or a pattern as Minari data sets, one for each agent.

    Trajectories become episodes; those without an action or a last observation are left out.

    Args:
        pattern: The recordings.
        name: The beginning of the names, such as `"poles/balance"`, which gives `"poles/balance-agent0-v0"`.

    Returns:
        The names of the data sets.

    Raises:
        ConfigError: There are no such recordings, or Minari refuses the name.
        MissingExtraError: minari is not installed.
    """
    minari = _minari()
    buffers: dict[Any, list[Any]] = {}
    spaces: dict[Any, tuple[Space, Space]] = {}
    for episode in read_episodes(pattern):
        for one in episode.trajectories:
            count, steps = len(one.steps.rewards), one.steps
            if not count or steps.obs[count] is None:
                continue
            mine = buffers.setdefault(one.agent_id, [])
            spaces[one.agent_id] = one.observation_space, one.action_space
            flags = np.zeros((2, count), np.bool_)
            flags[:, -1] = steps.terminated, steps.truncated
            mine.append(
                minari.data_collector.EpisodeBuffer(
                    len(mine), episode.seed, None, _nested(one.observation_space, steps.obs),
                    _nested(one.action_space, steps.actions), steps.rewards.tolist(), *flags.tolist(), {},
                )
            )  # fmt: skip
    names = []
    for agent, mine in buffers.items():
        names.append(f"{name}-{re.sub('[^a-zA-Z0-9]+', '-', str(agent)).strip('-')}-v0")
        with warnings.catch_warnings():
            # About an author and an environment, which recordings do not name.
            warnings.simplefilter("ignore", UserWarning)
            try:
                minari.create_dataset_from_buffers(
                    names[-1], mine, observation_space=spaces[agent][0], action_space=spaces[agent][1]
                )
            except ValueError as error:
                raise ConfigError(
                    f"write_minari: {names[-1]!r} cannot be made ({str(error).splitlines()[0]:.150}), expected a new "
                    "name such as 'poles/balance'; choose another one"
                ) from error
    return names


def _nested(space: Space, values: Any) -> Any:
    """Return dicts and tuples of lists, as the space is nested."""
    leaves = iter(columns_of(space, values))
    return built(space, lambda keys, leaf: next(leaves))
