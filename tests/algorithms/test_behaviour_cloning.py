"""Behaviour cloning in PPO's loss: by hand, alone, and beside rows that the policy chose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from menv.algorithms import PPOConfig
from menv.algorithms.networks.stock_spec import StockSpec
from menv.algorithms.ppo.learner import PPOLearner
from menv.algorithms.ppo.loss import cloning_loss
from menv.inference.heads.categorical import Categorical
from menv.sample_batch import SampleBatch
from tests.written_batches import batch

CHOICE = Categorical((2,))


def test_the_loss_is_the_mean_negative_log_likelihood_by_hand() -> None:
    # Two choices with probabilities 1/4 and 3/4, then 1/2 each; the actions are 1 and 0.
    logits = torch.tensor([[0.0, math.log(3.0)], [5.0, 5.0]], requires_grad=True)
    loss = cloning_loss(CHOICE, logits, torch.tensor([1, 0]))
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)
    torch.autograd.backward(loss)
    # The gradient of a row is (probabilities - chosen) / rows.
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad, [[0.125, -0.125], [-0.25, 0.25]], atol=1e-6)


def rows(foreign: list[bool]) -> SampleBatch:
    made = batch([len(foreign)])
    count = len(foreign)
    columns: dict[str, Any] = {
        "actions": np.arange(count) % 2, "action_logp": np.full(count, -math.log(2), np.float32),
        "action_dist_inputs": np.zeros((count, 2), np.float32), "off_policy": np.array(foreign),
        "advantages": np.linspace(-1, 1, count, dtype=np.float32), "vf_preds": np.zeros(count, np.float32),
        "value_targets": np.zeros(count, np.float32), "obs": (np.arange(count) % 2).astype(np.float32)[:, None],
    }  # fmt: skip
    for name, column in columns.items():
        made[name] = column
    return made


def learner(**settings: object) -> PPOLearner:
    spec = StockSpec(1, CHOICE, (8,), "tanh")
    return PPOLearner(spec, PPOConfig(**settings), spec.first_weights(0), 0)  # type: ignore[arg-type]


def test_recorded_rows_alone_are_cloned() -> None:
    one = learner(bc_weight=2.0, lr=0.01, num_sgd_iter=100)
    first = one.learn(rows([True] * 40), 0)
    last = one.learn(rows([True] * 40), 0)
    assert last["bc_loss"] < first["bc_loss"] < math.log(2)
    assert last["bc_weight"] == 2.0
    assert "policy_loss" not in last


def test_both_losses_are_added_and_the_schedule_ends_the_second_one() -> None:
    one = learner(bc_weight_schedule=[[0, 1.0], [100, 0.0]], num_sgd_iter=1, sgd_minibatch_size=100)
    mixed = rows([False, True] * 20)
    stats = one.learn(mixed, 50)
    terms = stats["policy_loss"] + 0.5 * stats["vf_loss"] + stats["bc_weight"] * stats["bc_loss"]
    assert stats["bc_weight"] == 0.5
    assert stats["total_loss"] == pytest.approx(terms, rel=1e-5)
    assert "bc_loss" not in one.learn(mixed, 100)
    assert one.learn(rows([True] * 4), 100) == {"bc_weight": 0.0}
