"""Paths that users give: refusing what is none or cannot be written, in the same words everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from menv.errors import ConfigError, NotWrittenError


def path_given(where: str, value: Any) -> Path:
    """Return a path that a user gave.

    Args:
        where: Begins the message: what it was given to.
        value: A string or anything that stands for a path of characters, such as a `pathlib.Path`.

    Raises:
        ConfigError: It is something else, or holds a character that no path may have.
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
            f"{where}: {path[:60]!r}... of {len(path)} characters ({error.strerror}), expected a name that the system "
            "takes; choose a shorter one"
        ) from error
    return Path(path)


def folder_given(where: str, value: Any) -> Path:
    """Return the path of a folder that a user gave and that is there.

    Raises:
        ConfigError: It is no path, nothing is there, or a file.
    """
    path = path_given(where, value)
    if path.is_dir():
        return path
    what = f"{path} is a file" if path.exists() else f"there is no folder {path}{_where_from(path)}"
    raise ConfigError(
        f"{where}: {what}, expected a folder that save or export_checkpoint wrote; check the path, and unpack archives"
    )


def _where_from(path: Path) -> str:
    """Return what a path that is not there is looked for in, "" where it says so itself."""
    if path.is_absolute():
        return ""
    try:
        return f" in {Path.cwd()}"
    except OSError:
        return " in the working directory, which is gone itself"


@contextmanager
def writing(where: str, what: str) -> Iterator[None]:
    """Tell of what cannot be written in the same words everywhere; who writes leaves nothing half written.

    Args:
        where: Begins the message: what was called.
        what: That is written, and where it is to lie.

    Raises:
        NotWrittenError: The disk is full, or nobody may write there.
    """
    try:
        yield
    except OSError as error:
        refused = NotWrittenError(
            f"{where}: {what} cannot be written ({error}), expected a folder with room in which files can be made; "
            "what was there before is as it was: make room or choose another place, and call again"
        )
        refused.errno = error.errno
        raise refused from error
