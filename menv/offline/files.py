"""Recordings on disk: Parquet by pyarrow, or JSONL, as the suffix says; and data sets of Minari, one agent in each.

The first line of JSONL is the header, each other line has the columns of an episode. Values are numbers, flags and
texts; columns of any other type are refused.
"""

from __future__ import annotations

import glob
import itertools
import json
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from menv.plain_files import opened, replacing
from menv.serialization import path_given, writing
from menv.spaces import built, columns_of, paths

_STEPS = 1 << 16
"""Steps that are decoded at once, and a few more, because episodes stay whole."""
_EPISODES = 200
"""Episodes of Minari that are read at once."""
_MOST_HEADER, _MOST_PARTS = 1 << 24, 1 << 14
"""Bytes of a text, and entries of a list, in the description of a Parquet file."""
_MOST_MEMORY, _MOST_TIMES, _OF_A_VALUE = 1 << 30, 100, 4
_SUFFIXES, _MINARI = (".parquet", ".jsonl"), "minari:"


def write_episodes(path: str | os.PathLike[str], episodes: Iterable[RecordedEpisode]) -> Path:
    """Write episodes into a new file, Parquet or JSONL as its suffix says; the file appears when it is complete.

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
        raise ConfigError(f"{where}: no episodes for {target}, expected one at least; record longer")
    header = Header.of(where, whole)
    write = _write_parquet if target.suffix == ".parquet" else _write_jsonl
    with writing(where, f"the recording {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as draft:
            write(draft, header, whole)
    return target


def path_to_write(where: str, path: str | os.PathLike[str]) -> Path:
    """Return the path of a recording that is to be written; refuse another suffix."""
    target = path_given(where, path)
    if target.suffix not in _SUFFIXES:
        raise ConfigError(
            f"{where}: {target.name!r}, expected a name that ends in .parquet or .jsonl; rename it"
        )
    return target


def read_episodes(pattern: str | os.PathLike[str]) -> Iterator[RecordedEpisode]:
    """Yield the episodes of a file, of all files that a pattern like `"games/*.parquet"` names, or of `"minari:NAME"`.

    Raises:
        ConfigError: There is no such file, or one is no recording, is damaged or has a newer format.
        MissingExtraError: pyarrow or minari is not installed.
    """
    for source in episode_sources(pattern):
        yield from source.read()


def episode_sources(pattern: str | os.PathLike[str]) -> list[EpisodeSource]:
    """Return the parts of the recordings that a path, a pattern or `"minari:NAME"` names."""
    if isinstance(pattern, str) and pattern.startswith(_MINARI):
        return list(_minari_sources(pattern))
    found = glob.glob(os.fspath(pattern), recursive=True)
    names = sorted(name for name in found if Path(name).suffix in _SUFFIXES)
    if not names:
        raise ConfigError(
            f"recording {os.fspath(pattern)!r}: no file of this name in {Path.cwd()}, expected a path or a pattern of "
            ".parquet or .jsonl files; check the spelling"
        )
    return [source for name in names for source in _sources(f"recording {name}", Path(name))]


def _sources(where: str, path: Path) -> Iterator[EpisodeSource]:
    text: Any
    with _reading(where), opened(path) as file:
        if path.suffix == ".parquet":
            # Not the Arrow schema: an extension type in it could need a class.
            recording = _parquet(file)
            # It raises for a damaged description, with which looking at columns ends the process.
            recording.scan_contents()
            found = recording.metadata
            text, parts, read = (found.metadata or {}).get(KEY.encode()), found.num_row_groups, _read_parquet
        else:
            text, parts, read = file.readline(), 1, _read_jsonl
    header = Header.from_json(where, text)
    for number in range(parts):
        yield EpisodeSource(where, header.spaces, partial(_read, read, where, path, header, number))


def _read(read: Any, where: str, path: Path, header: Header, number: int) -> Iterator[RecordedEpisode]:
    with _reading(where):
        yield from from_columns(header, read(where, path, header, number), where)


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turn what pyarrow, numpy and json raise for damaged files into a ConfigError."""
    try:
        yield
    except (ConfigError, MissingExtraError):
        raise
    except Exception as error:
        # Some classes of pyarrow have Exception itself as their base.
        said = message_of(error) or type(error).__name__
        raise not_ours(where, f"it cannot be read ({said.splitlines()[0]:.120})") from error


def _package(name: str, install: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"menv.offline: the package {name} is not installed, expected it for recordings of this kind; run: pip "
            f"install '{install}', or use .jsonl"
        ) from error


def _pyarrow() -> tuple[Any, Any]:
    return _package("pyarrow", "menv-rl[offline]"), _package("pyarrow.parquet", "menv-rl[offline]")


def _arrow_type(pa: Any, column: Column) -> Any:
    found = pa.string() if column.dtype == object else pa.from_numpy_dtype(column.dtype)
    if column.shape:
        found = pa.list_(found, math.prod(column.shape))
    return found if column.shape is None else pa.list_(found)


