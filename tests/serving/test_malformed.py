"""What is badly made gets a code and a sentence, whatever it is, and is never repeated back."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from menv.serving.protocol import BadMessageError
from tests.serving.corpus import MALFORMED, bodies, take


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
def test_what_is_well_made_is_taken(number: int) -> None:
    body = bodies()[number]
    assert str(type(take(body)).__struct_config__.tag).encode() in body


@pytest.mark.parametrize("number", range(len(bodies())))
def test_a_body_that_breaks_off_anywhere_is_refused(number: int) -> None:
    body = bodies()[number]
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
