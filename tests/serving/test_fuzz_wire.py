"""Frames that chance has damaged: each is taken or refused with a code, and nothing is left behind."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import random
import tracemalloc
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.serving.protocol import BadMessageError, Frames, frame
from tests.serving.corpus import MALFORMED, WELL_MADE, bodies, take

MAX_BODY = 100_000
TOKENS = [
    b"null", b"true", b"NaN", b"-Infinity", b"1e400", b"-1e400", b"1" + b"0" * 400, b"-0", b"0.1e-400", b"[]", b"{}",
    b'""', b"[" * 1000, b'{"a":' * 300, b'"\\ud800"', b'"\\u0000"', b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\x00",
    b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc1",
    b"\xd4\x05\x00", b"\xcb\x7f\xf8" + bytes(6), b"\xcf" + b"\xff" * 8, b"\xc0", b"\x91" * 1200, b"99999999",
]  # fmt: skip
"""What parsers stumble over, in both dialects."""

VALUES: list[Any] = [
    None, True, 0, 1, -1, 2, 1.5, 1e39, -1e308, 2**63 - 1, -(2**63), 2**64 - 1, "", "a", "a" * 300, [], {}, [0],
    [[]], [1, "a"], {"a": 1}, {"agents": {}}, [0.5] * 4, [[0.5] * 4] * 3, [0.5] * 100, b"1234",
    {"dtype": "<f4", "shape": [3, 4], "data": bytes(48)}, {"dtype": "<f4", "shape": [4], "data": b"\xff" * 16},
    {"dtype": "<i8", "shape": [2], "data": bytes(16)}, {"dtype": "O", "shape": [2**31], "data": b""},
]  # fmt: skip
"""Values that are right in some places."""


class Damage:
    """Damages bodies and frames, the same way for the same seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        small = [body for body, _ in MALFORMED.values() if len(body) < 2000]
        self._bodies = bodies() + small
        self._ways = (self._flip, self._cut, self._insert, self._repeat, self._swap)

    def frame(self) -> bytes:
        """Return a frame of a body with a wrong value or with damaged bytes, now and then with a damaged header."""
        if self._draw.random() < 0.5:
            return frame(self._wrong_value())
        body = self._draw.choice(self._bodies)
        for _ in range(self._draw.choice((1, 1, 2, 5))):
            body = self._draw.choice(self._ways)(body)
        framed = frame(body)
        return framed if self._draw.random() < 7 / 8 else self._flip(framed[:8]) + framed[8:]

    def _wrong_value(self) -> bytes:
        """Return a well-written body in which some value is another one."""
        message = copy.deepcopy(self._draw.choice(WELL_MADE))
        for _ in range(self._draw.choice((0, 1, 1, 2))):
            holder: Any = message
            while True:
                places = list(holder) if isinstance(holder, dict) else range(len(holder))
                place = self._draw.choice([place for place in places if place != "type"] or ["x"])
                inner = holder.get(place) if isinstance(holder, dict) else holder[place]
                if not inner or not isinstance(inner, dict | list) or self._draw.random() < 0.2:
                    break
                holder = inner
            holder[place] = copy.deepcopy(self._draw.choice(VALUES))
        return self._draw.choice((msgspec.json.encode, msgspec.msgpack.encode))(message)

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return data
        at = self._draw.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << self._draw.randrange(8))]) + data[at + 1 :]

    def _cut(self, data: bytes) -> bytes:
        begin, end = self._slice(data)
        return data[:begin] + data[end:]

    def _insert(self, data: bytes) -> bytes:
        at = self._draw.randint(0, len(data))
        return data[:at] + self._draw.choice(TOKENS) + data[at:]

    def _repeat(self, data: bytes) -> bytes:
        begin, end = self._slice(data)
        return data[:end] + data[begin:end] * self._draw.choice((1, 1, 3, 50)) + data[end:]

    def _swap(self, data: bytes) -> bytes:
        begin, end = self._slice(data)
        return data[:begin] + self._draw.choice(TOKENS) + data[end:]

    def _slice(self, data: bytes) -> tuple[int, int]:
        begin = self._draw.randint(0, len(data))
        return begin, min(len(data), begin + self._draw.choice((1, 2, 8, 40)))


def feed(count: int, seed: int) -> Counter[str]:
    """Send damaged frames through framing, decoding and checking; return how often each code was the answer."""
    damage, answers = Damage(seed), Counter[str]()
    for _ in range(count):
        # One feed may hold several frames, or a part of one: a connection each.
        frames = Frames(MAX_BODY)
        try:
            for body in frames.feed(damage.frame()):
                take(body)
            answers["taken or pending"] += 1
        except BadMessageError as error:
            answers[error.code] += 1
    return answers


def grown_bytes(count: int) -> int:
    """Return by how much memory has grown between a tenth of the frames and all of them."""
    feed(count // 10, seed=1)
    gc.collect()
    tracemalloc.start()
    feed(count // 10, seed=2)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    feed(count * 8 // 10, seed=3)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


def test_twenty_thousand_damaged_frames_are_taken_or_refused_with_a_code() -> None:
    answers = feed(20_000, seed=0)
    assert sum(answers.values()) == 20_000
    # All eight codes that reading can give: damage that is noticed at the first byte would give fewer.
    assert len(answers) == 9
    assert answers["taken or pending"] < 12_000


def test_damaged_frames_leave_nothing_behind() -> None:
    assert grown_bytes(10_000) < 100_000


@pytest.mark.soak
def test_a_million_damaged_frames_are_refused_and_leave_nothing_behind() -> None:
    assert grown_bytes(1_000_000) < 200_000


anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from([10**30, -(2**63), 2**64, 1e308, "", [], {}]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(WELL_MADE), st.data())
def test_any_values_in_any_fields_are_taken_or_refused_with_a_code(
    message: dict[str, Any], data: st.DataObject
) -> None:
    changed = dict(message)
    for name in data.draw(
        st.lists(st.sampled_from(sorted({*message} - {"type"} or {"x"})), min_size=1, max_size=2)
    ):
        changed[name] = data.draw(anything)
    if changed.get("episodes") and isinstance(changed["episodes"], list) and data.draw(st.booleans()):
        column = data.draw(st.sampled_from(["obs", "actions", "rewards", "id", "t", "action_logp", "agents"]))
        changed["episodes"] = [{**message["episodes"][0], column: data.draw(anything)}]
    written = [json.dumps(changed).encode()]
    with contextlib.suppress(OverflowError):
        written.append(msgspec.msgpack.encode(changed))
    for body in written:
        with contextlib.suppress(BadMessageError):
            take(body)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([b"{", b" ", b"\x80", b"\x82\xa4type", b"\xde\x00\x01", b'{"type":', b""]),
    st.binary(max_size=60),
)
def test_any_bytes_are_taken_or_refused_with_a_code(begin: bytes, rest: bytes) -> None:
    with pytest.raises(BadMessageError):
        take(begin + rest + b"\xc1")
