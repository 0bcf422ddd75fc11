"""Frames: bodies come out of a stream however it is cut, and what is no frame is told at once."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from menv.serving.protocol import MOST_BODY_BYTES, BadMessageError, ErrorCode, Frames, frame

D1_FRAMES = {
    "PING": b'00000016{"type": "PING"}',
    "PONG": b'00000016{"type": "PONG"}',
    "GET_CONFIG": b'00000022{"type": "GET_CONFIG"}',
}
"""What clients of RLlink's JSON days put on the wire, byte for byte."""


@pytest.mark.parametrize("name", D1_FRAMES)
def test_the_frames_of_the_json_days_are_these_bytes(name: str) -> None:
    body = json.dumps({"type": name}).encode()
    assert frame(body) == D1_FRAMES[name]
    assert Frames(100).feed(D1_FRAMES[name]) == [body]


def test_compact_json_and_msgpack_are_framed_by_their_bytes() -> None:
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


def test_a_frame_that_has_begun_is_pending_with_its_header() -> None:
    frames = Frames(100)
    for count, byte in enumerate(b"00000003ab", start=1):
        assert frames.feed(bytes([byte])) == []
        assert frames.pending == count
    assert frames.feed(b"c00") == [b"abc"]
    assert frames.pending == 2


@pytest.mark.parametrize(
    "header",
    [
        b"      16",
        b"+0000016",
        b"0000_016",
        b"-0000001",
        b"0x000010",
        b"GET / HTTP",
        b"\xd9\xa0" * 4,
        b"\x16\x03\x01",
    ],
)
def test_a_header_of_other_bytes_than_digits_is_told(header: bytes) -> None:
    with pytest.raises(BadMessageError, match="expected the length of the body in 8 ASCII digits") as caught:
        Frames(100).feed(header)
    assert caught.value.code is ErrorCode.BAD_FRAME


def test_another_protocol_is_told_from_its_first_byte_on() -> None:
    with pytest.raises(BadMessageError, match="bad_frame"):
        Frames(100).feed(b"G")


def test_a_body_beyond_the_limit_is_refused_before_it_comes_and_the_setting_is_named() -> None:
    assert Frames(100).feed(b"00000100") == []
    with pytest.raises(BadMessageError, match=r"101 bytes, expected at most 100.*Limits\.max_body") as caught:
        Frames(100).feed(b"00000101")
    assert caught.value.code is ErrorCode.TOO_LARGE


def test_a_broken_stream_stays_broken_and_what_came_before_can_be_had() -> None:
    frames = Frames(100)
    with pytest.raises(BadMessageError):
        frames.feed(frame(b"one") + frame(b"two") + b"three")
    assert frames.completed == [b"one", b"two"]
    assert frames.pending == 0
    with pytest.raises(BadMessageError, match="bad_frame"):
        frames.feed(frame(b"four"))


def test_a_body_that_eight_digits_cannot_count_is_not_framed() -> None:
    class Endless(bytes):
        def __len__(self) -> int:
            return MOST_BODY_BYTES + 1

    with pytest.raises(BadMessageError, match="at most 99999999; send it in several messages"):
        frame(Endless())


@pytest.mark.alone
def test_ten_times_the_small_pieces_take_about_ten_times_as_long() -> None:
    """With copies of everything that waits it would be a hundred times."""

    def seconds(size: int) -> float:
        stream, frames = frame(bytes(size)), Frames(size)
        start = time.perf_counter()
        for begin in range(0, len(stream), 16):
            frames.feed(stream[begin : begin + 16])
        return time.perf_counter() - start

    seconds(200_000)
    assert min(seconds(2_000_000) for _ in range(3)) < 40 * min(seconds(200_000) for _ in range(3))
