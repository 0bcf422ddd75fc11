"""The PPO learner: what it reports, that it learns, and that seeds and state decide everything."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from menv.algorithms import PPOConfig
from menv.algorithms.networks.stock_graphs import StockGraphs
from menv.algorithms.networks.stock_spec import StockSpec
from menv.algorithms.ppo.learner import PPOLearner, explained_variance
from menv.errors import ConfigError
from menv.inference.heads.categorical import Categorical, MultiCategorical
from menv.inference.heads.gaussian import Gaussian
from menv.inference.heads.head import ActionHead
from menv.inference.onnx_backend import OnnxBackend
from tests.algorithms.ppo_rows import Columns, acting_of, rows_of

STATS = {
    "policy_loss",
    "vf_loss",
    "entropy",
    "kl",
    "vf_explained_var",
    "total_loss",
    "cur_lr",
    "cur_kl_coeff",
    "grad_gnorm",
    "entropy_coeff",
}
HEADS = [Categorical((3,)), MultiCategorical((3, 2)), Gaussian((2,))]


def batch_for(spec: StockSpec, weights: Any, rows: int, seed: int = 0) -> Columns:
    """Rows as the sampler delivers them; some first actions are good."""
    batch = rows_of(spec, weights, rows, masked=bool(spec.head.mask_width), seed=seed)
    first = batch["actions"].reshape(rows, -1)[:, 0]
    good = first > 0.0 if spec.head.kind == "gaussian" else first == 1
    advantages = np.where(good, 1.0, -1.0).astype(np.float32)
    values = acting_of(spec, weights).values(0, batch["obs"])
    return {**batch, "advantages": advantages, "value_targets": values + advantages}


def learner_and_batch(
    head: ActionHead = HEADS[0], rows: int = 64, seed: int = 0, share: bool = False, **settings: Any
) -> tuple[PPOLearner, Columns]:
    spec = StockSpec(4, head, (16,), vf_share_layers=share)
    weights = spec.first_weights(1)
    settings = {"sgd_minibatch_size": 16, "lr": 1e-2, **settings}
    return PPOLearner(spec, PPOConfig(**settings), weights, seed), batch_for(spec, weights, rows)


@pytest.mark.each_value
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 17, 64])
def test_every_batch_is_answered_with_the_same_finite_numbers(
    head: ActionHead, share: bool, rows: int
) -> None:
    learner, batch = learner_and_batch(head, rows, share=share, kl_coeff=0.2, entropy_coeff=0.01)
    stats = learner.learn(batch, 0)
    assert set(stats) == STATS
    assert all(type(value) is float and math.isfinite(value) for value in stats.values())


def test_the_total_loss_is_the_weighted_sum_of_the_reported_terms() -> None:
    settings: dict[str, Any] = {
        "kl_coeff": 0.2,
        "entropy_coeff": 0.01,
        "vf_loss_coeff": 0.7,
        "normalize_values": False,
    }
    learner, batch = learner_and_batch(**settings)
    stats = learner.learn(batch, 0)
    parts = stats["policy_loss"] + 0.7 * stats["vf_loss"] - 0.01 * stats["entropy"] + 0.2 * stats["kl"]
    assert stats["total_loss"] == pytest.approx(parts, abs=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_good_actions_become_likelier_and_values_come_closer(head: ActionHead) -> None:
    learner, batch = learner_and_batch(head, rows=256)
    learner.learn(batch, 0)
    spec = StockSpec(4, head, (16,))
    acting = OnnxBackend(StockGraphs(spec), head, [learner.weights()])
    logp = acting.evaluate(0, batch["obs"], batch.get("action_mask"), batch["actions"]).logp
    change = logp - batch["action_logp"]
    good = batch["advantages"] > 0
    assert change[good].mean() > change[~good].mean() + 0.1
    before = np.square(batch["advantages"]).mean()
    assert np.square(batch["value_targets"] - acting.values(0, batch["obs"])).mean() < before


def test_one_step_of_gradient_descent_is_the_one_worked_out_by_hand() -> None:
    # One linear layer on a constant observation, two rows of a fair coin with advantages 1 and -1: normalised
    # they stay so. The gradient of the loss for logit 0 is -(1 * 0.5 + -1 * -0.5) / 2 = -0.5, for the value
    # bias 2 * (0 - 3) = -6, halved. Adam's first step has the size of the learning rate.
    spec = StockSpec(1, Categorical((2,)), hiddens=())
    zeros = {name: np.zeros(shape, np.float32) for name, shape in spec.weight_shapes().items()}
    settings = PPOConfig(
        lr=0.01, num_sgd_iter=1, sgd_minibatch_size=2, grad_clip=None, normalize_values=False
    )
    learner = PPOLearner(spec, settings, zeros, 0)
    batch: Columns = {
        "obs": np.zeros((2, 1), np.float32),
        "actions": np.array([0, 1]),
        "action_logp": np.full(2, -math.log(2.0), np.float32),
        "action_dist_inputs": np.zeros((2, 2), np.float32),
        "advantages": np.array([1.0, -1.0], np.float32),
        "value_targets": np.array([3.0, 3.0], np.float32),
    }
    stats = learner.learn(batch, 0)
    assert stats["policy_loss"] == pytest.approx(0.0, abs=1e-6)
    assert stats["vf_loss"] == pytest.approx(9.0)
    assert stats["entropy"] == pytest.approx(math.log(2.0))
    assert stats["grad_gnorm"] == pytest.approx(math.sqrt(0.5**2 + 0.5**2 + 3.0**2), rel=1e-5)
    weights = learner.weights()
    np.testing.assert_allclose(weights["policy.out.bias"], [0.01, -0.01], rtol=1e-3)
    np.testing.assert_allclose(weights["value.out.bias"], [0.01], rtol=1e-3)


def test_schedules_are_read_at_the_env_steps_of_the_run() -> None:
    learner, batch = learner_and_batch(
        lr_schedule=[[0, 1e-2], [1000, 0.0]], entropy_coeff_schedule=[[100, 0.4], [200, 0.2]]
    )
    at = {env_steps: learner.learn(batch, env_steps) for env_steps in (0, 150, 5000)}
    assert [stats["cur_lr"] for stats in at.values()] == pytest.approx([1e-2, 8.5e-3, 0.0])
    assert [stats["entropy_coeff"] for stats in at.values()] == pytest.approx([0.4, 0.3, 0.2])


def test_the_kl_term_grows_after_a_large_update_and_0_switches_it_off_for_good() -> None:
    eager, batch = learner_and_batch(kl_coeff=0.2, kl_target=1e-6)
    off, _ = learner_and_batch(kl_coeff=0.0, kl_target=1e-6)
    assert [eager.learn(batch, 0)["cur_kl_coeff"] for _ in range(2)] == pytest.approx([0.2, 0.3])
    assert [off.learn(batch, 0)["cur_kl_coeff"] for _ in range(2)] == [0.0, 0.0]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_box_actions_begin_with_the_kl_term_and_choices_go_without_it(head: ActionHead) -> None:
    learner, batch = learner_and_batch(head)
    assert learner.learn(batch, 0)["cur_kl_coeff"] == (0.2 if head.kind == "gaussian" else 0.0)


def test_an_empty_batch_is_refused() -> None:
    learner, batch = learner_and_batch()
    with pytest.raises(ConfigError, match="0 rows"):
        learner.learn({name: value[:0] for name, value in batch.items()}, 0)


def test_explained_variance_of_perfect_useless_and_constant_targets() -> None:
    targets = np.array([1.0, 2.0, 3.0])
    assert explained_variance(targets, np.zeros(3)) == 1.0
    assert explained_variance(targets, targets - 7.0) == pytest.approx(0.0)
    assert explained_variance(targets, 10.0 * targets) == -1.0
    assert explained_variance(np.ones(3), targets) == 0.0


def test_a_schedule_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ConfigError, match="lr_schedule"):
        PPOConfig(lr_schedule=[[100, 1.0], [0, 0.5]])


@pytest.mark.parametrize(
    "value", [5, [1, 2], [["0", 1.0], ["5", 2.0]], [[0, math.nan], [5, 1.0]], [[0, 1.0], [5]], []]
)
@pytest.mark.parametrize("name", ["lr_schedule", "entropy_coeff_schedule"])
def test_an_invalid_schedule_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        PPOConfig(**{name: value})


def test_a_learning_rate_never_falls_below_0_but_entropy_may_be_a_cost() -> None:
    with pytest.raises(ConfigError):
        PPOConfig(lr_schedule=[[0, 1e-3], [1000, -1e-3]])
    assert PPOConfig(entropy_coeff_schedule=[[0, -0.1], [1000, 0.0]]).entropy_coeff_at(0) == -0.1


def test_settings_are_frozen_and_refuse_no_epochs() -> None:
    with pytest.raises(ConfigError, match="num_sgd_iter"):
        PPOConfig(num_sgd_iter=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPOConfig().lr = 1.0  # type: ignore[misc]
