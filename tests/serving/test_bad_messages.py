"""What is badly made gets a code and a sentence, whatever it is, is never repeated back, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.serving.protocol import (
    HEADER_BYTES,
    BadMessageError,
    body_bytes,
    frame,
)
from tests.serving.corpus import MALFORMED, WELL_MADE, Damage, bodies, take
from tests.serving.doors import TCP, Client
from tests.serving.talks import serving


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_badly_made_is_answered_with_its_code_in_one_sentence(name: str) -> None:
    body, code = MALFORMED[name]
    start = time.perf_counter()
    with pytest.raises(BadMessageError) as caught:
        take(body)
    assert time.perf_counter() - start < 10
    error = caught.value
    assert error.code is code, error.text
    where, colon, what = error.text.partition(": ")
    assert where
    assert colon
    assert "expected" in what or "flatten" in what
    assert "\n" not in error.text
    assert len(error.text) < 400


@pytest.mark.parametrize("number", range(len(bodies())))
def test_what_is_well_made_is_taken_and_refused_where_it_breaks_off(number: int) -> None:
    body = bodies()[number]
    assert str(type(take(body)).__struct_config__.tag).encode() in body
    for length in range(len(body)):
        with pytest.raises(BadMessageError):
            take(body[:length])


D1_FRAMES = {
    "PING": b'00000016{"type": "PING"}',
    "PONG": b'00000016{"type": "PONG"}',
    "GET_CONFIG": b'00000022{"type": "GET_CONFIG"}',
}
"""What clients of RLlink's JSON days put on the wire, byte for byte."""


def test_frames_are_these_bytes() -> None:
    for name, framed in D1_FRAMES.items():
        body = json.dumps({"type": name}).encode()
        assert frame(body) == framed
        assert body_bytes(framed[:HEADER_BYTES], 100) == len(body)
    assert frame(b'{"type":"PING"}') == b'00000015{"type":"PING"}'
    assert frame(b"") == b"00000000"


def test_a_header_of_other_bytes_than_digits_is_told() -> None:
    wrong = [b"      16", b"+0000016", b"0000_016", b"-0000001", b"0x000010", b"GET / HTTP", b"\xd9\xa0" * 4]
    with serving(TCP) as (server, talks):
        for header in wrong:
            with Client(TCP, server.addresses[0]) as one:
                one.raw(header)
                assert b"bad_frame: " in (told := one.receive())
                assert b"expected the length of the body in 8 ASCII digits" in told
                assert one.rest() == b""
        assert talks.bodies == []


MAX_BODY = 100_000


def feed(count: int, seed: int) -> Counter[str]:
    """Send damaged frames through framing, decoding and checking; return how often each code was the answer."""
    damage, answers = Damage(seed), Counter[str]()
    for _ in range(count):
        # It may hold several frames, or a part of one.
        rest = damage.frame()
        try:
            while len(rest) >= HEADER_BYTES:
                end = HEADER_BYTES + body_bytes(rest[:HEADER_BYTES], MAX_BODY)
                if len(rest) < end:
                    break
                take(rest[HEADER_BYTES:end])
                rest = rest[end:]
            answers["taken or pending"] += 1
        except BadMessageError as error:
            answers[error.code] += 1
    return answers


def test_damaged_frames_are_taken_or_refused_with_a_code() -> None:
    answers = feed(10_000, seed=0)
    # All eight codes that reading can give: damage that is noticed at the first byte would give fewer.
    assert len(answers) == 9
    assert answers["taken or pending"] < 6_000


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


@settings(max_examples=300, deadline=None)
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
        written.append(msgspec.json.encode(changed))
    for body in written:
        with contextlib.suppress(BadMessageError):
            take(body)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([b"{", b" ", b'{"type":', b""]),
    st.binary(max_size=60),
)
def test_any_bytes_are_taken_or_refused_with_a_code(begin: bytes, rest: bytes) -> None:
    with pytest.raises(BadMessageError):
        take(begin + rest + b"\xc1")
