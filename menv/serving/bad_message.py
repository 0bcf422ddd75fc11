"""What is wrong with something that a peer sent; whoever reads from peers raises it, sessions answer it."""

from __future__ import annotations

from menv.errors import MenvError


class BadMessageError(MenvError):
    """A peer sent something that cannot be taken; it is told so, and nothing else happens.

    Attributes:
        code: One of a closed list, for machines.
        text: A sentence for the author of the client; never what was sent.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