def _write_parquet(path: Path, header: Header, episodes: Sequence[RecordedEpisode]) -> None:
    pa, pq = _pyarrow()
    types = [(name, _arrow_type(pa, column)) for name, column in header.columns.items()]
    steps = np.cumsum([sum(len(one.steps.rewards) for one in episode.trajectories) for episode in episodes])
    schema = pa.schema(types, {KEY: header.to_json()})
    # pyarrow opens no path that is no UTF-8.
    with opened(path, "wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for _, group in itertools.groupby(enumerate(episodes), lambda pair: steps[pair[0]] // _STEPS):
            columns = to_columns(header, group)
            for name, (_, shape) in header.columns.items():
                if shape:
                    # Arrow takes lists of arrays of one dimension.
                    columns[name] = [list(value.reshape(-1, math.prod(shape))) for value in columns[name]]
            arrays = [pa.array(columns[name], kind) for name, kind in types]
            writer.write_table(pa.table(arrays, writer.schema), row_group_size=len(arrays[0]))


def _read_parquet(where: str, path: Path, header: Header, number: int) -> Columns:
    pa, _ = _pyarrow()
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
    return _pyarrow()[1].ParquetFile(
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
        raise not_ours(
            where, f"a part of it needs {needed} bytes of memory, at most {_MOST_MEMORY} are taken"
        )


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


def _write_jsonl(path: Path, header: Header, episodes: Sequence[RecordedEpisode]) -> None:
    with opened(path, "w", encoding="utf-8") as file:
        file.write(header.to_json() + "\n")
        for numbered in enumerate(episodes):
            file.write(json.dumps(to_columns(header, [numbered]), default=np.ndarray.tolist) + "\n")


def _read_jsonl(where: str, path: Path, header: Header, number: int) -> Columns:
    lines: list[Any] = []
    with opened(path) as file:
        next(file)
        for place, line in enumerate(file, 2):
            try:
                lines.append(json.loads(line))
            except (ValueError, RecursionError):
                if line.endswith(b"\n"):
                    raise not_ours(where, f"line {place} is no JSON") from None
                warnings.warn(
                    f"{where}: line {place}, the last one, is cut, and its episode is skipped; {len(lines)} are read",
                    stacklevel=2,
                )
    found: Columns = {}
    for name, (dtype, shape) in header.columns.items():
        values = [value for line in lines for value in line[name]]
        found[name] = (
            np.array(values, dtype).tolist()
            if shape is None
            else [np.array(value, dtype).reshape(len(value), *shape) for value in values]
        )
    return found


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
    left out, with a warning, as are those without an action. Agents of turn-based games often end without such an
    observation. The spec of a gymnasium environment goes along, for `recover_environment`.

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
            steps, before = one.steps, [False] * (len(one.steps.rewards) - 1)
            if not len(steps.rewards) or steps.obs[len(steps.rewards)] is None:
                left_out[one.agent_id] += 1
                continue
            pair = spaces[one.agent_id] = one.observation_space, one.action_space
            mine = buffers.setdefault(one.agent_id, [])
            nested = [
                _nested(space, given) for space, given in zip(pair, (steps.obs, steps.actions), strict=True)
            ]
            flags = [*before, steps.terminated], [*before, steps.truncated]
            mine.append(
                minari.data_collector.EpisodeBuffer(
                    len(mine), episode.seed, None, *nested, steps.rewards.tolist(), *flags, {}
                )
            )
    _tell_left_out(pattern, left_out, buffers)
    # The text alone: with a spec, Minari would make the environment.
    metadata = {"env_spec": specs.pop()} if len(specs) == 1 and "" not in specs else {}
    names = []
    for agent, mine in buffers.items():
        names.append(f"{name}-{re.sub('[^a-zA-Z0-9]+', '-', str(agent)).strip('-')}-v0")
        _write_data_set(minari, names[-1], mine, spaces[agent], metadata)
    return names


def _tell_left_out(pattern: Any, left_out: Mapping[Any, int], written: Mapping[Any, Any]) -> None:
    if not left_out:
        return
    counts = ", ".join(f"{count} of agent {agent!r:.60}" for agent, count in [*left_out.items()][:8])
    said = (
        f"write_minari: {os.fspath(pattern)}: {counts} without an action or a last observation, expected trajectories "
        "with one observation more than actions"
    )
    if not written:
        raise ConfigError(f"{said}; let the environment return an agent's observation when it ends")
    warnings.warn(f"{said}; they are left out", stacklevel=3)


def _write_data_set(
    minari: Any, name: str, episodes: list[Any], spaces: tuple[Space, Space], metadata: Mapping[str, str]
) -> None:
    with warnings.catch_warnings():
        # About an author, whom recordings do not name.
        warnings.simplefilter("ignore", UserWarning)
        try:
            written = minari.create_dataset_from_buffers(
                name, episodes, observation_space=spaces[0], action_space=spaces[1]
            )
            written.storage.update_metadata(metadata)
        except ValueError as error:
            raise ConfigError(
                f"write_minari: {name!r} cannot be made ({str(error).splitlines()[0]:.150}), expected a new name such "
                "as 'poles/balance'; choose another one"
            ) from error


def _nested(space: Space, values: Any) -> Any:
    """Return dicts and tuples of lists, as the space is nested."""
    leaves = iter(columns_of(space, values))
    return built(space, lambda keys, leaf: next(leaves))
