"""An engine: where objects of ours live outside this process, and how they are asked something.

`menv.workers.process_engine` starts processes on this machine, `menv.workers.ray_engine` actors of Ray. Whoever uses
one sees the same: an object is made elsewhere, its methods are asked for, answers come in the order of the questions.
It knows neither environments nor samplers.

What goes over is pickled (by cloudpickle, so that functions of a script go too): a driver and the workers that it
started itself trust each other. Nothing else may connect.
"""

from __future__ import annotations

import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeAlias

from menv.errors import EnvFaultWarning, MenvError
from menv.workers.pipe_channel import dumps, loads

EngineName: TypeAlias = Literal["process", "ray"]


class RemoteActor(ABC):
    """An object that lives elsewhere.

    Attributes:
        label: What messages call it, such as "worker 2".
        pending: Questions that have not been answered yet; its creation is the first one.
    """

    label: str
    pending: int

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Return the id of its process, on the machine where that runs; None until it is known."""

    @property
    def broken_off(self) -> bool:
        """Return whether nothing more comes from it, because this process was interrupted in the midst of a message."""
        return False

    @abstractmethod
    def ask(self, method: str, *args: Any, parcel: Any = None) -> None:
        """Ask for a method of the object; returns at once.

        Args:
            method: Its name.
            args: What it is called with.
            parcel: What `Engine.put` returned; the value is one more argument, behind the others.

        Raises:
            UnsendableError: An argument cannot be sent.
            NoRoomError: There is no room for the arguments.
        """

    @abstractmethod
    def answer(self) -> Any:
        """Wait for the answer to the oldest question and return it; arrays in it may be read-only.

        Raises:
            CallOrderError: Nothing was asked.
            NoRoomError: It could not be started, or there is no room for the answer, and it is lost.
            WorkerLostError: The process or its machine is gone, and whatever was asked with it.
            Exception: What the method raised, with the traceback of over there as its cause.
        """

    @abstractmethod
    def kill(self) -> None:
        """End its process at once; what it was asked is lost. May be called more than once."""


class Engine(ABC):
    """Starts peers, and waits for several of them at once.

    Attributes:
        name: As in `config["engine"]`.
    """

    name: ClassVar[EngineName]

    @abstractmethod
    def start(self, make: Callable[..., Any], *args: Any, label: str) -> RemoteActor:
        """Let `make(*args)` create an object elsewhere; returns at once.

        The first answer of the peer is None, when the object is there. If the object has a method `stop`, it is called
        in the end.
        """

    @abstractmethod
    def put(self, value: Any) -> Any:
        """Return a parcel: a value that is packed once and given to many peers."""

    @abstractmethod
    def wait(self, peers: Sequence[RemoteActor], timeout: float | None = None) -> list[RemoteActor]:
        """Return those whose `answer` would not wait, in the order of `peers`; at least one unless time is over.

        Args:
            peers: Those who have no question to answer are left out; without any other it returns at once.
            timeout: Seconds; None waits as long as it takes.
        """

    @abstractmethod
    def stop(self, grace: float = 5.0) -> None:
        """End all peers: those that do not end by themselves within `grace` seconds are killed.

        Warns of those among them that were asked nothing, and of objects that raised when they were stopped.
        """


def warn_of_slow_end(whose: str, grace: float) -> None:
    """Warn of a peer that was killed, because it had not ended in its time."""
    warnings.warn(
        f"{whose}: did not end within {grace:g} s and was killed, expected what lives in it to close by then; look at "
        "what its close() waits for, and for threads and processes that it leaves running",
        EnvFaultWarning,
        stacklevel=3,
    )


def warn_of_bad_end(whose: str, how: str) -> None:
    """Warn of a peer in which something raised at its end."""
    warnings.warn(
        f"{whose}: could not close: {how}, expected what lives in it to close; mend its close()",
        EnvFaultWarning,
        stacklevel=3,
    )


# SEAM menv.scale.far_error
# An exception on its way from another process to this one.
#
# Both engines send what a method raised in this form. The process that asked gets the same exceptions, each
# with its
# `__cause__`; the first cause has its traceback as text for its own. One that cannot be pickled arrives as a
# `RemoteError`
# that says what it was.


_DEPTH = 8
"""How many causes of an exception are sent."""


class RemoteError(MenvError):
    """A method of an object in another process raised something that cannot be sent; its traceback is `__cause__`."""


class RemoteTraceback(Exception):  # noqa: N818 - it is a text, no error of its own
    """The traceback of an exception in another process, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


@dataclass(frozen=True, slots=True)
class CapturedError:
    """What a method raised.

    Attributes:
        pickled: The exception, None if it cannot be pickled.
        line: Its type and message.
        text: Its traceback.
        cause: What it was raised from, if anything.
    """

    pickled: bytes | None
    line: str
    text: str
    cause: CapturedError | None = None

    @classmethod
    def of(cls, error: BaseException, depth: int = _DEPTH) -> Self:
        """Return an exception in the form in which it travels."""
        text = "".join(traceback.format_exception(error))
        try:
            line = f"{type(error).__name__}: {error}"
        except Exception:
            line = type(error).__name__
        try:
            pickled: bytes | None = dumps(error)
            # Many classes are pickled without complaint and cannot be made again.
            loads(pickled)
        except Exception:
            pickled = None
        cause = error.__cause__ if depth else None
        return cls(pickled, line, text, None if cause is None else cls.of(cause, depth - 1))

    def error(self, label: str) -> BaseException:
        """Return the exception, to be raised in the process that asked."""
        try:
            made = loads(self.pickled) if self.pickled is not None else None
        except Exception:
            made = None
        found = made if isinstance(made, BaseException) else RemoteError(f"{label}: {self.line}")
        found.__cause__ = (
            self.cause.error(label) if self.cause else RemoteTraceback(f"in {label}:\n{self.text}")
        )
        return found
