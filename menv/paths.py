"""Paths that users give: refusing what is none, in the same words everywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from menv.errors import ConfigError


def path_given(where: str, value: Any) -> Path:
    """Return a path that a user gave.

    Args:
        where: Begins the message: what it was given to.
        value: A string or anything that stands for a path of characters, such as a `pathlib.Path`.

    Raises:
        ConfigError: It is something else, or holds a character that no path may have.
    """
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or "\0" in path:
        raise ConfigError(
            f"{where}: {value!r:.60}, a {type(value).__name__}, expected a path, a string or a pathlib.Path; "
            "pass the name of a folder or of a file"
        )
    return Path(path)
