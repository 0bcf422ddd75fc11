"""The errors that menv raises, one class for each remedy, and its one warning; then the faults of environments.

A message reads `<where>: <what was wrong, with values>, expected <rule>; <what to do next>` and never holds a whole
observation, batch or set of weights. An `EnvFault` describes a fault of an environment that cost one episode.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Hashable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple, Self


def printable(text: str) -> str:
    """Return a text with escapes in the place of characters that a terminal may obey, and of halves of characters."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text
    )


class MenvError(Exception):
    """Base of all errors that menv raises itself; their messages may quote files, and are printable."""

    # The fault of a sub-environment that ends the run with this error, and what its crash capsule holds.
    _fault: EnvFault | None = None
    _capsule: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return printable(super().__str__())


class ContractError(MenvError):
    """An environment or a policy broke its interface; fix that class.

    Attributes:
        finding: The code under which `check_env` reports the same fault, "" if it does not.
    """

    def __init__(self, message: str = "", finding: str = "") -> None:
        super().__init__(message)
        self.finding = finding


class ConfigError(MenvError, ValueError):
    """A setting is wrong; fix the call or the config."""


class UnknownNameError(ConfigError):
    """A name is unknown; register it, or use one of the near names listed."""


class EnvCrashError(MenvError):
    """The environment's code raised; its exception and traceback are `__cause__`."""


class CallOrderError(MenvError, RuntimeError):
    """Methods were called in an order that cannot work; the message says which comes first."""


class EpisodeError(CallOrderError, ValueError):
    """An external episode is unknown, used up or busy; start it, or use another id."""


class MissingExtraError(MenvError, ImportError):
    """An optional package is not installed; the message holds the command that installs it."""


class NotWrittenError(MenvError, OSError):
    """A file could not be written, such as on a full disk; make room or choose another place, and call again."""


class ServerGoneError(MenvError, ConnectionError):
    """A server did not answer within the client's timeout; start it again, and call again."""


class WorkerLostError(MenvError):
    """A worker process has ended, or its machine is gone; the message holds the end of its stderr."""


class NoRoomError(ConfigError):
    """A cluster or this machine has no room for another process; ask for fewer, or continue with the running ones."""


class RefusedError(MenvError):
    """A server refused a client's message; the error message is the server's.

    Attributes:
        code: The kind of problem: one of `menv.serving.protocol.ErrorCode`, or one of a newer server.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class EnvFaultWarning(UserWarning):
    """A sub-environment raised, which cost its episode, or excluded an episode from training too late."""


def message_of(error: BaseException) -> str:
    """Return the message of an error of any class, also of one whose `__str__` raises."""
    try:
        return printable(str(error))
    except Exception as other:
        return f"(its __str__ raised {type(other).__name__})"


def first_clause(error: Exception | str) -> str:
    """Return what an error says was wrong, without the rule and what to do next."""
    return re.split(r", expected |; ", str(error), maxsplit=1)[0]


def in_words(error: BaseException) -> str:
    """Return the class and the message of an error of any class."""
    return f"{type(error).__name__}: {message_of(error)}"


_LONGEST = 200
_LONGEST_TRACEBACK = 20_000
CALLER, WORKER = "caller", "worker"
"""The `where` of a fault whose episode ended because its client vanished, and of a lost rollout worker."""


class EnvFault(NamedTuple):
    """A sub-environment that raised and was replaced, or an episode whose caller was lost.

    It holds no exception, because a traceback would keep all frames of the callers alive.

    Attributes:
        env_id: The sub-environment.
        env_index: Position of the sub-environment in `Ready.env_steps`.
        where: "step", "reset", `CALLER` or `WORKER`.
        line: One line, such as "ZeroDivisionError: no wheels in step of env 3 (world.py:41)".
        origin: The type of the error and the file and line that raised it, equal for faults of one cause.
        began: Env steps of the sub-environment at the reset of the episode, or at the reset that raised.
        trace: The end of the traceback, or the report of a lost process.
    """

    env_id: Hashable
    env_index: int
    where: str
    line: str
    origin: tuple[str, str, int]
    began: int = 0
    trace: str = ""

    @classmethod
    def of(cls, env_id: Hashable, env_index: int, where: str, error: BaseException, began: int = 0) -> Self:
        here, file, line = error.__traceback__, "", 0
        while here is not None:
            file, line = here.tb_frame.f_code.co_filename, here.tb_lineno
            here = here.tb_next
        kind, said = type(error).__name__, " ".join(message_of(error).split())[:_LONGEST].rstrip()
        place = f" ({PurePath(file).name}:{line})" if file else ""
        text = f"{kind}{': ' if said else ''}{said} in {where} of env {env_id}{place}"
        trace = "".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:]
        return cls(env_id, env_index, where, text, (kind, file, line), began, trace)

    def described(self) -> dict[str, Any]:
        """Return what every crash capsule holds."""
        return {"where": self.where, "line": self.line, "origin": list(self.origin), "traceback": self.trace}
