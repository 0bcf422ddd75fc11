"""The interface of engines: objects in other processes, asked for their methods by messages.

A request names a method by the function in its class, so that type checkers compare the arguments: `actor.ask(
RolloutWorker.running_ids)`.

`process_engine` starts processes on this machine, `ray_engine` starts Ray actors. Both create an object elsewhere, call
its methods and return the answers in the order of the requests. Values travel as cloudpickles, so functions of a script
can travel, too: a driver and the workers that it started trust each other, and nothing else may connect.
"""

from __future__ import annotations

import traceback
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar, TypeVarTuple

from menv.errors import CallOrderError, EnvFaultWarning, MenvError, WorkerLostError, in_words
from menv.workers.messages import Parts, dumps, loads, pack, unpack
from menv.workers.watchdog import FATAL

EngineName: TypeAlias = Literal["process", "ray"]

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


CREATE = ""
"""In place of a method's name: the first argument creates the object."""


def pack_request(label: str, method: str, args: Sequence[Any]) -> Parts:
    """Pack a request: a method or `CREATE`, and its arguments. Raises UnsendableError, which names `label`."""
    where = f"{label}, {method}" if method else f"{label}, to make it"
    return pack((method, args), f"{where}: args", "[1]")


class RemoteActor(ABC):
    """An object in another process.

    `label` names it in messages, such as "worker 2". `pending` counts unanswered requests; the first one is its
    creation. `was_interrupted` is True where the channel is unusable because this process was interrupted within a
    message.
    """

    label: str
    pending: int
    was_interrupted = False

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Return its process id on the machine where it runs; None until it is known."""

    def ask(self, method: Callable[[Any, *Ts], object], *args: *Ts) -> None:
        """Request a call of a method of the object's class; returns at once.

        The last argument may be a parcel from `Engine.put`. Raises UnsendableError if an argument cannot be pickled.
        """
        self._request(pack_request(self.label, method.__name__, args))

    def create(self, make: Callable[..., Any], *args: Any) -> None:
        """Request that `make(*args)` creates its object again, in place of the current one, which is stopped."""
        self._request(pack_request(self.label, CREATE, (make, *args)))

    def answer(self) -> Any:
        """Wait for the answer to the oldest request and return it; arrays in it may be read-only.

        Raises what the method raised, with its remote traceback as the cause; CallOrderError without a request,
        NoRoomError if there is no room for the process, WorkerLostError if the process or machine is
        gone.
        """
        if not self.pending:
            raise CallOrderError(f"{self.label}: has no request to answer, expected one first; call ask")
        well, value = unpack(self._reply())
        if not well:
            raise value.error(self.label)
        return value

    @abstractmethod
    def kill(self) -> None:
        """End its process at once, with all its requests. May be called more than once."""

    @abstractmethod
    def _request(self, parts: Parts) -> None:
        """Send a request and count it, also where the process is gone."""

    @abstractmethod
    def _reply(self) -> Parts:
        """Wait for the next answer and count it."""


class Engine(ABC):
    """Starts remote actors, and waits for several of them at once."""

    name: ClassVar[EngineName]

    def __init__(self) -> None:
        self._actors: weakref.WeakSet[Any] = weakref.WeakSet()

    @abstractmethod
    def start(self, make: Callable[..., Any], *args: Any, label: str) -> RemoteActor:
        """Let `make(*args)` create an object elsewhere; returns at once.

        The first answer of the actor is None, when the object exists. A method `stop` of the object is called at the
        end.
        """

    @abstractmethod
    def put(self, value: T) -> T:
        """Return a parcel that stands for a value, which is packed once and sent to many actors."""

    @abstractmethod
    def wait(self, actors: Sequence[Any], timeout: float | None = None) -> list[RemoteActor]:
        """Return the actors whose `answer` would not wait, in the given order; at least one before the timeout.

        Actors without a request are left out; if there are no others, it returns at once.
        """

    def stop(self, grace: float = 5.0) -> None:
        """End all actors; kill them after `grace` seconds.

        Warns of actors without a request that were killed, or whose object's `stop` raised.
        """
        actors = [*self._actors]
        # Before their requests end in other threads.
        idle = {actor for actor in actors if not actor.pending}
        for actor, error in self._end(actors, grace).items():
            if actor in idle:
                slow = (
                    f"did not end within {grace:g} s and was killed, expected its object to close by then; look at "
                    "what its close() waits for, and for threads and processes that it leaves running"
                )
                bad = f"could not close: {error}, expected its object to close; fix its close()"
                told = f"{actor.label} (pid {actor.pid}): {bad if error else slow}"
                warnings.warn(told, EnvFaultWarning, stacklevel=2)
        self._actors.clear()

    @abstractmethod
    def _end(self, actors: Sequence[Any], grace: float) -> Mapping[Any, str]:
        """End actors; return those that were killed, with "", and those whose object raised, with the error."""


_LINES, _LONGEST, _LONGEST_LAST = 20, 500, 160
_STDERR_FOLLOWS = "; the last lines of its stderr:\n"


def lost(head: str, stderr: Sequence[str]) -> WorkerLostError:
    """Return the error for a lost process, with the last lines of its stderr."""
    # Its stack may be longer.
    fatal = [line for line in stderr[:-_LINES] if line.startswith(FATAL)]
    last = [line[:_LONGEST] for line in (*fatal[-1:], *stderr[-_LINES:])]
    return WorkerLostError(
        head + (_STDERR_FOLLOWS + "\n".join(last) if last else "; it wrote nothing to stderr")
    )


def in_a_line(error: str) -> str:
    """Return the message of `lost` as one line, with what Python died of, or else the last line of stderr."""
    head, _, stderr = error.partition(_STDERR_FOLLOWS)
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # Stacks and names of modules follow it.
    fatal = [line for line in lines if line.startswith(FATAL)]
    said = f"; its stderr: {[*lines, *fatal][-1][:_LONGEST_LAST]}" if lines else ""
    return " ".join(head.split()) + said


_DEPTH = 8
"""How many causes of an exception are sent."""


class RemoteError(MenvError):
    """A method of an object in another process raised something that cannot be sent; its traceback is `__cause__`."""


class RemoteTraceback(Exception):  # noqa: N818 - a text, not an error
    """The traceback of an exception in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, slots=True)
class CapturedError:
    """An exception on its way to the driver: pickled if possible, otherwise as the line of a `RemoteError`.

    Causes travel along, up to a depth; the first one gets its remote traceback, a text, as its cause.
    """

    pickled: bytes | None
    line: str
    text: str
    cause: CapturedError | None = None

    @classmethod
    def of(cls, error: BaseException, depth: int = _DEPTH) -> Self:
        text = "".join(traceback.format_exception(error))
        line = in_words(error)
        try:
            pickled: bytes | None = dumps(error)
            # Some classes can be pickled but not unpickled.
            loads(pickled)
        except Exception:
            pickled = None
        cause = error.__cause__ if depth else None
        return cls(pickled, line, text, None if cause is None else cls.of(cause, depth - 1))

    def error(self, label: str) -> BaseException:
        """Return the exception to raise in the driver."""
        try:
            made = loads(self.pickled) if self.pickled is not None else None
        except Exception:
            made = None
        found = made if isinstance(made, BaseException) else RemoteError(f"{label}: {self.line}")
        found.__cause__ = (
            self.cause.error(label) if self.cause else RemoteTraceback(f"in {label}:\n{self.text}")
        )
        return found
