"""How many threads torch has while a policy learns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from menv import PolicySpec
from menv.algorithms import PPO, PPOPolicy


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("settings", "count"), [({}, 1), ({"torch_threads": 2}, 2), ({"torch_threads": None}, 3)]
)
def test_torch_learns_with_the_number_of_threads_of_the_config(settings: dict[str, Any], count: int) -> None:
    seen: set[int] = set()

    class Counts(PPOPolicy):
        def loss(self, batch: Mapping[str, Tensor]) -> Any:
            seen.add(torch.get_num_threads())
            return self.ppo_loss(batch)

    torch.set_num_threads(3)
    multi = {"policies": {"default_policy": PolicySpec(Counts)}}
    sizes = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1}
    with PPO(env="CartPole-v1", config={**sizes, "multiagent": multi, **settings}) as algorithm:
        algorithm.train()
    assert seen == {count}
