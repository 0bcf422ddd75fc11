"""Spaces survive JSON, and what describes no space is refused by name."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.errors import ConfigError
from menv.serialization import space_from_json, space_to_json

S = gym.spaces
FLAG: Any = np.bool_
SPACES = [
    S.Box(-1.0, 1.0, (3,), np.float32),
    S.Box(-np.inf, np.inf, (), np.float64),
    S.Box(0, 255, (4, 4, 3), np.uint8),
    S.Box(np.array([-1.1, -np.inf], np.float32), np.array([0.1, 2.0], np.float32)),
    S.Box(np.array([[-(2**62)], [5]]), np.array([[2**62 + 1], [6]]), dtype=np.int64),
    S.Box(0, 1, (4,), FLAG),
    S.Box(np.array([False, True]), np.array([True, True]), dtype=FLAG),
    S.Discrete(4, start=-3),
    S.MultiDiscrete([2, 3], start=[1, -1]),
    S.MultiDiscrete(np.array([[2, 3], [4, 5]]), dtype=np.int32),
    S.MultiBinary(3),
    S.MultiBinary([2, 3]),
    S.Text(5, min_length=2, charset="ab\u00e9"),
    S.Dict(OrderedDict([("b", S.Discrete(2)), ("a", S.Discrete(3))])),
    S.Tuple([S.Discrete(2), S.Dict({"b": S.Discrete(2), "a": S.Box(0, 1, (2,))}), S.Tuple([])]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_comes_back_equal_with_its_order_and_types(space: Any) -> None:
    back: Any = space_from_json(json.loads(json.dumps(space_to_json(space), allow_nan=False)))
    assert back == space
    assert type(back) is type(space)
    assert back.dtype == space.dtype
    assert str(back) == str(space)
    space.seed(3)
    back.seed(3)
    assert str(back.sample()) == str(space.sample())


@pytest.mark.parametrize(
    "space", [S.Sequence(S.Discrete(2)), S.OneOf([S.Discrete(2)]), S.Tuple([S.Graph(S.Box(0, 1), None)])]
)
def test_a_space_without_a_form_is_refused_by_its_kind(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"Sequence|OneOf|Graph"):
        space_to_json(space)


def _deep(levels: int) -> Any:
    value: Any = {"space": "multi-binary", "n": 1}
    for _ in range(levels):
        value = {"space": "tuple", "spaces": [value]}
    return value


BOX = {"space": "box", "low": 0, "high": 1, "shape": [2], "dtype": "float32"}


@pytest.mark.parametrize(("value", "said"), [
    (None, "tag None"),
    ({"space": ["box"]}, "tag"),
    ({"space": "os.system"}, "'os.system'"),
    ({**BOX, "dtype": "object"}, "'object'"),
    ({**BOX, "dtype": ["f"]}, "dtype"),
    ({**BOX, "low": "nan"}, "'nan'"),
    ({**BOX, "low": True}, "True"),
    ({**BOX, "low": {"base64": "!!"}}, "base64"),
    ({**BOX, "low": {"base64": "AAAA"}}, "float32"),
    ({**BOX, "low": 10**400}, "box"),
    ({**BOX, "low": 2}, "box"),
    ({**BOX, "shape": 2}, "shape"),
    ({**BOX, "shape": [-1]}, "-1"),
    ({**BOX, "shape": [1 << 30, 1 << 30]}, "numbers"),
    ({"space": "discrete", "n": 0, "start": 0, "dtype": "int64"}, "0"),
    ({"space": "discrete", "n": 2, "start": 1.5, "dtype": "int64"}, "start"),
    ({"space": "multi-binary", "n": 1 << 40}, "numbers"),
    ({"space": "tuple", "spaces": 5}, "tuple"),
    ({"space": "dict", "spaces": [["a", BOX], ["a", BOX]]}, "'a'"),
    ({"space": "dict", "spaces": {"a": BOX}}, "dict"),
    ({"space": "tuple", "spaces": [{"space": "tuple", "spaces": []}] * 5000}, "more"),
    (_deep(40), "32"),
    ({"space": "text", "min_length": 3, "max_length": 2, "characters": "a"}, "text"),
])  # fmt: skip
def test_what_describes_no_space_is_refused_in_one_line(value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        space_from_json(value, "somewhere")
    assert str(caught.value).startswith("somewhere: ")
    assert "\n" not in str(caught.value)


def test_a_key_that_is_not_a_string_is_refused() -> None:
    with pytest.raises(ConfigError, match="key 1"):
        space_to_json(S.Dict({1: S.Discrete(2)}))  # type: ignore[dict-item]
