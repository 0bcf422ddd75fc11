"""What changes in a population while workers sample is the same for them as for policies in this process."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from menv import Policy, PolicySpec, RandomPolicy
from menv.errors import ConfigError
from tests.inside import policy_set
from tests.workers.crews import Counting, running, same, weights_of


class Set(Policy):
    """Does what its one weight says."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.chosen = np.zeros(1, np.int64)

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
        return [int(self.chosen[0])] * len(obs_batch), [], {}

    def get_weights(self) -> dict[str, Any]:
        return {"chosen": self.chosen.copy()}

    def set_weights(self, weights: Any) -> None:
        self.chosen = np.array(weights["chosen"])


def to_second(*args: Any, **kwargs: Any) -> str:
    return "second"


def to_first(*args: Any, **kwargs: Any) -> str:
    return "default_policy"


@pytest.mark.slow
def test_weights_of_a_custom_policy_that_are_set_before_another_one_comes_reach_workers() -> None:
    with running(1) as algo:
        algo.add_policy("second", PolicySpec(policy_class=Set), policy_mapping_fn=to_second)
        for _ in range(4):
            algo.sample()
        algo.set_weights({"second": {"chosen": np.ones(1, np.int64)}})
        algo.add_policy("third")
        assert set(algo.sample()["second"]["actions"]) == {1}
        algo.set_weights({"second": {"chosen": np.zeros(1, np.int64)}})
        algo.remove_policy("third")
        assert set(algo.sample()["second"]["actions"]) == {0}


def test_nobody_learns_from_what_was_sampled_ahead_by_a_policy_of_the_same_name() -> None:
    memory = PolicySpec(config={"model": {"fcnet_hiddens": [4], "use_lstm": True}})
    with running(1, overlap=True) as algo:
        algo.add_policy("second", policy_mapping_fn=to_second)
        for _ in range(4):
            algo.train()
        algo.remove_policy("second", policy_mapping_fn=to_first)
        algo.add_policy("second", memory, policy_mapping_fn=to_first)
        before = weights_of(algo)["second"]
        assert all("second" not in algo.train()["info"] for _ in range(2))
        assert same({"second": before}, {"second": weights_of(algo)["second"]})


class Closed(Set):
    """Cannot be sent to a worker."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lock = threading.Lock()


class Drawing(RandomPolicy):
    """Remembers no lives, so that it has no place of one that does."""


@pytest.mark.parametrize("num_workers", [0, 1])
def test_places_of_custom_policies_are_used_again_and_no_policy_answers_for_another(num_workers: int) -> None:
    with running(num_workers, env=Counting, train_batch_size=24) as algo:
        for number in range(8):
            new = f"version {number}"
            algo.add_policy(
                new, PolicySpec(policy_class=Set), policy_mapping_fn=lambda *args, new=new, **kwargs: new
            )
            algo.set_weights({new: {"chosen": np.full(1, number % 2)}})
            if number:
                algo.remove_policy(f"version {number - 1}")
            if num_workers:
                with pytest.raises(ConfigError, match="lock"):
                    algo.add_policy("closed", PolicySpec(policy_class=Closed))
            algo.add_policy(f"drawing {number}", PolicySpec(policy_class=Drawing))
            algo.remove_policy(f"drawing {number}")
            for _ in range(2):
                for policy_id, rows in algo.sample().policy_batches.items():
                    if policy_id.startswith("version"):
                        assert set(rows["actions"]) == {int(policy_id.split()[1]) % 2}
            assert new in algo.sample().policy_batches
        assert len(policy_set(algo).groups) <= 7
