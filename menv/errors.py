"""Every error that menv raises on purpose, one class per thing a caller can do next, and its one kind of warning.

A message reads `<where>: <what was wrong, with values>, expected <rule>; <what to do next>`
and never holds a whole observation, batch or set of weights.
"""

from __future__ import annotations


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
        code: What kind of thing is wrong: one of `menv.serving.wire.bad_message.Code`, or one of a newer server.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class EnvFaultWarning(UserWarning):
    """A sub-environment raised, which cost its episode, or excluded an episode from training too late."""
