"""Recordings on disk: Parquet by pyarrow, and data sets of Minari, one agent in each.

Values are numbers, flags and texts; columns of any other type are refused.
"""

from __future__ import annotations

import glob
import itertools
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from importlib import import_module
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np

from menv.base_env import SINGLE_AGENT, ExternalSteps
from menv.errors import ConfigError, MissingExtraError, message_of
from menv.offline.episodes import (
    KEY,
    Column,
    Columns,
    EpisodeSource,
    Header,
    RecordedEpisode,
    RecordedTrajectory,
    Space,
    elements,
    from_columns,
    not_ours,
    to_columns,
)
from menv.plain_files import opened, path_given, replacing, writing
from menv.spaces import built, columns_of, paths

_STEPS = 1 << 16
"""Steps that are decoded at once, and a few more, because episodes stay whole."""
_EPISODES = 200
"""Episodes of Minari that are read at once."""
_MOST_HEADER, _MOST_PARTS = 1 << 24, 1 << 14
"""Bytes of a text, and entries of a list, in the description of a Parquet file."""
_MOST_MEMORY, _MOST_TIMES, _OF_A_VALUE = 1 << 30, 100, 4
_SUFFIX, _MINARI = ".parquet", "minari:"


def write_episodes(path: str | os.PathLike[str], episodes: Iterable[RecordedEpisode]) -> Path:
    """Write episodes into a new Parquet file, which appears when it is complete.

    Returns:
        The path.

    Raises:
        ConfigError: There is no episode, a space or an agent id has no form in a file, or the suffix is another one.
        MissingExtraError: pyarrow is not installed.
        NotWrittenError: The file cannot be written.
    """
    where = "write_episodes"
    target, whole = path_to_write(where, path), list(episodes)
    if not whole:
        raise ConfigError(f"{where}: no episodes for {target}, expected at least one; record longer")
    header = Header.of(where, whole)
    with writing(where, f"the recording {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as draft:
            _write(draft, header, whole)
    return target


def path_to_write(where: str, path: str | os.PathLike[str]) -> Path:
    """Return the path of a recording that is to be written; refuse another suffix."""
    target = path_given(where, path)
    if target.suffix != _SUFFIX:
        raise ConfigError(f"{where}: {target.name!r}, expected a name that ends in {_SUFFIX}; rename it")
    return target


def read_episodes(pattern: str | os.PathLike[str]) -> Iterator[RecordedEpisode]:
    """Yield the episodes of a file, of all files that a pattern like `"games/*.parquet"` names, or of `"minari:NAME"`.

    Raises:
        ConfigError: There is no such file, or one is not a recording, is damaged or has a newer format.
        MissingExtraError: pyarrow or minari is not installed.
    """
    for source in episode_sources(pattern):
        yield from source.read()


def episode_sources(pattern: str | os.PathLike[str]) -> list[EpisodeSource]:
    """Return the parts of the recordings that a path, a pattern or `"minari:NAME"` names."""
    if isinstance(pattern, str) and pattern.startswith(_MINARI):
        return list(_minari_sources(pattern))
    found = glob.glob(os.fspath(pattern), recursive=True)
    names = sorted(name for name in found if Path(name).suffix == _SUFFIX)
    if not names:
        raise ConfigError(
            f"recording {os.fspath(pattern)!r}: no file of this name in {Path.cwd()}, expected a path or a pattern of "
            f"{_SUFFIX} files; check the spelling"
        )
    return [source for name in names for source in _sources(f"recording {name}", Path(name))]


def _sources(where: str, path: Path) -> Iterator[EpisodeSource]:
    with _reading(where), opened(path) as file:
        # Not the Arrow schema: an extension type in it could need a class.
        recording = _parquet(file)
        # It raises for a damaged description, with which looking at columns ends the process.
        recording.scan_contents()
        found = recording.metadata
    header = Header.from_json(where, (found.metadata or {}).get(KEY.encode()))
    for number in range(found.num_row_groups):
        yield EpisodeSource(where, header.spaces, partial(_read, where, path, header, number))


def _read(where: str, path: Path, header: Header, number: int) -> Iterator[RecordedEpisode]:
    with _reading(where):
        yield from from_columns(header, _columns(where, path, header, number), where)


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turn what pyarrow and numpy raise for damaged files into a ConfigError."""
    try:
        yield
    except (ConfigError, MissingExtraError):
        raise
    except Exception as error:
        # Some classes of pyarrow have Exception itself as their base.
        said = message_of(error) or type(error).__name__
        raise not_ours(where, f"it cannot be read ({said.splitlines()[0]:.120})") from error


def _package(name: str, install: str = "menv-rl[offline]") -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"menv.offline: the package {name} is not installed; run: pip install '{install}'"
        ) from error


def _arrow_type(pa: Any, column: Column) -> Any:
    found = pa.string() if column.dtype == object else pa.from_numpy_dtype(column.dtype)
    if column.shape:
        found = pa.list_(found, math.prod(column.shape))
    return found if column.shape is None else pa.list_(found)


def _write(path: Path, header: Header, episodes: Sequence[RecordedEpisode]) -> None:
    pa, pq = _package("pyarrow"), _package("pyarrow.parquet")
    types = [(name, _arrow_type(pa, column)) for name, column in header.columns.items()]
    steps = np.cumsum([sum(len(one.steps.rewards) for one in episode.trajectories) for episode in episodes])
    schema = pa.schema(types, {KEY: header.to_json()})
    # pyarrow opens no path that is not UTF-8.
    with opened(path, "wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for _, group in itertools.groupby(enumerate(episodes), lambda pair: steps[pair[0]] // _STEPS):
            columns = to_columns(header, group)
            for name, (_, shape) in header.columns.items():
                if shape:
                    # Arrow takes lists of arrays of one dimension.
                    columns[name] = [list(value.reshape(-1, math.prod(shape))) for value in columns[name]]
            arrays = [pa.array(columns[name], kind) for name, kind in types]
            writer.write_table(pa.table(arrays, writer.schema), row_group_size=len(arrays[0]))


def _columns(where: str, path: Path, header: Header, number: int) -> Columns:
    pa = _package("pyarrow")
    with opened(path) as file:
        recording = _parquet(file)
        _check_size(where, header, recording.metadata.row_group(number))
        table = recording.read_row_group(number, [*header.columns], use_threads=False)
    found: Columns = {}
    for name, column in header.columns.items():
        array = table.column(name).combine_chunks().cast(_arrow_type(pa, column))
        found[name] = _from_arrow(where, name, array, column)
    return found


def _parquet(file: Any) -> Any:
    return _package("pyarrow.parquet").ParquetFile(
        file, thrift_string_size_limit=_MOST_HEADER, thrift_container_size_limit=_MOST_PARTS
    )


def _check_size(where: str, header: Header, group: Any) -> None:
    """Refuse a part that needs a lot of memory: runs of equal values are a few bytes in a file."""
    parts = [group.column(number) for number in range(group.num_columns)]
    sizes = {name: column.dtype.itemsize for name, column in header.columns.items()}
    needed = sum(
        max(
            part.num_values * (_OF_A_VALUE + sizes.get(part.path_in_schema.partition(".list.")[0], 8)),
            part.total_uncompressed_size,
        )
        for part in parts
    )
    if needed > max(_MOST_MEMORY, _MOST_TIMES * sum(part.total_compressed_size for part in parts)):
        raise not_ours(where, f"a part of it needs {needed} bytes of memory, more than {_MOST_MEMORY}")


def _from_arrow(where: str, name: str, array: Any, column: Column) -> list[Any]:
    flat = array
    while hasattr(flat, "flatten"):
        flat = flat.flatten()
    if flat.null_count:
        raise not_ours(where, f"column {name!r} has empty values")
    values = flat.to_numpy(zero_copy_only=False)
    if column.shape is None:
        return list(values.tolist())
    offsets = array.offsets.to_pylist()
    values = values.reshape(offsets[-1], *column.shape)
    return [values[start:end] for start, end in itertools.pairwise(offsets)]


def _minari_sources(pattern: str) -> Iterator[EpisodeSource]:
    minari, name = _package("minari", "minari[hdf5]"), pattern.removeprefix(_MINARI)
    try:
        dataset = minari.load_dataset(name)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(
            f"{pattern}: no such data set on this machine ({str(error).splitlines()[0]:.100}), expected a local one; "
            f"run: minari download {name}"
        ) from error
    spaces: dict[Any, Any] = {SINGLE_AGENT: (dataset.observation_space, dataset.action_space)}
    numbers = dataset.episode_indices.tolist()
    for first in range(0, len(numbers), _EPISODES):
        part = numbers[first : first + _EPISODES]
        yield EpisodeSource(pattern, spaces, partial(_read_minari, pattern, dataset, part))


def _read_minari(where: str, dataset: Any, numbers: Sequence[int]) -> Iterator[RecordedEpisode]:
    spaces, spec = (dataset.observation_space, dataset.action_space), dataset.env_spec
    env, text = ("", "") if spec is None else (spec.id, spec_as_json(spec))
    for one in dataset.iterate_episodes(numbers):
        # Dicts and tuples of arrays.
        obs, actions = (
            elements(space, [np.asarray(reduce(getitem, keys, given)) for keys, _ in paths(space)])
            for space, given in zip(spaces, (one.observations, one.actions), strict=True)
        )
        terminated, truncated = bool(one.terminations[-1]), bool(one.truncations[-1])
        rewards, times = np.asarray(one.rewards, np.float64), np.arange(len(one.rewards) + 1)
        steps = ExternalSteps(obs, actions, rewards, terminated, truncated or not terminated, env_t=times)
        trajectory = RecordedTrajectory(SINGLE_AGENT, steps, *spaces)
        name = f"{where}, episode {one.id}"
        yield RecordedEpisode([trajectory], None, env, len(rewards), name=name, env_spec=text)


def spec_as_json(spec: Any) -> str:
    """Return the `EnvSpec` of a gymnasium environment as JSON, "" if it is none or no plain data."""
    try:
        return str(spec.to_json())
    except (AttributeError, ValueError, TypeError):
        return ""


def write_minari(pattern: str | os.PathLike[str], name: str) -> list[str]:
    """Write the recordings of a path or a pattern as Minari data sets, one for each agent.

    Trajectories become episodes. Minari needs the observation after the last action, so trajectories without one are
    left out, with a warning, as are trajectories without an action. Agents of turn-based games often end without this
    observation. The data set also stores the spec of a gymnasium environment, for `recover_environment`.

    Args:
        pattern: The recordings.
        name: The beginning of the names, such as `"poles/balance"`, which gives `"poles/balance-agent0-v0"`.

    Returns:
        The names of the data sets.

    Raises:
        ConfigError: There are no such recordings, no trajectory is complete, or Minari refuses the name.
        MissingExtraError: minari is not installed.
    """
    minari = _package("minari", "minari[hdf5]")
    buffers: dict[Any, list[Any]] = {}
    spaces: dict[Any, tuple[Space, Space]] = {}
    specs, left_out = set[str](), Counter[Any]()
    for episode in read_episodes(pattern):
        specs.add(episode.env_spec)
        for one in episode.trajectories:
            steps, count = one.steps, len(one.steps.rewards)
            if not count or steps.obs[count] is None:
                left_out[one.agent_id] += 1
                continue
            pair = spaces[one.agent_id] = one.observation_space, one.action_space
            mine = buffers.setdefault(one.agent_id, [])
            nested = map(_nested, pair, (steps.obs, steps.actions))
            flags = ([False] * (count - 1) + [flag] for flag in (steps.terminated, steps.truncated))
            mine.append(
                minari.data_collector.EpisodeBuffer(
                    len(mine), episode.seed, None, *nested, steps.rewards.tolist(), *flags, {}
                )
            )
    if left_out:
        said = f"write_minari: {pattern}: {dict(left_out)!s:.200} trajectories without an action or a last observation"
        if not buffers:
            raise ConfigError(f"{said}; let the environment return an agent's observation when it ends")
        warnings.warn(f"{said} are left out", stacklevel=2)
    # The text alone: with a spec, Minari would make the environment.
    metadata = {"env_spec": specs.pop()} if len(specs) == 1 and "" not in specs else {}
    names = {agent: f"{name}-{re.sub('[^a-zA-Z0-9]+', '-', str(agent)).strip('-')}-v0" for agent in buffers}
    with warnings.catch_warnings():
        # About an author, whom recordings do not name.
        warnings.simplefilter("ignore", UserWarning)
        for agent, mine in buffers.items():
            obs_space, action_space = spaces[agent]
            try:
                written = minari.create_dataset_from_buffers(
                    names[agent], mine, observation_space=obs_space, action_space=action_space
                )
                written.storage.update_metadata(metadata)
            except ValueError as error:
                raise ConfigError(
                    f"write_minari: {names[agent]!r} cannot be made ({str(error).splitlines()[0]:.150}), expected a "
                    "new name such as 'poles/balance'; choose another one"
                ) from error
    return list(names.values())


def _nested(space: Space, values: Any) -> Any:
    """Return dicts and tuples of lists, as the space is nested."""
    leaves = iter(columns_of(space, values))
    return built(space, lambda keys, leaf: next(leaves))
