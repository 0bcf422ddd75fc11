"""Walks over nested spaces and values."""

from __future__ import annotations

import collections
from typing import Any

import gymnasium as gym
import numpy as np

from menv.spaces import builder_of, built, columns_of, leaves, own_copy, paths, values_in

spaces = gym.spaces
NESTED = spaces.Dict(
    {"a": spaces.Tuple([spaces.Discrete(2), spaces.Dict({"c": spaces.Discrete(3)})]), "b": spaces.Discrete(4)}
)


def test_leaves_come_in_the_order_of_the_space_with_the_keys_that_lead_to_them() -> None:
    assert [keys for keys, _ in paths(NESTED)] == [("a", 0), ("a", 1, "c"), ("b",)]
    assert [leaf.n for leaf in leaves(NESTED)] == [2, 3, 4]
    assert paths(spaces.Discrete(5)) == [((), spaces.Discrete(5))]


def test_columns_of_elements_build_the_same_elements() -> None:
    NESTED.seed(0)
    elements = [NESTED.sample() for _ in range(5)]
    build = builder_of(NESTED)
    assert [build(row) for row in zip(*columns_of(NESTED, elements), strict=True)] == elements


def test_whatever_is_made_for_leaves_is_nested_as_the_space_is() -> None:
    made = built(NESTED, lambda keys, leaf: (keys[-1], int(leaf.n)))  # type: ignore[attr-defined]
    assert made == {"a": ((0, 2), {"c": ("c", 3)}), "b": ("b", 4)}


def test_values_are_found_and_copied_at_any_depth() -> None:
    pair = collections.namedtuple("pair", "left right")
    arrays = [np.arange(2), np.arange(3), np.arange(4)]
    value: Any = {"x": pair(arrays[0], [arrays[1]]), "y": (arrays[2], 5)}
    assert [id(one) for one in values_in(value)][:3] == [id(array) for array in arrays]
    copied = own_copy(value)
    assert type(copied["x"]) is pair
    for array in arrays:
        array += 1
    assert [one.tolist() for one in [*values_in(copied)][:3]] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
