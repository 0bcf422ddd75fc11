"""What is badly made gets a code and a sentence, whatever it is, is never repeated back, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.serving.protocol import MOST_BODY_BYTES, BadMessageError, Frames, frame, json_levels, msgpack_levels
from tests.house.sources import ROOT
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


@pytest.mark.parametrize("name", ["two million numbers for episodes", "a million empty episodes"])
def test_a_body_of_millions_of_tiny_parts_does_not_fill_the_memory(name: str) -> None:
    """An object for each part would take ten times the body."""
    body, _ = MALFORMED[name]
    tracemalloc.start()
    with pytest.raises(BadMessageError):
        take(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(body)


@pytest.mark.parametrize("number", range(len(bodies())))
def test_what_is_well_made_is_taken_and_refused_where_it_breaks_off(number: int) -> None:
    body = bodies()[number]
    assert str(type(take(body)).__struct_config__.tag).encode() in body
    for length in range(len(body)):
        with pytest.raises(BadMessageError):
            take(body[:length])


def test_what_was_sent_is_not_repeated_in_the_error() -> None:
    for secret in (b'"hunter2"', b"[1, 2, 3, 0.1234567891]", b'{"hunter2": 1}'):
        body = b'{"type": "GET_CONFIG", "token": %b}' % (b"[" + secret + b"]")
        with pytest.raises(BadMessageError) as caught:
            take(body)
        assert "hunter2" not in str(caught.value)
        assert "1234567891" not in str(caught.value)


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet='[]{}"\\n\\abé\n', max_size=40)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=20) | st.dictionaries(st.text('[{"\\', max_size=3), inner, max_size=20)
    ),
    max_leaves=30,
)


def levels(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(levels, value.values()), default=0)
    return 1 + max(map(levels, value), default=0) if isinstance(value, list) else 0


@given(values | st.binary(max_size=300) | st.lists(st.text(max_size=70), min_size=16, max_size=18), st.data())
def test_levels_are_counted_in_both_dialects_and_those_of_a_part_are_not_more(
    value: Any, data: st.DataObject
) -> None:
    packed = msgspec.msgpack.encode(value)
    written = None if isinstance(value, bytes) else json.dumps(value)
    assert msgpack_levels(packed) == levels(value)
    assert msgpack_levels(packed[: data.draw(st.integers(0, len(packed)))]) <= levels(value)
    if written is not None:
        for body in (written.encode(), json.dumps(value, ensure_ascii=False, indent=1).encode()):
            assert json_levels(body) == levels(value)
            assert json_levels(body[: data.draw(st.integers(0, len(body)))]) <= levels(value)


def test_every_kind_of_value_of_msgpack_is_passed_over() -> None:
    sizes = [0, 1, 31, 32, 255, 256, 65535, 65536]
    kinds: list[Any] = [bytes(size) for size in sizes] + ["x" * size for size in sizes]
    kinds += [msgspec.msgpack.Ext(5, bytes(size)) for size in (0, 1, 2, 4, 8, 16, 17, 256, 65536)]
    kinds += [[0] * size for size in (15, 16, 65535, 65536)] + [
        dict.fromkeys(range(size)) for size in (15, 16, 65536)
    ]
    kinds += [sign * 2**bits for sign in (1, -1) for bits in (0, 5, 7, 8, 15, 16, 31, 32, 62)] + [
        1.5,
        None,
        True,
    ]
    for kind in kinds:
        value = [kind, [[0]]]
        assert msgpack_levels(msgspec.msgpack.encode(value)) == 3


@pytest.mark.slow_unless("*PING*400_000*", '*{"x":*')
@pytest.mark.parametrize(
    "body",
    [
        """b'{"type": "PING", "x": ' + b"[" * 400_000""",
        """b'{"type": "PING", "x": ' + b'{"x":' * 100_000""",
        r"""b"\x82\xa4type\xa4PING\xa1x" + b"\x91" * 400_000""",
        """b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": 1, "info": {"x": ' + b"[" * 60_000""",
    ],
)
def test_a_program_that_raised_its_recursion_limit_is_not_ended_by_deep_nesting(body: str) -> None:
    code = f"""
import sys, threading
from menv.serving.protocol import decode
from menv.serving.protocol import BadMessageError
sys.setrecursionlimit(10_000_000)
def receive():
    try:
        decode({body})
    except BadMessageError as error:
        print(error.code)
threading.stack_size(512 * 1024)
thread = threading.Thread(target=receive)
thread.start()
thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "too_large"), done.stderr


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
        assert Frames(100).feed(framed) == [body]
    assert frame(b'{"type":"PING"}') == b'00000015{"type":"PING"}'
    assert frame(b"\x81\xa4type\xa4PING") == b"00000011\x81\xa4type\xa4PING"
    assert frame(b"") == b"00000000"


@given(st.lists(st.binary(max_size=30), max_size=6), st.data())
def test_a_stream_gives_the_same_bodies_wherever_it_is_cut(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    frames = Frames(30)
    found = [
        body
        for begin, end in itertools.pairwise([0, *cuts, len(stream)])
        for body in frames.feed(stream[begin:end])
    ]
    assert found == bodies
    assert frames.pending == 0


def test_a_header_of_other_bytes_than_digits_is_told_from_its_first_byte_on() -> None:
    wrong = [b"      16", b"+0000016", b"0000_016", b"-0000001", b"0x000010", b"GET / HTTP", b"\xd9\xa0" * 4]
    with serving(TCP) as (server, talks):
        for header in (*wrong, b"\x16\x03\x01", b"G"):
            with Client(TCP, server.addresses[0]) as one:
                one.raw(header)
                assert b"bad_frame: " in (told := one.receive())
                assert b"expected the length of the body in 8 ASCII digits" in told
                assert one.rest() == b""
        assert talks.bodies == []


def test_a_body_that_eight_digits_cannot_count_is_not_framed() -> None:
    class Endless(bytes):
        def __len__(self) -> int:
            return MOST_BODY_BYTES + 1

    with pytest.raises(BadMessageError, match="at most 99999999; send it in several messages"):
        frame(Endless())


MAX_BODY = 100_000


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


def test_damaged_frames_are_taken_or_refused_with_a_code() -> None:
    answers = feed(10_000, seed=0)
    # All eight codes that reading can give: damage that is noticed at the first byte would give fewer.
    assert len(answers) == 9
    assert answers["taken or pending"] < 6_000


def test_damaged_frames_leave_nothing_behind() -> None:
    assert grown_bytes(5_000) < 100_000


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
