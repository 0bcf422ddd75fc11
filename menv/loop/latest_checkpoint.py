"""Reading the latest checkpoint while somebody saves: the one that is read may be deleted meanwhile.

Algorithms, and policies that are loaded from a run, read with it. What is read is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from menv.errors import ConfigError
from menv.loop.checkpoint_folder import LATEST, find_checkpoint
from menv.paths import folder_given

T = TypeVar("T")
_TRIES = 20


def read_checkpoint(path: Any, read: Callable[[Path], T]) -> T:
    """Return what `read` makes of a checkpoint; of the next one, where another became the latest while it read.

    Args:
        path: As for `find_checkpoint`.
        read: Called with the numbered folder.

    Raises:
        ConfigError: There is no checkpoint, `read` refuses it, or it has gone.
    """
    root = folder_given("checkpoint", path)
    for left in reversed(range(_TRIES)):
        named = _named(root)
        try:
            return read(find_checkpoint(root))
        except (ConfigError, FileNotFoundError) as error:
            if left and _named(root) != named:
                continue
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"checkpoint {str(root)!r}: {error}, expected a checkpoint that stays while it is read; load another"
            ) from error
    raise AssertionError


def _named(root: Path) -> bytes:
    """Return what `LATEST` says, b"" where there is none."""
    try:
        return (root / LATEST).read_bytes()[:64]
    except OSError:
        return b""
