"""Who imports what is elsewhere, or what the classic API had, is told where it is."""

from __future__ import annotations

import importlib
import re

import pytest

from menv.classic_imports import ELSEWHERE

PACKAGES = ("menv", "menv.algorithms", "menv.serving", "menv.wrappers")
CASES = [
    (package, name)
    for package in PACKAGES
    for name in ELSEWHERE
    if name not in importlib.import_module(package).__all__
]


@pytest.mark.parametrize(("package", "name"), CASES)
def test_an_import_from_the_wrong_place_says_what_to_write(package: str, name: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(f"from {package} import {name}", {})
    assert str(caught.value) == f"{package} has no {name!r}; {ELSEWHERE[name]}"


@pytest.mark.parametrize("advice", sorted(set(ELSEWHERE.values())))
def test_what_is_to_be_written_can_be_written(advice: str) -> None:
    for found in re.findall(r"from \S+ import \w+", advice):
        exec(found, {})


@pytest.mark.parametrize(
    ("module", "name", "write"),
    [
        ("ppo", "PPOTrainer", "write from menv.algorithms import PPO"),
        ("ppo", "PPOTorchPolicy", "write from menv.algorithms import PPOPolicy"),
        ("dqn", "DQNTrainer", "write from menv.algorithms import DQN"),
        ("qmix", "QMixTrainer", "write from menv.algorithms import QMIX"),
    ],
)
def test_the_modules_of_algorithms_say_what_took_the_place_of_classic_names(
    module: str, name: str, write: str
) -> None:
    found = importlib.import_module(f"menv.algorithms.{module}")
    with pytest.raises(AttributeError, match=f"has no attribute '{name}', expected one of .*; {write}$"):
        getattr(found, name)
    with pytest.raises(ImportError, match=f"^menv.algorithms.{module} has no '{name}'; {write}$"):
        exec(f"from menv.algorithms.{module} import {name}", {})
    assert not hasattr(found, "trian")


def test_any_other_name_is_missing_in_the_usual_words() -> None:
    menv = importlib.import_module("menv")
    assert not hasattr(menv, "trian")
    assert not hasattr(menv, "PPO")
    with pytest.raises(
        AttributeError, match=r"no attribute 'PPO', .*; write from menv.algorithms import PPO$"
    ):
        _ = menv.PPO
    with pytest.raises(AttributeError, match=r"^module 'menv' has no attribute 'trian', expected one of"):
        _ = menv.trian
