"""Trees of plain values come back as they were, and nothing else goes in."""

from __future__ import annotations

import enum
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from menv.errors import ConfigError
from menv.serialization import Arrays, digest, from_plain, is_plain, to_plain

KEYS = st.one_of(st.text(), st.integers(), st.booleans(), st.tuples(st.text(), st.integers()))
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(KEYS, inner)),
    max_leaves=20,
)


def there_and_back(tree: Any) -> Any:
    arrays: Arrays = {}
    text = json.dumps(to_plain(tree, arrays), allow_nan=False)
    return from_plain(json.loads(text), arrays)


@given(TREES)
def test_every_plain_tree_comes_back(tree: Any) -> None:
    found = there_and_back(tree)
    assert found == tree
    assert repr(found) == repr(tree)


def test_a_dict_that_looks_like_a_type_mark_stays_a_dict() -> None:
    for tree in ({"$array": "0"}, {"$tuple": [1]}, {"$": {"$dict": 1}}):
        assert there_and_back(tree) == tree


def test_arrays_come_back_with_shape_and_type() -> None:
    column = [(1, np.float32(0.5)), {"a": np.arange(3)}]
    tree = {"a": np.zeros((0, 3), np.float32), "b": np.uint64(2**63), "c": column, "d": np.array(True)}
    found = there_and_back(tree)
    assert (found["a"].shape, found["a"].dtype) == ((0, 3), np.float32)
    assert type(found["b"]) is np.uint64
    assert found["b"] == 2**63
    assert type(found["c"][0][1]) is np.float32
    assert found["c"][1]["a"].tolist() == [0, 1, 2]
    assert found["d"].shape == ()


class Color(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize("value", [object(), len, Color.RED, np.array(["a"]), [{"deep": {1: range(3)}}], 1j])
def test_anything_else_is_refused(value: Any) -> None:
    assert not is_plain(value)
    assert digest(value) is None
    with pytest.raises(ConfigError):
        to_plain(value, {})


@pytest.mark.parametrize(
    "tree", [{"$array": "7"}, {"$class": "os"}, {"$dict": [1]}, {"$float": "x"}, {"$float": 10**400}]
)
def test_unknown_type_marks_are_refused(tree: Any) -> None:
    with pytest.raises(ConfigError, match="to_plain"):
        from_plain(tree, {})


def test_a_digest_tells_values_types_and_shapes_apart() -> None:
    trees: list[Any] = [
        1,
        1.0,
        True,
        "1",
        [1],
        (1,),
        np.int64(1),
        np.int32(1),
        np.array([1]),
        np.array([[1]]),
        {"a": 1},
    ]
    assert len({digest(tree) for tree in trees}) == len(trees)
    assert digest({"a": np.arange(3)}) == digest({"a": np.arange(3)})
