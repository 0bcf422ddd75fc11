"""What is wrong with a decoded value, before it is known which message it came in.

Readers of values raise it; who knows what was read makes a `BadMessageError` of it.
"""

from __future__ import annotations

from menv.serving.wire.bad_message import BadMessageError, Code


class BadValueError(Exception):
    """A value is none that can be taken.

    Args:
        code: What is wrong.
        text: `<what was wrong>, expected <rule>`.
        row: Which of several values, None if there is one or if it is all of them.
        path: Where in that value, such as `['camera'][1]`.
    """

    def __init__(self, code: Code, text: str, row: int | None = None, path: str = "") -> None:
        super().__init__(text)
        self.code, self.text, self.row, self.path = code, text, row, path

    def in_message(self, where: str, is_column: bool = True) -> BadMessageError:
        """Return it with the place in front.

        Args:
            where: What was read.
            is_column: Whether that was several values, which are numbered.
        """
        row = "" if self.row is None or not is_column else f"[{self.row}]"
        return BadMessageError(self.code, f"{where}{row}{self.path}: {self.text}")
