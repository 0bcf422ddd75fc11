"""Spaces of every kind that the wire knows, for tests: drawn by hypothesis, and how their elements are compared."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

S = gym.spaces

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
float_boxes = st.builds(
    lambda shape, bounds, dtype: S.Box(bounds[0], bounds[1], shape, dtype),
    shapes,
    st.sampled_from([(-np.inf, np.inf), (-1.0, np.inf), (-np.inf, 0.5), (-1e4, 1e4), (0.25, 0.5)]),
    st.sampled_from([np.float32, np.float64, np.float16]),
)
int_boxes = st.builds(
    lambda shape, dtype: S.Box(np.iinfo(dtype).min // 4, np.iinfo(dtype).max // 4, shape, dtype),
    shapes,
    st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.uint64, np.uint16]),
)
uneven_boxes = st.just(
    S.Box(np.array([-1.0, -np.inf, 0.0], np.float32), np.array([1.0, 0.0, np.inf], np.float32))
)
flags = st.builds(lambda shape: S.Box(0, 1, shape, np.bool_), shapes)  # type: ignore[arg-type]
discrete = st.builds(lambda n, start: S.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5))
multi_discrete = st.sampled_from(
    [
        S.MultiDiscrete([2, 3]),
        S.MultiDiscrete(np.array([[2, 3], [4, 5]])),
        S.MultiDiscrete([2, 3], start=[1, -1]),
    ]
)
multi_binary = st.sampled_from([S.MultiBinary(3), S.MultiBinary([2, 2])])
text = st.just(S.Text(5, min_length=0, charset='ab"\\é\U0001f600 '))
leaves: st.SearchStrategy[Any] = st.one_of(
    float_boxes, int_boxes, uneven_boxes, flags, discrete, multi_discrete, multi_binary, text
)
NUMBERS = (S.Box, S.Discrete, S.MultiDiscrete, S.MultiBinary)
"""Spaces whose elements are arrays of numbers, columns of which may be packed."""
keys = st.sampled_from(["a", "with space", "", "'", "é", "$", "f0", "type"])
spaces: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3).map(S.Tuple) | st.dictionaries(keys, inner, max_size=3).map(S.Dict)
    ),
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    """Return whether two elements, or columns of them, are equal in structure, dtype, shape and to the last bit."""
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return isinstance(b, tuple | list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, str):
        return bool(a == b)
    a, b = np.asarray(a), np.asarray(b)
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
