"""An exception on its way from another process to this one.

Both engines send what a method raised in this form. Whoever asked gets the same exception, with the traceback of over
there as its cause; one that cannot travel arrives as a `FarError` that says what it was.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Self

from menv.errors import MenvError
from menv.scale.trusted import dumps, loads


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
    """

    pickled: bytes | None
    line: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
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
        return cls(pickled, line, text)

    def error(self, label: str) -> BaseException:
        """Return the exception, to be raised in the process that asked."""
        try:
            made = loads(self.pickled) if self.pickled is not None else None
        except Exception:
            made = None
        found = made if isinstance(made, BaseException) else FarError(f"{label}: {self.line}")
        found.__cause__ = FarTraceback(f"in {label}:\n{self.text}")
        return found
