"""Recordings on disk: Parquet by pyarrow, or JSONL, as the suffix says.

The first line of JSONL is the header, each other line an episode. Values are numbers, flags and texts; columns of any
other type are refused.
"""

from __future__ import annotations

import glob
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from menv.errors import ConfigError, MissingExtraError
from menv.offline.episodes import (
    _PLAIN,
    NAMES,
    Columns,
    Header,
    RecordedEpisode,
    from_columns,
    not_ours,
    to_columns,
)
from menv.serialization import path_given, writing

_ROWS = 1 << 16
"""Rows that are decoded at once, and a few more, because episodes stay whole."""
_KEY = b"menv_episodes"
_SUFFIXES = (".parquet", ".jsonl")


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
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            write(partial, header, whole)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
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
    """Yield the episodes of a file, or of all files that a pattern such as `"games/*.parquet"` names, in order.

    Raises:
        ConfigError: There is no such file, or one is no recording, is damaged or has a newer format.
        MissingExtraError: pyarrow is not installed.
    """
    for file in recording_files(pattern):
        for columns in file:
            yield from from_columns(file.header, columns, file.where)


def recording_files(pattern: str | os.PathLike[str]) -> list[RecordingFile]:
    """Return the recordings that a path or a pattern names, opened."""
    names = [
        name
        for name in sorted(glob.glob(os.fspath(pattern), recursive=True))
        if Path(name).suffix in _SUFFIXES
    ]
    if not names:
        raise ConfigError(
            f"recording {os.fspath(pattern)!r}: no file of this name in {Path.cwd()}, expected a path or a pattern of "
            ".parquet or .jsonl files; check the spelling"
        )
    return [RecordingFile(Path(name)) for name in names]


class RecordingFile:
    """One file, whose header is read; iterating over it yields the columns of some whole episodes.

    `part(number)` returns part `number` of `parts`, so that parts can be read in any order.
    """

    def __init__(self, path: Path) -> None:
        self.where = f"recording {path}"
        self._path = path
        if path.suffix == ".parquet":
            self.header, self.parts = _parquet_header(self.where, path)
        else:
            with _reading(self.where), path.open("rb") as file:
                self.header, self.parts = _jsonl_header(self.where, file.readline()), 1

    def __iter__(self) -> Iterator[Columns]:
        return map(self.part, range(self.parts))

    def part(self, number: int) -> Columns:
        """Return the columns of one part."""
        read = _read_parquet if self._path.suffix == ".parquet" else _read_jsonl
        with _reading(self.where):
            return read(self.where, self._path, self.header, number)

    def episodes(self, number: int) -> Iterator[RecordedEpisode]:
        """Yield the episodes of one part."""
        return from_columns(self.header, self.part(number), self.where)


