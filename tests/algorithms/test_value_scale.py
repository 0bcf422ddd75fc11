"""Values with a mean and a unit: how these follow the targets, and that returns of any size are learned alike."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from menv import MultiAgentEnv
from menv.acting.action_head import ActionHead
from menv.acting.onnx_acting import OnnxActing
from menv.algorithms import PPO, PPOConfig
from menv.algorithms.config.ppo_settings import PPOSettings
from menv.algorithms.learning.ppo_learner import PPOLearner
from menv.algorithms.learning.ppo_policy import PPOPolicy
from menv.algorithms.learning.value_scale import ValueScale
from menv.algorithms.networks.cell import Cell
from menv.algorithms.networks.stock import VALUE_SCALE, StockSpec
from menv.algorithms.torch_acting import TorchActing
from menv.errors import ConfigError

Columns = dict[str, npt.NDArray[Any]]
HEADS = [
    ActionHead("categorical", (3,)),
    ActionHead("multi_categorical", (3, 2)),
    ActionHead("gaussian", (2,)),
]
SPECS = [
    StockSpec(4, HEADS[0], (8,), scaled_values=True),
    StockSpec(4, HEADS[0], (8,), scaled_values=True, vf_share_layers=True),
    StockSpec(4, HEADS[0], (8,), scaled_values=True, critic_size=6),
]


def scale_of(mean: float, unit: float) -> npt.NDArray[np.float32]:
    return np.array([mean, unit], np.float32)


def batch_for(spec: StockSpec, rows: int = 60) -> Columns:
    """Rows that a fresh policy might have sampled, with value targets of about 1."""
    rng = np.random.default_rng(rows)
    head = spec.head
    acting = TorchActing(spec.torch_network, head, [spec.first_weights(1)])
    obs = rng.standard_normal((rows, spec.obs_size), np.float32)
    draw = rng.standard_normal if head.noise == "normal" else rng.random
    actions = acting.act(obs, None, draw((rows, head.noise_width), np.float32))
    told = acting.evaluate(0, obs, None, actions)
    columns = {
        "obs": obs,
        "actions": actions,
        "action_logp": told.logp,
        "action_dist_inputs": told.dist_inputs,
        "advantages": rng.standard_normal(rows).astype(np.float32),
        "value_targets": rng.standard_normal(rows).astype(np.float32),
    }
    if spec.critic_size:
        columns["critic_obs"] = rng.standard_normal((rows, spec.critic_size), np.float32)
    return columns


def learner_for(spec: StockSpec, *, by_hand: bool = True, **settings: Any) -> PPOLearner:
    chosen = PPOSettings(**{"sgd_minibatch_size": 16, "num_sgd_iter": 2, **settings})
    return PPOLearner(spec, chosen, spec.first_weights(1), 0, by_hand=by_hand)


def test_mean_and_unit_are_averages_over_batches_each_weighing_nine_tenths_of_the_next() -> None:
    weight = torch.tensor([0.0, 1.0])
    scale = ValueScale(weight, 1e-4)
    scale.follow(np.array([0.0, 4.0]))
    assert (scale.mean, scale.unit) == (2.0, 2.0)
    scale.follow(np.array([10.0, 10.0], np.float32))
    mean, square = (0.9 * 2.0 + 10.0) / 1.9, (0.9 * 8.0 + 100.0) / 1.9
    assert scale.mean == pytest.approx(mean)
    assert scale.unit == pytest.approx(math.sqrt(square - mean**2))
    assert weight.tolist() == pytest.approx([scale.mean, scale.unit])


def test_targets_that_hardly_vary_have_the_least_unit_and_those_that_are_no_numbers_change_nothing() -> None:
    scale = ValueScale(torch.tensor([0.0, 1.0]), 1e-4)
    scale.follow(np.full(5, 3.0))
    assert (scale.mean, scale.unit) == (3.0, 1e-4)
    for broken in (math.nan, math.inf, -math.inf):
        with np.errstate(invalid="ignore"):
            scale.follow(np.array([1.0, broken]))
        assert (scale.mean, scale.unit) == (3.0, 1e-4)


def test_values_that_were_learned_in_a_unit_keep_it_nearly_when_their_weights_are_handed_on() -> None:
    weight = torch.tensor([100.0, 30.0])
    scale = ValueScale(weight, 1e-4)
    scale.follow(np.array([-1.0, 1.0]))
    assert 89.0 < scale.mean < 91.0
    assert 40.0 < scale.unit < 43.0


@pytest.mark.parametrize("spec", SPECS, ids=["apart", "shared", "critic"])
def test_values_of_both_back_ends_and_of_the_learner_are_in_the_unit_of_the_environment(
    spec: StockSpec,
) -> None:
    plain = dataclasses.replace(spec, scaled_values=False)
    weights = spec.first_weights(3)
    scaled = {**weights, VALUE_SCALE: scale_of(50.0, 20.0)}
    obs = np.random.default_rng(0).standard_normal((7, spec.inputs_of("value")), np.float32)
    bare = {name: weights[name] for name in plain.weight_shapes()}
    wanted = 50.0 + 20.0 * TorchActing(plain.torch_network, spec.head, [bare]).values(0, obs)
    graphs = spec.graphs(weights)
    for acting in (
        OnnxActing(graphs, spec.head, [weights, scaled]),
        TorchActing(spec.torch_network, spec.head, [weights, scaled]),
    ):
        np.testing.assert_allclose(acting.values(1, obs), wanted, rtol=1e-5)
        np.testing.assert_allclose(acting.values(0, obs), (wanted - 50.0) / 20.0, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_returns_of_any_size_are_learned_alike(head: ActionHead, by_hand: bool) -> None:
    spec = StockSpec(4, head, (8,), scaled_values=True)
    batch = batch_for(spec)
    small, large = (learner_for(spec, by_hand=by_hand) for _ in range(2))
    for _ in range(3):
        told = small.learn(batch, 0)
        also = large.learn({**batch, "value_targets": 1000.0 * batch["value_targets"] + 500.0}, 0)
    # What is told is in the environment's own unit.
    assert also["vf_loss"] == pytest.approx(1e6 * told["vf_loss"], rel=1e-2)
    assert also["total_loss"] == pytest.approx(told["total_loss"], rel=1e-2)
    weights, others = small.weights(), large.weights()
    mean, unit = weights.pop(VALUE_SCALE)
    np.testing.assert_allclose(others.pop(VALUE_SCALE), [1000.0 * mean + 500.0, 1000.0 * unit], rtol=1e-3)
    for name, value in weights.items():
        np.testing.assert_allclose(value, others[name], rtol=1e-2, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("spec", SPECS, ids=["apart", "shared", "critic"])
@pytest.mark.parametrize(
    "settings", [{}, {"vf_clip_param": 1.0, "entropy_coeff": 0.02}], ids=["plain", "clipped"]
)
def test_gradients_by_hand_and_by_autograd_agree(spec: StockSpec, settings: dict[str, Any]) -> None:
    batch = batch_for(spec)
    batch["value_targets"] = 3.0 * batch["value_targets"] + 7.0
    by_hand, by_autograd = (learner_for(spec, by_hand=form, **settings) for form in (True, False))
    for _ in range(3):
        assert by_hand.learn(batch, 0) == pytest.approx(by_autograd.learn(batch, 0), rel=1e-4, abs=1e-5)
    for name, value in by_hand.weights().items():
        np.testing.assert_allclose(value, by_autograd.weights()[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_the_first_gradient_of_the_values_is_the_one_worked_out_by_hand() -> None:
    # One linear layer on a constant observation. Targets 1 and 5 have the mean 3 and the deviation 2, so that the
    # value is 3 and the errors, in units of 2, are 1 and -1: the gradient of the bias is 0. Of a bias of 0.5 they are
    # 1.5 and -0.5, so that 0.5 * mean(2 * error) = 0.5, and the loss in the environment's unit is (9 + 1) / 2.
    spec = StockSpec(1, ActionHead("categorical", (2,)), hiddens=(), scaled_values=True)
    settings = PPOSettings(lr=0.01, num_sgd_iter=1, sgd_minibatch_size=2, grad_clip=None)
    batch: Columns = {
        "obs": np.zeros((2, 1), np.float32),
        "actions": np.array([0, 1]),
        "action_logp": np.full(2, -math.log(2.0), np.float32),
        "action_dist_inputs": np.zeros((2, 2), np.float32),
        "advantages": np.zeros(2, np.float32),
        "value_targets": np.array([1.0, 5.0], np.float32),
    }
    for by_hand in (True, False):
        for bias, norm, loss in ((0.0, 0.0, 4.0), (0.5, 0.5, 5.0)):
            weights = {name: np.zeros(shape, np.float32) for name, shape in spec.weight_shapes().items()}
            weights |= {VALUE_SCALE: scale_of(0.0, 1.0), "value.out.bias": np.array([bias], np.float32)}
            stats = PPOLearner(spec, settings, weights, 0, by_hand=by_hand).learn(batch, 0)
            assert stats["grad_gnorm"] == pytest.approx(norm, abs=1e-6)
            assert stats["vf_loss"] == pytest.approx(loss)
            assert stats["total_loss"] == pytest.approx(0.5 * loss / 4.0)


@pytest.mark.parametrize("spec", SPECS, ids=["apart", "shared", "critic"])
def test_a_restored_learner_goes_on_in_the_same_unit_to_the_last_bit(spec: StockSpec) -> None:
    batch = batch_for(spec)
    whole, resumed = learner_for(spec), learner_for(spec)
    whole.learn(batch, 0)
    resumed.set_weights(whole.weights())
    resumed.set_state(whole.state())
    later = {**batch, "value_targets": 8.0 * batch["value_targets"]}
    assert whole.learn(later, 64) == resumed.learn(later, 64)
    for name, value in whole.weights().items():
        np.testing.assert_array_equal(value, resumed.weights()[name], err_msg=name)


def test_a_recurrent_network_learns_in_units_too() -> None:
    spec = StockSpec(4, HEADS[0], (8,), cell=Cell("lstm", 6), scaled_values=True)
    acting = TorchActing(spec.torch_network, spec.head, [spec.first_weights(1)], sum(spec.state_sizes))
    rng = np.random.default_rng(2)
    obs = rng.standard_normal((24, 4), np.float32)
    states = [np.zeros((24, size), np.float32) for size in spec.state_sizes]
    told = acting.evaluate(
        0, obs, None, np.zeros(24, np.int64), np.concatenate([state[::6] for state in states], 1)
    )
    batch: Columns = {
        "obs": obs,
        "actions": np.zeros(24, np.int64),
        "action_logp": told.logp,
        "action_dist_inputs": told.dist_inputs,
        "advantages": rng.standard_normal(24).astype(np.float32),
        "value_targets": rng.normal(200.0, 30.0, 24).astype(np.float32),
        "seq_lens": np.full(4, 6),
        **{f"state_in_{place}": state for place, state in enumerate(states)},
    }
    learner = PPOLearner(spec, PPOSettings(sgd_minibatch_size=12), spec.first_weights(1), 0, max_seq_len=6)
    stats = learner.learn(batch, 0)
    assert learner.weights()[VALUE_SCALE].tolist() == pytest.approx(
        [batch["value_targets"].mean(), batch["value_targets"].std()], rel=1e-5
    )
    assert stats["vf_loss"] < 3 * 30.0**2


class Bank(MultiAgentEnv):
    """Two agents for ten steps; the right answer, 1, is paid with thousands."""

    def __init__(self, context: Any = None) -> None:
        self.possible_agents = ["a", "b"]
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = 10
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        self.left -= 1
        rewards = {agent: 5000.0 * float(answer) for agent, answer in actions.items()}
        return self._obs(), rewards, {"__all__": self.left == 0}, {"__all__": False}, {}

    def _obs(self) -> Any:
        return {agent: np.array([self.left / 10, 1.0], np.float32) for agent in self.possible_agents}


def test_predicted_values_of_a_run_are_of_the_size_of_its_returns() -> None:
    algo = PPO(env=Bank, config={"num_envs_per_worker": 16, "train_batch_size": 640, "seed": 0})
    try:
        for _ in range(8):
            result = algo.train()
        values = algo.sample()["default_policy"]["vf_preds"]
    finally:
        algo.stop()
    assert values.mean() > 10_000.0
    assert result["info"]["default_policy"]["vf_explained_var"] > 0.7


class Module(nn.Module):
    """One layer for both."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.policy, self.value = nn.Linear(2, num_outputs), nn.Linear(2, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(obs), self.value(obs)[:, 0]


