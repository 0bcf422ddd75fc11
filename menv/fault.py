"""A fault of a sub-environment that cost one episode: which one raised, where, and what.

Adapters hand it out in `Ready.faults` when they have put a new sub-environment in the place of one that raised;
`menv.loop.hooks` counts and tells it. It knows neither agents nor rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import PurePath
from typing import NamedTuple

_LONGEST = 200


class Fault(NamedTuple):
    """A sub-environment that raised and was replaced by a newly created one.

    Attributes:
        env_id: The sub-environment.
        env_index: Position of the sub-environment in `Ready.env_steps`.
        where: "step" or "reset".
        error: What it raised, with its traceback.
    """

    env_id: Hashable
    env_index: int
    where: str
    error: Exception

    @property
    def origin(self) -> tuple[str, str, int]:
        """The type of the error and the file and line that raised it, equal for faults of one cause."""
        here, file, line = self.error.__traceback__, "", 0
        while here is not None:
            file, line = here.tb_frame.f_code.co_filename, here.tb_lineno
            here = here.tb_next
        return type(self.error).__name__, file, line

    @property
    def line(self) -> str:
        """All of it in one line, such as "ZeroDivisionError: division by zero in step of env 3 (world.py:41)"."""
        kind, file, line = self.origin
        said = " ".join(str(self.error).split())[:_LONGEST].rstrip()
        place = f" ({PurePath(file).name}:{line})" if file else ""
        return f"{kind}{': ' if said else ''}{said} in {self.where} of env {self.env_id}{place}"