class _reading:  # noqa: N801 - used as a function
    """Turns what pyarrow and numpy raise for damaged files into a ConfigError."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(
            error, OSError | ValueError | TypeError | LookupError | OverflowError | NotImplementedError
        ) and not isinstance(error, ConfigError):
            raise not_ours(self._where, f"it cannot be read ({str(error).splitlines()[0]:.120})") from error


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError(
            "menv.offline: the package pyarrow is not installed, expected it for Parquet; run: pip install "
            "'menv-rl[offline]', or write .jsonl"
        ) from error


def _groups(episodes: Sequence[RecordedEpisode]) -> Iterator[tuple[int, list[RecordedEpisode]]]:
    """Yield the number of the first episode and some whole episodes of about `_ROWS` rows."""
    first, rows, group = 0, 0, list[RecordedEpisode]()
    for number, episode in enumerate(episodes):
        group.append(episode)
        rows += sum(len(one.steps.rewards) + 1 for one in episode.trajectories)
        if rows >= _ROWS or number == len(episodes) - 1:
            yield first, group
            first, rows, group = number + 1, 0, []


def _write_parquet(path: Path, header: Header, episodes: Sequence[RecordedEpisode]) -> None:
    pa, pq = _pyarrow()
    writer = None
    try:
        for first, group in _groups(episodes):
            columns = to_columns(header, group, first)
            arrays = {name: _to_arrow(pa, column) for name, column in columns.items()}
            table = pa.table(arrays).replace_schema_metadata({_KEY: header.to_json()})
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table, row_group_size=len(table))
    finally:
        if writer is not None:
            writer.close()


def _to_arrow(pa: Any, column: Any) -> Any:
    if isinstance(column, tuple):
        return pa.DictionaryArray.from_arrays(pa.array(column[0]), pa.array(column[1], pa.string()))
    if column.dtype == object:
        return pa.array(column, pa.string())
    if column.ndim == 1:
        return pa.array(column)
    width = int(np.prod(column.shape[1:]))
    return pa.FixedSizeListArray.from_arrays(pa.array(column.reshape(-1)), width)


def _parquet_header(where: str, path: Path) -> tuple[Header, int]:
    _, pq = _pyarrow()
    with _reading(where):
        # Not the Arrow schema: an extension type in it could need a class.
        metadata = pq.read_metadata(path)
    text = (metadata.metadata or {}).get(_KEY)
    if text is None:
        raise not_ours(where, "a Parquet file without the header of a recording")
    header = Header.from_json(where, text)
    names = [
        metadata.schema.column(number).path.partition(".list.")[0] for number in range(metadata.num_columns)
    ]
    wanted = [*_PLAIN, *NAMES, *(part.column for part in header.all_parts())]
    if missing := [name for name in wanted if name not in names]:
        raise not_ours(where, f"there is no column {missing[0]!r}")
    return header, metadata.num_row_groups


def _read_parquet(where: str, path: Path, header: Header, number: int) -> Columns:
    pa, pq = _pyarrow()
    wanted = [*_PLAIN, *NAMES, *(part.column for part in header.all_parts())]
    with pq.ParquetFile(path, memory_map=True, read_dictionary=list(NAMES)) as file:
        table = file.read_row_group(number, columns=wanted, use_threads=False)
    # A column "obs" also selects the columns that begin with "obs.".
    arrays = {name: table.column(name).combine_chunks() for name in wanted}
    found: Columns = {}
    for name in NAMES:
        array = arrays[name]
        if not pa.types.is_dictionary(array.type) or array.null_count:
            raise not_ours(where, f"column {name!r} is {array.type}")
        found[name] = (
            array.indices.to_numpy(zero_copy_only=False),
            list(map(str, array.dictionary.to_pylist())),
        )
    for name, dtype in _PLAIN.items():
        found[name] = _from_arrow(where, name, arrays[name], np.dtype(dtype), (), len(table))
    for part in header.all_parts():
        found[part.column] = _from_arrow(
            where, part.column, arrays[part.column], part.dtype, part.shape, len(table)
        )
    return found


def _from_arrow(
    where: str, name: str, array: Any, dtype: np.dtype[Any], shape: tuple[int, ...], rows: int
) -> Any:
    flat = array.flatten() if shape else array
    if array.null_count or flat.null_count:
        raise not_ours(where, f"column {name!r} has empty values")
    values = flat.to_numpy(zero_copy_only=False)
    if values.dtype != dtype:
        raise not_ours(where, f"column {name!r} is {array.type}, and its header says {dtype}")
    return values.reshape(rows, *shape)


def _write_jsonl(path: Path, header: Header, episodes: Sequence[RecordedEpisode]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({_KEY.decode(): json.loads(header.to_json())}) + "\n")
        for number, episode in enumerate(episodes):
            columns = to_columns(header, [episode], number)
            lists = {
                name: [column[1][place] for place in column[0]]
                if isinstance(column, tuple)
                else column.tolist()
                for name, column in columns.items()
            }
            file.write(json.dumps(lists) + "\n")


def _jsonl_header(where: str, line: bytes) -> Header:
    value = None
    with suppress(ValueError, RecursionError):
        value = json.loads(line)
    if not isinstance(value, dict) or _KEY.decode() not in value:
        raise not_ours(where, "its first line is no header of a recording")
    return Header.from_json(where, json.dumps(value[_KEY.decode()]))


def _read_jsonl(where: str, path: Path, header: Header, number: int) -> Columns:
    lines: list[Any] = []
    with path.open("rb") as file:
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
    for name in NAMES:
        own: dict[str, int] = {}
        rows = [own.setdefault(str(value), len(own)) for line in lines for value in line[name]]
        found[name] = np.array(rows, np.int32), list(own)
    for name, dtype in _PLAIN.items():
        found[name] = np.array([value for line in lines for value in line[name]], dtype)
    for part in header.all_parts():
        values = [value for line in lines for value in line[part.column]]
        found[part.column] = np.array(values, part.dtype).reshape(len(values), *part.shape)
    counts = {len(column[0]) if isinstance(column, tuple) else len(column) for column in found.values()}
    if len(counts) != 1:
        raise not_ours(where, f"its columns have {sorted(counts)} rows")
    return found