def test_values_of_a_module_of_ones_own_have_a_unit_too() -> None:
    algo = PPO(
        env=Bank,
        config={
            "num_envs_per_worker": 16, "train_batch_size": 640, "seed": 0, "model": {"custom_model": Module}, "lr": 0.02
        },
    )  # fmt: skip
    try:
        for _ in range(8):
            result = algo.train()
        values = algo.sample()["default_policy"]["vf_preds"]
    finally:
        algo.stop()
    assert values.mean() > 10_000.0
    assert result["info"]["default_policy"]["vf_explained_var"] > 0.7


class OwnLoss(PPOPolicy):
    """PPO's loss, which whoever reads the class cannot know."""

    def loss(self, batch: Any) -> Any:
        return self.ppo_loss(batch)


def test_a_loss_of_ones_own_and_the_setting_leave_values_in_the_unit_of_the_environment() -> None:
    own: dict[str, Any] = {"multiagent": {"policies": {"p": (OwnLoss, None, None, {})}}}
    for extra in (own, {"normalize_values": False}):
        algo = PPO(env=Bank, config={"num_envs_per_worker": 4, "train_batch_size": 80, "seed": 0, **extra})
        try:
            algo.train()
            (weights,) = algo.get_weights().values()
        finally:
            algo.stop()
        assert weights.get(VALUE_SCALE, scale_of(0.0, 1.0)).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_what_is_no_flag_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"PPO: normalize_values is .*, expected True or False"):
        PPOConfig(normalize_values=value)


def test_weights_of_a_policy_without_units_are_refused_with_the_setting(tmp_path: Path) -> None:
    small: dict[str, Any] = {"num_envs_per_worker": 4, "train_batch_size": 80, "seed": 0}
    plain, scaled = (
        PPO(env=Bank, config={**small, "normalize_values": normalized}) for normalized in (False, True)
    )
    try:
        for algo, other in ((plain, scaled), (scaled, plain)):
            weights = other.get_weights()
            with pytest.raises(ConfigError, match=r"'value\.scale' .* normalize_values, set it alike"):
                algo.set_weights(weights)
        plain.save(tmp_path / "plain")
        with pytest.raises(ConfigError, match=r"'value\.scale' .* set normalize_values alike"):
            scaled.restore(tmp_path / "plain")
    finally:
        plain.stop()
        scaled.stop()
