"""A policy whose class refuses to be created: nothing of it is left, and its id may be used again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from menv import PolicySpec, SampleBatch
from menv.algorithms import PPO, PPOPolicy
from menv.errors import ConfigError
from tests.algorithms_e2e.comings import Comings

FLAT: dict[str, Any] = {"fcnet_hiddens": [8]}
CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 2,
    "train_batch_size": 80,
    "sgd_minibatch_size": 64,
    "num_sgd_iter": 1,
    "seed": 1,
    "model": FLAT,
}


class Broken(PPOPolicy):
    def make_modules(self) -> dict[str, nn.Module]:
        raise ValueError("no such file")


class OwnLoss(PPOPolicy):
    def loss(self, batch: Any) -> Any:
        return self.ppo_loss(batch)


def new(*args: Any, **kwargs: Any) -> str:
    return "new"


REFUSED = [
    (PolicySpec(policy_class=Broken), ValueError, "no such file"),
    # This one would have had networks of its own.
    (
        PolicySpec(policy_class=OwnLoss, config={"model": {"use_lstm": True}}),
        ConfigError,
        "on a recurrent network",
    ),
]


@pytest.mark.parametrize(("spec", "error", "message"), REFUSED)
@pytest.mark.parametrize("model", [FLAT, {**FLAT, "shared_layers": "all"}], ids=str)
def test_a_class_that_refuses_leaves_nothing_behind(
    spec: PolicySpec, error: type[Exception], message: str, model: dict[str, Any]
) -> None:
    if "shared_layers" in model and error is ConfigError:
        spec = PolicySpec(
            policy_class=OwnLoss, config={"model": {"use_lstm": True, "shared_layers": "another"}}
        )
    with PPO(env=Comings, config={**CONFIG, "model": model}) as algorithm:
        with pytest.raises(error, match=message):
            algorithm.add_policy("new", spec, policy_mapping_fn=new)
        assert list(algorithm.get_weights()) == ["default_policy"] == list(algorithm.inference)
        assert list(algorithm.train()["info"]) == ["default_policy", "learner"]

        algorithm.add_policy("new", PolicySpec(policy_class=OwnLoss), policy_mapping_fn=new)
        before = algorithm.get_weights("new")["new"]
        for _ in range(3):
            result = algorithm.train()
        after = algorithm.get_weights("new")["new"]
        # What acts is what has learned.
        algorithm.set_weights({"new": {name: value * 0 for name, value in after.items()}})
        algorithm.sample()
        drawn_from = algorithm.sample()["new"]["action_dist_inputs"]
    assert "new" in result["info"]
    assert all((before[name] != after[name]).any() for name in before)
    assert not drawn_from.any()


def test_another_class_under_an_old_id_may_leave_other_columns() -> None:
    def leaving(column: str) -> type[PPOPolicy]:
        class Leaves(PPOPolicy):
            def postprocess_trajectory(
                self, batch: SampleBatch, other_agent_batches: Any = None, episode: Any = None
            ) -> SampleBatch:
                batch[column] = np.zeros(batch.count, np.float32)
                return batch

        return Leaves

    def rest(*args: Any, **kwargs: Any) -> str:
        return "default_policy"

    with PPO(env=Comings, config=CONFIG) as algorithm:
        for column in ("one", "two"):
            algorithm.add_policy("new", PolicySpec(policy_class=leaving(column)), policy_mapping_fn=new)
            algorithm.train()
            assert column in algorithm.sample()["new"]
            algorithm.remove_policy("new", policy_mapping_fn=rest)
            algorithm.train()
