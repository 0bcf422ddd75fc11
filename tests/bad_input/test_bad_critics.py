"""What is wrong with a user's hook, loss, modules or critic rows is said in one line that names the policy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from menv import PolicySpec, SampleBatch
from menv.algorithms import PPO, PPOPolicy, compute_advantages
from menv.errors import ConfigError, ContractError, MenvError
from tests.algorithms_e2e.shifts import Shifts
from tests.worlds import like

SMALL: dict[str, Any] = {
    "rollout_fragment_length": 5,
    "train_batch_size": 5,
    "sgd_minibatch_size": 8,
    "seed": 1,
}


def train_with(policy: Any, **config: Any) -> None:
    """Train once with one policy for all agents."""
    with PPO(env=Shifts, config={**SMALL, **config, "multiagent": {"policies": {"p": policy}}}) as algo:
        algo.train()


def said(error: type[MenvError], policy: Any, **config: Any) -> str:
    """Return the one line that is said."""
    with pytest.raises(error) as caught:
        train_with(policy, **config)
    message = str(caught.value)
    assert "\n" not in message
    assert ", expected " in message
    assert "; " in message
    return message


def short_column(batch: Any) -> Any:
    batch["joint"] = np.zeros(batch.count - 1)
    return batch


def bare(batch: Any) -> Any:
    return SampleBatch({"obs": batch["obs"]}, batch.segments)


def sometimes(batch: Any) -> Any:
    if batch.count > 1:
        batch["joint"] = np.zeros(batch.count)
    return batch


def ragged(batch: Any) -> Any:
    batch["joint"] = np.zeros((batch.count, batch.count))
    return batch


HOOKS = [
    (lambda batch: None, ContractError, "postprocess_trajectory, agent 'a': .*NoneType"),
    (dict, ContractError, "postprocess_trajectory, agent 'a': .*dict"),
    (lambda batch: batch[0:1], ContractError, "postprocess_trajectory, agent 'a': .*1 rows.*3 rows"),
    (bare, ContractError, "'action_dist_inputs'"),
    (short_column, ConfigError, "'joint'.*2 rows.*3"),
    (sometimes, ContractError, "'joint'"),
    (ragged, ContractError, "'joint'"),
]


@pytest.mark.parametrize(("hook", "error", "message"), HOOKS)
def test_a_hook_that_returns_something_else_is_named(hook: Any, error: Any, message: str) -> None:
    bad = like(PPOPolicy, postprocess_trajectory=lambda self, batch, *others: hook(batch))
    assert re.search(message, said(error, PolicySpec(bad)))


def far(policy: Any, batch: Any) -> Any:
    return policy.network.values(batch["obs"]).mean() / 0.0


LOSSES = [
    (lambda policy, batch: 0.5, "float"),
    (lambda policy, batch: None, "NoneType"),
    (lambda policy, batch: policy.network.values(batch["obs"]), r"\(8,\)"),
    (lambda policy, batch: torch.zeros(()), "gradient"),
    (far, "inf|nan"),
    (lambda policy, batch: (policy.ppo_loss(batch)[0], {"x": torch.zeros(2)}), r"'x'.*\(2,\)"),
    (lambda policy, batch: (policy.ppo_loss(batch)[0], 3), r"\(\)"),
]


@pytest.mark.parametrize(("loss", "message"), LOSSES)
def test_an_invalid_loss_is_named(loss: Any, message: str) -> None:
    bad = like(PPOPolicy, loss=lambda self, batch: loss(self, batch))
    assert re.search(f"policy 'p'.*loss.*{message}", said(ContractError, PolicySpec(bad)))


def test_statistics_that_come_and_go_are_named() -> None:
    class Bad(PPOPolicy):
        calls = 0

        def loss(self, batch: Any) -> Any:
            self.calls += 1
            return self.ppo_loss(batch)[0], {f"call_{self.calls}": 1.0}

    assert re.search(r"\['call_2'\].*\['call_1'\]", said(ContractError, PolicySpec(Bad)))


MODULES = [
    ([nn.Linear(2, 1)], "make_modules returned list"),
    ({"critic": 3}, "make_modules returned dict"),
    ({"value": nn.Linear(2, 1)}, "'value'"),
    ({"critic": nn.BatchNorm1d(2)}, "'running_mean'"),
    ({"critic": nn.Linear(2, 1, dtype=torch.float64)}, "'weight'"),
]


@pytest.mark.parametrize(("modules", "message"), MODULES)
def test_modules_that_cannot_be_trained_are_named(modules: Any, message: str) -> None:
    assert message in said(ConfigError, PolicySpec(like(PPOPolicy, make_modules=lambda self: modules)))


def test_weights_of_another_class_are_refused() -> None:
    mine = like(PPOPolicy, make_modules=lambda self: {"critic": nn.Linear(2, 1)})
    multiagent = {
        "policies": {"p": PolicySpec(mine), "q": None},
        "policy_mapping_fn": lambda agent, **kw: "p",
    }
    with PPO(env=Shifts, config={**SMALL, "multiagent": multiagent}) as algo:
        weights = algo.get_weights()
        with pytest.raises(ConfigError, match=r"'critic.weight'"):
            algo.set_weights({"p": weights["q"]})
        with pytest.raises(ConfigError, match=r"'critic.bias'"):
            algo.set_weights({"q": weights["p"]})


def rows(count: int, width: int, value: float = 0.0) -> Any:
    return lambda batch, others, episode: np.full((batch.count + count, width), value)


def test_a_critic_of_all_agents_without_known_agents_is_refused() -> None:
    secret = like(Shifts, possible_agents=(), get_agent_ids=lambda self: set())
    with pytest.raises(ConfigError, match="possible_agents"):
        PPO(env=secret, config={**SMALL, "critic_obs": "all_agents"})


def test_advantages_without_values_are_refused() -> None:
    bad = like(PPOPolicy, postprocess_trajectory=lambda self, batch, *others: compute_advantages(batch))
    assert "compute_advantages: vf_preds" in said(ContractError, PolicySpec(bad))
