"""How many threads torch has while a policy learns, and at all other times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from menv import PolicySpec
from menv.algorithms import PPO, PPOPolicy
from menv.algorithms.torch_threads import processors, threads_to_learn_with
from menv.errors import ConfigError
from tests.algorithms.test_conv_training import PPO_SETTINGS, Patch

with pytest.MonkeyPatch.context() as _patch:
    _patch.delenv("OMP_NUM_THREADS", raising=False)
    ALL = processors()
SMALL = {"fcnet_hiddens": [8]}
WIDE = {"fcnet_hiddens": [512, 512]}
ROWS: dict[str, Any] = {"train_batch_size": 128, "sgd_minibatch_size": 64, "num_sgd_iter": 1, "seed": 1}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def seen_while_learning(env: Any, model: Any, **settings: Any) -> set[int]:
    """Return the numbers of threads that a policy's loss saw."""
    seen: set[int] = set()

    class Counts(PPOPolicy):
        def loss(self, batch: Mapping[str, Tensor]) -> Any:
            seen.add(torch.get_num_threads())
            return self.ppo_loss(batch)

    multi = {"policies": {"default_policy": PolicySpec(Counts)}}
    with PPO(env=env, config={**ROWS, "model": model, "multiagent": multi, **settings}) as algorithm:
        acting = torch.get_num_threads()
        algorithm.train()
        assert torch.get_num_threads() == acting
    return seen


def test_large_networks_learn_with_all_processors_and_small_ones_with_one() -> None:
    assert seen_while_learning("CartPole-v1", SMALL) == {1}
    assert seen_while_learning("CartPole-v1", WIDE) == {ALL}
    assert seen_while_learning(Patch, PPO_SETTINGS["model"]) == {ALL}


@pytest.mark.parametrize("count", [1, 2])
def test_a_number_holds_for_all(count: int) -> None:
    assert seen_while_learning("CartPole-v1", WIDE, torch_threads=count) == {count}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_whatever_torch_had_before() -> None:
    runs = []
    for before in (1, 3):
        torch.set_num_threads(before)
        with PPO(env="CartPole-v1", config={**ROWS, "model": WIDE}) as algorithm:
            algorithm.train()
            result = algorithm.train()
            runs.append((result["digest"], algorithm.get_weights()["default_policy"]))
    assert runs[0][0] == runs[1][0]
    for name, value in runs[0][1].items():
        np.testing.assert_array_equal(runs[1][1][name], value)


@pytest.mark.parametrize(
    ("setting", "shapes", "rows", "busy", "wanted"),
    [
        ("auto", {"w": (64, 64)}, 4096, 0, ALL),
        ("auto", {"w": (64, 64)}, 4095, 0, None),
        ("auto", {"w": (256, 256), "b": (256,)}, 256, 0, ALL),
        ("auto", {"w": (3, 1, 2, 2)}, 1, 0, ALL),
        ("auto", {"w": (3, 1, 2, 2)}, 1, 1000, 1),
        ("auto", {}, 4096, 0, None),
        (2, {"w": (3, 1, 2, 2)}, 4096, 0, None),
        (None, {"w": (3, 1, 2, 2)}, 4096, 0, None),
    ],
)
def test_what_is_worth_several_threads(
    setting: Any, shapes: Any, rows: int, busy: int, wanted: int | None
) -> None:
    assert threads_to_learn_with(setting, shapes, rows, busy) == wanted


def test_processors_are_no_more_than_the_environment_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert processors() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert processors() == ALL


@pytest.mark.parametrize("value", [0, -1, 1.5, "all", True])
def test_other_numbers_of_threads_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="torch_threads"):
        PPO(env=lambda context: gym.make("CartPole-v1"), config={"torch_threads": value})
