"""A fault of a sub-environment that cost one episode: which one raised, where, and what.

Adapters hand it out in `Ready.faults` when they have put a new sub-environment in the place of one that raised;
`menv.loop.hooks` counts and tells it. It knows neither agents nor rows. Whoever calls an environment catches
`raised_by_envs()`, or calls it in `no_exit()`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, NamedTuple, Self

from menv.errors import EnvCrashError
from menv.forked_child import end_if_forked

_LONGEST = 200
CALLER = "caller"
"""Where a fault was whose episode was broken off by its caller, such as a client that vanished."""


def raised_by_envs() -> tuple[type[BaseException], ...]:
    """Return what an `except` clause around a call of an environment catches; called in the clause itself.

    `sys.exit()` in an environment is a fault like any other: it must not end a run without a word. In the handler of a
    signal it ends the run, whatever was being called when the signal came. A child that the environment has forked ends
    here.
    """
    error = sys.exc_info()[1]
    if error is not None:
        end_if_forked(error)
    return (Exception,) if isinstance(error, SystemExit) and _of_a_signal(error) else (Exception, SystemExit)


@contextmanager
def no_exit(where: str) -> Iterator[None]:
    """Turn `sys.exit()` in an environment into an error that can be read; whatever else is raised stays as it is.

    Args:
        where: Begins the message, such as "World.close".

    Raises:
        EnvCrashError: It was called.
    """
    try:
        yield
    except SystemExit as error:
        end_if_forked(error)
        if _of_a_signal(error):
            raise
        raise EnvCrashError(
            f"{where}: raised {error!r}, expected it to return; leave sys.exit() to your own program"
        ) from error


def _of_a_signal(error: SystemExit) -> bool:
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    here = error.__traceback__
    while here is not None:
        if here.tb_frame.f_code in codes:
            return True
        here = here.tb_next
    return False


def _code_of(handler: Any) -> Any:
    """Return the code of a function or an object that is called; None of anything else, as SIG_DFL is."""
    if not callable(handler):
        return None
    function = getattr(handler, "func", handler)
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


class Fault(NamedTuple):
    """A sub-environment that raised and was replaced by a newly created one, or an episode whose caller was lost.

    It holds no exception: whose traceback keeps alive all that its callers had.

    Attributes:
        env_id: The sub-environment.
        env_index: Position of the sub-environment in `Ready.env_steps`.
        where: "step", "reset" or `CALLER`.
        line: All of it in one line, such as "ZeroDivisionError: no wheels in step of env 3 (world.py:41)".
        origin: The type of the error and the file and line that raised it, equal for faults of one cause.
    """

    env_id: Hashable
    env_index: int
    where: str
    line: str
    origin: tuple[str, str, int]

    @classmethod
    def of(cls, env_id: Hashable, env_index: int, where: str, error: BaseException) -> Self:
        """Return the fault of a sub-environment that raised an error."""
        here, file, line = error.__traceback__, "", 0
        while here is not None:
            file, line = here.tb_frame.f_code.co_filename, here.tb_lineno
            here = here.tb_next
        kind, said = type(error).__name__, " ".join(str(error).split())[:_LONGEST].rstrip()
        place = f" ({PurePath(file).name}:{line})" if file else ""
        told = f"{kind}{': ' if said else ''}{said} in {where} of env {env_id}{place}"
        return cls(env_id, env_index, where, told, (kind, file, line))
