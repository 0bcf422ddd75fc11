"""An exception on its way from another process to this one.

Both engines send what a method raised in this form. The process that asked gets the same exceptions, each with its
`__cause__`; the first cause has its traceback as text for its own. One that cannot be pickled arrives as a `FarError`
that says what it was.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Self

from menv.errors import MenvError
from menv.scale.trusted import dumps, loads

_DEPTH = 8
"""How many causes of an exception are sent."""


class FarError(MenvError):
    """A method of an object in another process raised something that cannot be sent; its traceback is `__cause__`."""


class FarTraceback(Exception):  # noqa: N818 - it is a text, no error of its own
    """The traceback of an exception in another process, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


@dataclass(frozen=True, slots=True)
class Raised:
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
    cause: Raised | None = None

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
        found = made if isinstance(made, BaseException) else FarError(f"{label}: {self.line}")
        found.__cause__ = self.cause.error(label) if self.cause else FarTraceback(f"in {label}:\n{self.text}")
        return found
