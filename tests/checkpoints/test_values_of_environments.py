"""What environments are given comes back from a checkpoint as what it was, or has to be given again."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest

from menv.algorithms import PPOConfig
from menv.algorithms.config.read_config import read_config
from menv.algorithms.config.stored_config import restored_config, stored_config
from menv.errors import ConfigError
from menv.policy_map import PolicyMap


@dataclasses.dataclass
class Options:
    """What somebody may give an environment."""

    size: int = 3


class Point(NamedTuple):
    """Likewise."""

    x: int = 3


class Mode(enum.StrEnum):
    """Likewise."""

    HARD = "hard"


class Level(enum.IntEnum):
    """Likewise."""

    HIGH = 2


class Seconds(float):
    """Likewise."""


class Words(list[str]):
    """Likewise."""


def test_environments_are_given_tuples_again_and_nothing_in_the_place_of_something_else() -> None:
    def again(value: Any) -> Any:
        config = read_config(PPOConfig, {"env": "CartPole-v1", "env_config": {"value": value}})
        stored = json.loads(json.dumps(stored_config(config, PolicyMap())))
        return restored_config(PPOConfig, stored, None).env_config["value"]

    assert again((3, (1, 2.5), [("a",)])) == (3, (1, 2.5), [("a",)])
    of_numpy = again([np.float64(0.5), np.str_("a"), {np.str_("b"): np.int8(1)}, math.inf, True])
    assert of_numpy == [0.5, "a", {"b": 1}, math.inf, True]
    near = (Mode.HARD, [Level.HIGH], Seconds(1.0), Seconds("inf"), Words(), OrderedDict(a=1), {Mode.HARD: 1})
    for value in (Options(), [Point()], *near):
        with pytest.raises(
            ConfigError, match=r"\['value'\].* was an instance of .*, which a checkpoint holds by"
        ):
            again(value)


def test_what_is_given_again_is_what_it_was() -> None:
    config = read_config(PPOConfig, {"env": "CartPole-v1", "env_config": {"mode": Mode.HARD}})
    stored = json.loads(json.dumps(stored_config(config, PolicyMap())))
    found = restored_config(PPOConfig, stored, {"env_config": {"mode": Mode.HARD}})
    assert found.env_config["mode"] is Mode.HARD
