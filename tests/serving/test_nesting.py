"""Levels are counted as a parser would go down, and a raised recursion limit does not open the stack to peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from menv.serving.protocol import json_levels, msgpack_levels
from tests.house.sources import ROOT

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


@pytest.mark.slow
@given(values)
def test_levels_are_counted_in_json_whatever_texts_hold(value: Any) -> None:
    assert json_levels(json.dumps(value).encode()) == levels(value)
    assert json_levels(json.dumps(value, ensure_ascii=False, indent=1).encode()) == levels(value)


@given(values | st.binary(max_size=300) | st.lists(st.text(max_size=70), min_size=16, max_size=18))
def test_levels_are_counted_in_msgpack(value: Any) -> None:
    assert msgpack_levels(msgspec.msgpack.encode(value)) == levels(value)


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


@given(values, st.data())
def test_a_value_that_breaks_off_has_no_more_levels_than_the_whole(value: Any, data: st.DataObject) -> None:
    for count, encoded in (
        (json_levels, json.dumps(value).encode()),
        (msgpack_levels, msgspec.msgpack.encode(value)),
    ):
        part = encoded[: data.draw(st.integers(0, len(encoded)))]
        assert count(part) <= levels(value)


@pytest.mark.slow_unless("*PING*3_900_000*", '*{"x":*')
@pytest.mark.parametrize(
    "body",
    [
        """b'{"type": "PING", "x": ' + b"[" * 3_900_000""",
        """b'{"type": "PING", "x": ' + b'{"x":' * 700_000""",
        r"""b"\x82\xa4type\xa4PING\xa1x" + b"\x91" * 3_900_000""",
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
