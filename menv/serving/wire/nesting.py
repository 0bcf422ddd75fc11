"""How deeply lists and objects lie within each other in a body, found out without recursion.

`dialect` asks before it lets a parser loose on what no type bounds: parsers recurse, and stop where the interpreter's
recursion limit says, which a program may have raised beyond what the stack of a thread holds.
"""

from __future__ import annotations

import re

import numpy as np

_NO_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_TEXT = re.compile(rb'"[^"]*"?')
_OPENING = np.zeros(256, np.int8)
_OPENING[list(b"[{")] = 1
_OPENING[list(b"]}")] = -1


def without_escapes(body: bytes) -> bytes:
    """Return JSON without the backslashes and quotes that are escaped in its texts.

    Every quote that is left begins or ends a text.
    """
    if b"\\" not in body:
        return body
    # Pairs first: a backslash that is left then escapes what follows it.
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


def json_levels(body: bytes) -> int:
    """Return the levels of a JSON value; of one that is not well made, those up to where that shows at most."""
    brackets = _TEXT.sub(b"", without_escapes(body).translate(None, _NO_BRACKETS))
    if not brackets:
        return 0
    levels = np.cumsum(_OPENING[np.frombuffer(brackets, np.uint8)], dtype=np.int64)
    return max(0, int(levels.max()))


_FIXED = {
    **dict.fromkeys([0xC0, 0xC1, 0xC2, 0xC3], 0), 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8,
    0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""Bytes that follow a first byte that says all about the size."""
_SIZED = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
"""Bytes of the size that follows, and what is added to it: bytes, extensions and texts."""
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Bytes of the count that follows, and values for each: lists and maps."""


def msgpack_levels(body: bytes) -> int:
    """Return the levels of a msgpack value; of one that breaks off, those up to there."""
    at, deepest, end = 0, 0, len(body)
    # How many values each open list or map still lacks.
    open_: list[int] = [1]
    while open_ and at < end:
        open_[-1] -= 1
        first = body[at]
        at += 1
        count = -1
        if 0x80 <= first < 0xA0:
            count = (first & 0x0F) * (2 if first < 0x90 else 1)
        elif first in _COUNTED:
            size, values = _COUNTED[first]
            count = int.from_bytes(body[at : at + size], "big") * values
            at += size
        else:
            at += _bytes_after(first, body, at)
        if count >= 0:
            open_.append(count)
            deepest = max(deepest, len(open_) - 1)
        while open_ and open_[-1] == 0:
            open_.pop()
    return deepest


def _bytes_after(first: int, body: bytes, at: int) -> int:
    """Return how many bytes of a value that holds no others follow its first one."""
    if first < 0x80 or first >= 0xE0:
        return 0
    if 0xA0 <= first < 0xC0:
        return first & 0x1F
    if first in _SIZED:
        size, more = _SIZED[first]
        return size + more + int.from_bytes(body[at : at + size], "big")
    return _FIXED[first]
