"""Gradients worked out by hand agree with autograd, and a learner keeps to one of the two."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from menv.algorithms import PPOConfig
from menv.algorithms.networks.stock_spec import Activation, Cell, StockSpec
from menv.algorithms.ppo.gradients import FORWARD, can_learn
from menv.algorithms.ppo.learner import PPOLearner
from menv.inference.heads.categorical import Categorical, MultiCategorical
from menv.inference.heads.gaussian import Gaussian
from menv.inference.heads.head import ActionHead
from menv.inference.heads.mixed import Mixed
from menv.inference.heads.q_values import QValues
from tests.algorithms.ppo_rows import Columns, rows_of

HEADS = [
    Categorical((1,)),
    Categorical((2,)),
    Categorical((5,)),
    MultiCategorical((3, 2)),
    MultiCategorical((4,)),
    Gaussian((1,)),
    Gaussian((3,)),
    Mixed((2, 0)),
    Mixed((0, 3, 0, 2)),
]
EVERYTHING: dict[str, Any] = {
    "entropy_coeff": 0.02, "kl_coeff": 0.3, "vf_clip_param": 1.0, "magnet_coeff": 0.2, "magnet_tau": 0.3,
}  # fmt: skip
Weights = dict[str, npt.NDArray[np.float32]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weights_for(spec: StockSpec) -> Weights:
    """Weights of a policy that prefers some actions to others; spread differs in each dimension."""
    rng = np.random.default_rng(5)
    found = spec.first_weights(2)
    return {
        name: value + rng.normal(0.0, 0.3, value.shape).astype(np.float32) for name, value in found.items()
    }


def batch_for(spec: StockSpec, weights: Weights, rows: int, masked: bool = False) -> Columns:
    """Rows of another policy, so that ratios are clipped on both sides."""
    other = {name: 0.7 * value for name, value in weights.items()}
    batch = rows_of(spec, other, rows, masked=masked, seed=rows)
    return {**batch, "value_targets": 2.0 * batch["value_targets"]}


def both(spec: StockSpec, **settings: Any) -> tuple[PPOLearner, PPOLearner]:
    """Return a learner that works gradients out by hand and one that leaves them to autograd."""
    chosen = PPOConfig(**{"sgd_minibatch_size": 24, "num_sgd_iter": 2, "lr": 1e-3, **settings})
    by_hand, by_autograd = (
        PPOLearner(spec, chosen, weights_for(spec), 0, by_hand=by_hand) for by_hand in (True, False)
    )
    assert [one._by_hand is None for one in (by_hand, by_autograd)] == [False, True]
    return by_hand, by_autograd


def agree(spec: StockSpec, *, rows: int = 100, masked: bool = False, **settings: Any) -> None:
    """Let both forms learn from three batches and compare all that they tell and all that they know then."""
    by_hand, by_autograd = both(spec, **settings)
    for size in (rows, rows // 2 + 1, rows):
        batch = batch_for(spec, weights_for(spec), size, masked)
        found, wanted = by_hand.learn(batch, 0), by_autograd.learn(batch, 0)
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    for known, other in ((by_hand.weights(), by_autograd.weights()), (by_hand.state(), by_autograd.state())):
        assert list(known) == list(other)
        for name, value in known.items():
            np.testing.assert_allclose(value, other[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.each_value
@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize(
    "settings", [{}, {"kl_coeff": 0.0}, EVERYTHING], ids=["plain", "no kl", "everything"]
)
def test_both_forms_learn_the_same(head: ActionHead, settings: dict[str, Any]) -> None:
    agree(StockSpec(6, head, (16, 12)), **settings)


@pytest.mark.each_value
@pytest.mark.parametrize("head", [head for head in HEADS if head.mask_width], ids=str)
@pytest.mark.parametrize("settings", [{}, EVERYTHING], ids=["plain", "everything"])
def test_both_forms_learn_the_same_where_choices_are_masked(
    head: ActionHead, settings: dict[str, Any]
) -> None:
    agree(StockSpec(6, head, (16, 12)), masked=True, **settings)


@pytest.mark.each_value
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu", "elu", "linear"])
@pytest.mark.parametrize("hiddens", [(), (8,), (8, 20, 8)])
def test_both_forms_learn_the_same_through_all_activations_and_depths(
    activation: Activation, hiddens: tuple[int, ...]
) -> None:
    agree(StockSpec(6, Categorical((3,)), hiddens, activation), **EVERYTHING)


@pytest.mark.each_value
@pytest.mark.parametrize("term", ["entropy_coeff", "kl_coeff", "vf_clip_param", "magnet_coeff"])
@pytest.mark.parametrize("head", [HEADS[2], HEADS[3], HEADS[6], HEADS[8]], ids=str)
def test_each_term_of_the_loss_has_the_slope_that_autograd_finds(head: ActionHead, term: str) -> None:
    agree(StockSpec(6, head, (8,)), **dict[str, Any]({term: 0.5}))


@pytest.mark.parametrize("settings", [{"grad_clip": None}, {"grad_clip": 0.01}, {"clip_param": 1.5}])
def test_both_forms_clip_gradients_and_ratios_alike(settings: dict[str, Any]) -> None:
    agree(StockSpec(6, HEADS[2], (8,)), **settings)


def test_a_critic_that_sees_something_else_learns_the_same() -> None:
    agree(StockSpec(6, HEADS[2], (8,), critic_size=9), **EVERYTHING)


@pytest.mark.parametrize(("rows", "steps"), [(1, 1), (2, 1), (24, 1), (25, 1), (26, 2), (49, 2)])
def test_both_forms_cut_batches_into_the_same_minibatches(rows: int, steps: int) -> None:
    spec = StockSpec(6, HEADS[2], (8,))
    batch = batch_for(spec, weights_for(spec), rows)
    for learner in both(spec, num_sgd_iter=1):
        learner.learn(batch, 0)
        assert learner.state()["adam_steps"] == steps


def test_an_action_that_the_mask_forbids_moves_no_output() -> None:
    # An outside player may have chosen it: its own output is then a constant for both forms.
    spec = StockSpec(6, HEADS[2], (8,))
    by_hand, by_autograd = both(spec, **EVERYTHING)
    batch = batch_for(spec, weights_for(spec), 60, masked=True)
    batch["action_mask"][np.arange(10), batch["actions"][:10]] = False
    batch["action_mask"][10:15] = False
    batch["action_logp"][:10] = -1e9
    for learner in (by_hand, by_autograd):
        learner.learn(batch, 0)
    for name, value in by_hand.weights().items():
        np.testing.assert_allclose(value, by_autograd.weights()[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.each_value
@pytest.mark.parametrize("column", ["obs", "advantages", "value_targets", "action_logp"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e30])
def test_both_forms_drop_the_same_gradients_and_weights_stay_finite(column: str, number: float) -> None:
    spec = StockSpec(6, HEADS[2], (8,), "linear")
    by_hand, by_autograd = both(spec)
    batch = batch_for(spec, weights_for(spec), 60)
    batch[column][3] = number
    with np.errstate(all="ignore"):
        found, wanted = by_hand.learn(batch, 0), by_autograd.learn(batch, 0)
    assert found.get("skipped_updates") == wanted.get("skipped_updates")
    for name, value in by_hand.weights().items():
        assert np.isfinite(value).all(), name
        np.testing.assert_allclose(value, by_autograd.weights()[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_learning_by_hand_repeats_itself_bit_for_bit_through_a_saved_state() -> None:
    spec = StockSpec(6, HEADS[2], (8,))
    batch = batch_for(spec, weights_for(spec), 60)
    whole, _ = both(spec, **EVERYTHING)
    whole.learn(batch, 0)
    resumed, _ = both(spec, **EVERYTHING)
    resumed.set_weights(whole.weights())
    resumed.set_state(whole.state())
    # Batches of other sizes in between leave nothing behind.
    for size in (7, 31, 64):
        whole.learn(batch_for(spec, weights_for(spec), size), 0)
        resumed.learn(batch_for(spec, weights_for(spec), size), 0)
    assert whole.learn(batch, 60) == resumed.learn(batch, 60)
    for name, value in whole.weights().items():
        np.testing.assert_array_equal(value, resumed.weights()[name])


def test_only_separate_networks_of_fully_connected_layers_are_passed_by_hand() -> None:
    head = HEADS[2]
    assert can_learn(StockSpec(6, head, (8,)))
    assert not can_learn(StockSpec(6, head, (8,), vf_share_layers=True))
    assert not can_learn(StockSpec(6, head, (8,), cell=Cell("lstm", 4)))
    assert not can_learn(StockSpec(6, head, (8,), pixels=True))
    assert not can_learn(StockSpec(6, QValues((5,)), (8,)))
    assert not can_learn(object())


def test_the_fast_tanh_is_as_close_to_the_true_one_as_that_of_torch() -> None:
    x = torch.linspace(-12.0, 12.0, 40_001)
    found = torch.empty_like(x)
    FORWARD["tanh"](x, found)
    torch.testing.assert_close(found, x.double().tanh().float(), rtol=5e-7, atol=1e-9)


def test_the_magnet_slows_down_with_the_learning_rate() -> None:
    # 0.3 at the highest learning rate, 0.3 * 0.25 where the schedule is at a quarter of it.
    spec = StockSpec(6, Categorical((3,)), (8,))
    schedule = [[0, 4e-3], [1000, 1e-3]]
    learner, _ = both(spec, magnet_coeff=0.2, magnet_tau=0.3, lr_schedule=schedule)
    for env_steps, share in ((0, 0.3), (1000, 0.075)):
        before = learner.state()
        learner.learn(batch_for(spec, weights_for(spec), 50), env_steps)
        after = learner.state()
        for name, weight in learner.weights().items():
            old = before[f"magnet.{name}"]
            np.testing.assert_allclose(
                after[f"magnet.{name}"], old + share * (weight - old), rtol=1e-4, atol=1e-6
            )
