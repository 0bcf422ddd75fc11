"""Requests for actions, those of many peers read at once: a call for each would cost more than what it reads.

`menv.serving.questions` reads with it what came with one look at the sockets. What is not read here is read by itself,
by `menv.serving.wire.messages`, which also says what is wrong with it. It knows no peers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeAlias

import msgspec
from msgspec import Raw

from menv.serving.wire.dialect import Dialect, is_plain, listed
from menv.serving.wire.messages import GetAction, Ping

_Questions: TypeAlias = list[GetAction | Ping]
_RAWS: dict[Dialect, Callable[[bytes], list[Raw]]] = {
    Dialect.JSON: msgspec.json.Decoder(list[Raw]).decode,
    Dialect.MSGPACK: msgspec.msgpack.Decoder(list[Raw]).decode,
}
# Of one type alone msgspec would do without the tag.
_TYPED: dict[Dialect, Callable[[bytes], _Questions]] = {
    Dialect.JSON: msgspec.json.Decoder(_Questions).decode,
    Dialect.MSGPACK: msgspec.msgpack.Decoder(_Questions).decode,
}
_JSON_FIELDS: Callable[[bytes], list[dict[str, Raw]]] = msgspec.json.Decoder(list[dict[str, Raw]]).decode


def read_questions(bodies: Sequence[bytes], dialect: Dialect) -> list[GetAction | None]:
    """Return the requests for actions that R bodies hold; None for one that has to be looked at closely.

    Args:
        bodies: Short ones, all in one dialect, each beginning with an object.
        dialect: That one.
    """
    unread: list[GetAction | None] = [None] * len(bodies)
    whole = listed(bodies, dialect)
    try:
        asked = _TYPED[dialect](whole)
        if not _apart(whole, bodies, len(asked), dialect):
            return unread
        # Whatever else comes with a request has to be looked into.
        found = [
            one if type(one) is GetAction and one.done is None and not one.info else None for one in asked
        ]
        if dialect is Dialect.JSON:
            return found if _all_plain(whole, found) else unread
        return [
            one if one is not None and is_plain(body, dialect, _keys(one), strings=2) else None
            for one, body in zip(found, bodies, strict=True)
        ]
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return unread


def _apart(whole: bytes, bodies: Sequence[bytes], count: int, dialect: Dialect) -> bool:
    """Return whether each of so many objects is what one body holds, and none goes on in the body of another peer."""
    if count != len(bodies):
        return False
    # Where there are no more brackets than bodies, which begin with one, no object can begin elsewhere.
    if dialect is Dialect.JSON and whole.count(b"{") == count:
        return True
    return [*map(len, _RAWS[dialect](whole))] == [*map(len, bodies)]


def _keys(asked: GetAction) -> int:
    """Return how many known keys a request has; type, id and observation are there."""
    return 3 + bool(asked.reward) + (asked.seq is not None)


def _all_plain(whole: bytes, asked: Sequence[GetAction | None]) -> bool:
    """Return whether each object of a list in JSON surely has each key once.

    None has fewer colons than keys, so that one look at all of them tells what one at each would.
    """
    colons = whole.count(b":")
    known = [one for one in asked if one is not None]
    # What `_keys` says of each.
    numbers = len(known) - [one.seq for one in known].count(None)
    if colons == 3 * len(known) + numbers + sum([len(one.reward) > 0 for one in known]):
        return True
    found = _JSON_FIELDS(whole)
    if colons == sum(map(len, found)):
        return True
    # Some are in values; the same holds of quotes, and those in values can be told.
    values = b"".join(chain.from_iterable([one.values() for one in found]))
    return whole.count(b'"') == 2 * sum(map(len, found)) + values.count(b'"')
