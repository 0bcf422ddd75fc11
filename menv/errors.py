"""Every error that menv raises on purpose, one class per thing a caller can do next, and its one kind of warning.

A message reads `<where>: <what was wrong, with values>, expected <rule>; <what to do next>`
and never holds a whole observation, batch or set of weights.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath
from types import FrameType
from typing import Any, NamedTuple, Self


class MenvError(Exception):
    """Base of all errors that menv raises itself."""


class ContractError(MenvError):
    """An environment or a policy broke its interface; mend that class."""


class ConfigError(MenvError, ValueError):
    """A setting is wrong; mend the call or the config."""


class UnknownNameError(ConfigError):
    """A name is not known here; register it, or use one of the near names listed."""


class EnvCrashError(MenvError):
    """The environment's own code raised; its exception and traceback are `__cause__`."""


class CallOrderError(MenvError, RuntimeError):
    """Methods were called in an order that cannot work; the message says which comes first."""


class EpisodeError(CallOrderError, ValueError):
    """An external episode is unknown, used up or busy; start it, or take another id."""


class MissingExtraError(MenvError, ImportError):
    """An optional package is not installed; the message holds the command that installs it."""


class NotWrittenError(MenvError, OSError):
    """A file could not be written, as on a full disk; make room or choose another place, and call again."""


class ServerGoneError(MenvError, ConnectionError):
    """A server did not answer for as long as a client waits; start it again, and call again."""


class WorkerLostError(MenvError):
    """A process that works for this one has ended, or its machine is gone; the message holds its last words."""


class NoRoomError(ConfigError):
    """A cluster or this machine has no room for one more process; ask for fewer, or go on with those that run."""


class RefusedError(MenvError):
    """A server did not take what a client sent; the message is the server's sentence.

    Attributes:
        code: What kind of thing is wrong: one of `menv.serving.codec.ErrorCode`, or one of a newer server.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class EnvFaultWarning(UserWarning):
    """A sub-environment raised, which cost its episode, or excluded an episode from training too late."""


# SEAM menv.forked_child
# A forked child: the process that an environment makes with `os.fork()`, which ends where it raises.
#
# It would go on as a second sampler, driver or worker otherwise, with the frames that it has inherited, while
# its parent
# waits for its end. `menv.errors` and `menv.workers.worker_process` ask, wherever they catch what an
# environment raised. What a
# process calls that was forked before is its own: multiprocessing may run all of menv in a child.


_inherited: list[FrameType] = []
"""What this process, if it is such a child, was in the middle of when it was forked."""


def end_if_forked(error: BaseException) -> None:
    """End this process, as Python ends one that raised, if it was forked within a call that raised an error."""
    here = error.__traceback__
    while here is not None and not any(here.tb_frame is frame for frame in _inherited):
        here = here.tb_next
    if here is not None:
        _end(error)


def _end(error: BaseException) -> None:
    """End this process at once: what else there is to take apart belongs to the parent."""
    code = error.code if isinstance(error, SystemExit) else 1
    with suppress(Exception):
        if not isinstance(error, SystemExit):
            # Not a hook that somebody put there: that of Ray asks threads, which only the parent has.
            sys.__excepthook__(type(error), error, error.__traceback__)
        elif not isinstance(code, int | None):
            sys.stderr.write(f"{code}\n")
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def _remember() -> None:
    _inherited.clear()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        _inherited.append(frame)
        frame = frame.f_back


if hasattr(os, "register_at_fork"):  # where there is no fork, there is nothing to remember
    os.register_at_fork(after_in_child=_remember)


# SEAM menv.fault
# A fault of a sub-environment that cost one episode: which one raised, where, and what.
#
# Adapters hand it out in `Ready.faults` when they have put a new sub-environment in the place of one that
# raised;
# `menv.sampling.callback_runner` counts and tells it. It knows neither agents nor rows. Whoever calls an
# environment catches
# `raised_by_envs()`, or calls it in `no_exit()`.


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


class EnvFault(NamedTuple):
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
