"""Files that others may have made: plain, bounded, and no links; and names that no other process takes.

A folder that was received may hold a link to a private file, or a pipe or a device that never ends, in the place of any
file. All that menv did not just create itself is opened by `opened`. Folders that a user names may be links; their
contents may not.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from menv.errors import ConfigError, NotWrittenError

MOST_BYTES = 1 << 26
"""Bytes of a file that is read at once, unless a caller names another bound."""


def opened(path: Path, mode: str = "rb", **how: Any) -> IO[Any]:
    """Open a plain file as `open` does, which waits for no other process.

    Raises:
        ConfigError: It is a link, a folder, a pipe or a device.
        OSError: It cannot be opened.
    """
    return open(path, mode, opener=_open, **how)


def _open(path: str, flags: int) -> int:
    with suppress(FileNotFoundError):
        _check(path, os.lstat(path))
    # It may have become something else meanwhile.
    handle = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        _check(path, os.fstat(handle))
    except ConfigError:
        os.close(handle)
        raise
    return handle


def _check(path: str | Path, found: os.stat_result, kind: str = "plain file") -> None:
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(
            f"{path}: is a symbolic link, expected a {kind}; copy the folder with the targets of its links (cp -rL)"
        )
    if kind == "plain file" and not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path}: is not a plain file, expected one; remove it, or copy the folder again")


def read(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a plain file.

    Raises:
        ConfigError: It is none, or has more than `most` bytes.
        OSError: It cannot be read.
    """
    with opened(path) as file:
        return _bounded(path, file, most)


def read_named(where: str, path: Path) -> str:
    """Return the text of a file that an option names, which may be a link or a pipe; `where` begins the message.

    Raises:
        ConfigError: It cannot be read, or is very large.
    """
    try:
        with path.open("rb") as file:
            return _bounded(path, file, MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{where} {path}: cannot be read ({error}), expected a text file; check the path"
        ) from None


def _bounded(path: Path, file: IO[bytes], most: int) -> bytes:
    found = os.fstat(file.fileno())
    # A pipe has no size.
    wanted = found.st_size if stat.S_ISREG(found.st_mode) else most + 1
    data = b"" if found.st_size > most else file.read(wanted)
    if (size := max(found.st_size, len(data))) > most:
        raise ConfigError(f"{path}: {size} bytes, expected at most {most}; copy the file again")
    return data


def inside(folder: Path, *names: str) -> Path:
    """Return the path of a folder or file in a folder that a user named.

    Raises:
        ConfigError: There is a link on the way.
    """
    for name in names:
        folder = folder / name
        with suppress(FileNotFoundError, NotADirectoryError):
            _check(folder, os.lstat(folder), "folder or file itself")
    return folder


def plain_files(folder: Path, pattern: str, suffixes: Iterable[str]) -> Iterator[Path]:
    """Yield the plain files of a folder, and leave out links, pipes and devices."""
    for path in folder.glob(pattern) if not folder.is_symlink() else ():
        with suppress(OSError):
            if path.suffix in suffixes and stat.S_ISREG(path.lstat().st_mode):
                yield path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a draft, which takes the place of a file, or of a link, once the block has written it."""
    draft = path.with_name(f".{secrets.token_hex(6)}{path.suffix}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def claimed(paths: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield the first free path and its draft, which becomes that file once the block has written it.

    The draft holds the name: no other thread, process or machine gets the same one.
    """
    for path in paths:
        draft = path.with_name(f".{path.name}")
        try:
            draft.touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            if not os.path.lexists(path):
                yield path, draft
                draft.replace(path)
                return
        finally:
            draft.unlink(missing_ok=True)


def path_given(where: str, value: object) -> Path:
    """Return a path that a user gave; `where` begins the message.

    Raises:
        ConfigError: It is not a string or `os.PathLike`, or holds a character that no path may have.
    """
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or "\0" in path or not path:
        raise ConfigError(
            f"{where}: {value!r:.60}, a {type(value).__name__}, expected a path, a string or a pathlib.Path; "
            "pass the name of a folder or of a file"
        )
    try:
        Path(path).exists()
    except PermissionError:
        # What it is needed for says so.
        pass
    except OSError as error:
        raise ConfigError(
            f"{where}: {path[:60]!r}... of {len(path)} characters ({error.strerror}), expected a valid name; choose a "
            "shorter one"
        ) from error
    return Path(path)


def folder_given(where: str, value: object) -> Path:
    """Return the path of an existing folder that a user gave.

    Raises:
        ConfigError: It is not a path, or no folder.
    """
    path = path_given(where, value)
    if path.is_dir():
        return path
    what = f"{path} is a file" if path.exists() else f"there is no folder {path}{_where_from(path)}"
    raise ConfigError(
        f"{where}: {what}, expected a folder that menv train, save or export_checkpoint wrote; check the path, and "
        "unpack archives"
    )


def _where_from(path: Path) -> str:
    """Return the folder in which a relative path was looked up."""
    if path.is_absolute():
        return ""
    try:
        return f" in {Path.cwd()}"
    except OSError:
        return " in the working directory, which is gone itself"


@contextmanager
def writing(where: str, what: str) -> Iterator[None]:
    """Turn an OSError into a NotWrittenError; the code in the block leaves nothing half written.

    Args:
        where: The function that was called.
        what: The object that is written, and its path.
    """
    try:
        yield
    except NotWrittenError:
        raise
    except OSError as error:
        refused = NotWrittenError(
            f"{where}: {what} cannot be written ({error}), expected a writable folder with free space; earlier files "
            "are unchanged: free some space or choose another place, and call again"
        )
        refused.errno = error.errno
        raise refused from error
