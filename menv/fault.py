"""A fault of a sub-environment that cost one episode: which one raised, where, and what.

Adapters hand it out in `Ready.faults` when they have put a new sub-environment in the place of one that raised;
`menv.loop.hooks` counts and tells it. It knows neither agents nor rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import PurePath
from typing import NamedTuple, Self

_LONGEST = 200


class Fault(NamedTuple):
    """A sub-environment that raised and was replaced by a newly created one.

    It holds no exception: whose traceback keeps alive all that its callers had.

    Attributes:
        env_id: The sub-environment.
        env_index: Position of the sub-environment in `Ready.env_steps`.
        where: "step" or "reset".
        line: All of it in one line, such as "ZeroDivisionError: no wheels in step of env 3 (world.py:41)".
        origin: The type of the error and the file and line that raised it, equal for faults of one cause.
    """

    env_id: Hashable
    env_index: int
    where: str
    line: str
    origin: tuple[str, str, int]

    @classmethod
    def of(cls, env_id: Hashable, env_index: int, where: str, error: Exception) -> Self:
        """Return the fault of a sub-environment that raised an error."""
        here, file, line = error.__traceback__, "", 0
        while here is not None:
            file, line = here.tb_frame.f_code.co_filename, here.tb_lineno
            here = here.tb_next
        kind, said = type(error).__name__, " ".join(str(error).split())[:_LONGEST].rstrip()
        place = f" ({PurePath(file).name}:{line})" if file else ""
        told = f"{kind}{': ' if said else ''}{said} in {where} of env {env_id}{place}"
        return cls(env_id, env_index, where, told, (kind, file, line))
