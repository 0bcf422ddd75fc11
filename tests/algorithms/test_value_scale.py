"""The unit in which values are learned: how it follows the targets, and that returns of any size are learned alike."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from menv.algorithms import PPO, PPOConfig, PPOPolicy
from menv.algorithms.networks.stock_spec import VALUE_OUT, StockSpec
from menv.algorithms.ppo.learner import PPOLearner
from menv.algorithms.training.return_scaling import ReturnNormalizer
from menv.inference.heads.categorical import Categorical, MultiCategorical
from menv.inference.heads.gaussian import Gaussian
from tests.algorithms.ppo_rows import Columns, rows_of
from tests.algorithms_e2e.looking import OwnLoss
from tests.worlds import Several

HEADS = [Categorical((3,)), MultiCategorical((3, 2)), Gaussian((2,))]
SPECS = [
    StockSpec(4, HEADS[0], (8,)),
    StockSpec(4, HEADS[0], (8,), vf_share_layers=True),
    StockSpec(4, HEADS[0], (8,), critic_size=6),
]


def batch_for(spec: StockSpec, rows: int = 60) -> Columns:
    return rows_of(spec, spec.first_weights(1), rows, seed=rows)


def learner_for(spec: StockSpec, *, by_hand: bool = True, **settings: Any) -> PPOLearner:
    chosen = PPOConfig(**{"sgd_minibatch_size": 16, "num_sgd_iter": 2, **settings})
    return PPOLearner(spec, chosen, spec.first_weights(1), 0, by_hand=by_hand)


def layer() -> tuple[Tensor, Tensor]:
    return torch.tensor([[2.0], [-1.0]]), torch.tensor([0.5])


def scale_of(weight: Tensor, bias: Tensor) -> ReturnNormalizer:
    return ReturnNormalizer([weight, bias], bias)


def test_mean_and_unit_are_averages_over_batches_each_weighing_99_hundredths_of_the_next() -> None:
    scale = scale_of(*layer())
    scale.follow(np.array([0.0, 4.0]), None)
    assert (scale.mean, scale.unit) == (2.0, 2.0)
    scale.follow(np.array([10.0, 10.0], np.float32), np.array([10.0, 9.0]))
    mean, square = (0.99 * 2.0 + 10.0) / 1.99, (0.99 * 8.0 + 100.0) / 1.99
    assert scale.mean == pytest.approx(mean)
    assert scale.unit == pytest.approx(math.sqrt(square - mean**2))
    assert scale.scaled(np.array([mean, mean + 2 * scale.unit])).tolist() == pytest.approx([0.0, 2.0])


def test_errors_are_of_four_units_at_most() -> None:
    scale = scale_of(*layer())
    scale.follow(np.full(5, 8.0), np.array([4.0, -4.0, 4.0, -4.0, 8.0 - 80.0**0.5]))
    assert scale.mean == 8.0
    assert scale.unit == pytest.approx(math.sqrt(80.0) / 4)
    scale.follow(np.full(5, 8.0), np.full(5, 8.0))
    assert (scale.mean, scale.unit) == (8.0, 8e-4)


def test_values_that_are_not_finite_change_nothing() -> None:
    scale = scale_of(*layer())
    scale.follow(np.array([1.0, 3.0]), None)
    for broken in (math.nan, math.inf, -math.inf, 1e39):
        with np.errstate(invalid="ignore", over="ignore"):
            scale.follow(np.array([1.0, broken]), None)
            scale.follow(np.zeros(2), np.array([1.0, broken]))
        assert (scale.mean, scale.unit) == (2.0, 1.0)


def test_the_layer_gives_values_in_units_inside_and_in_the_environments_own_one_outside() -> None:
    weight, bias = layer()
    features = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    scale = scale_of(weight, bias)
    scale.follow(np.array([10.0, 18.0]), None)
    assert (scale.mean, scale.unit) == (14.0, 4.0)
    values = (features @ weight)[:, 0] + bias
    assert values.tolist() == [0.5, 7.5]

    def spoilt() -> None:
        with scale.learning():
            within = (features @ weight)[:, 0] + bias
            assert within.tolist() == [(0.5 - 14.0) / 4.0, (7.5 - 14.0) / 4.0]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spoilt()
    assert ((features @ weight)[:, 0] + bias).tolist() == values.tolist()


def test_the_first_gradient_of_the_values_is_the_one_worked_out_by_hand() -> None:
    # One linear layer on an observation of zeros. Targets 1 and 5 have the mean 3 and the deviation 2. A bias of 3 is
    # 0 in that unit, where the targets are -1 and 1: the gradient of the bias is 0, the loss 1 (4 in the environment's
    # unit). A bias of 4 is 0.5 in that unit; errors are 1.5 and -0.5, so that 0.5 * mean(2 * error) = 0.5, and the loss
    # in the environment's unit is (9 + 1) / 2. Adam's first step is lr in that unit, twice that outside.
    spec = StockSpec(1, Categorical((2,)), hiddens=())
    settings = PPOConfig(lr=0.01, num_sgd_iter=1, sgd_minibatch_size=2, grad_clip=None)
    batch: Columns = {
        "obs": np.zeros((2, 1), np.float32),
        "actions": np.array([0, 1]),
        "action_logp": np.full(2, -math.log(2.0), np.float32),
        "action_dist_inputs": np.zeros((2, 2), np.float32),
        "advantages": np.zeros(2, np.float32),
        "value_targets": np.array([1.0, 5.0], np.float32),
    }
    for by_hand in (True, False):
        for bias, norm, loss, after in ((3.0, 0.0, 4.0, 3.0), (4.0, 0.5, 5.0, 3.98)):
            weights = {name: np.zeros(shape, np.float32) for name, shape in spec.weight_shapes().items()}
            weights |= {f"{VALUE_OUT}.bias": np.array([bias], np.float32)}
            learner = PPOLearner(spec, settings, weights, 0, by_hand=by_hand)
            stats = learner.learn(batch, 0)
            assert stats["grad_gnorm"] == pytest.approx(norm, abs=1e-6)
            assert stats["vf_loss"] == pytest.approx(loss)
            assert stats["total_loss"] == pytest.approx(0.5 * loss / 4.0)
            assert learner.weights()[f"{VALUE_OUT}.bias"] == pytest.approx([after], abs=1e-4)


@pytest.mark.parametrize("by_hand", [True, False])
def test_errors_are_cut_in_the_unit_of_the_environment(by_hand: bool) -> None:
    spec = SPECS[0]
    batch = batch_for(spec)
    batch["value_targets"] = 100.0 * np.sign(batch["value_targets"])

    def moved(limit: float) -> bool:
        learner = learner_for(spec, by_hand=by_hand, vf_clip_param=limit, vf_loss_coeff=1.0)
        before = learner.weights()["value.0.weight"]
        stats = learner.learn(batch, 0)
        assert stats["vf_loss"] < 1.001 * limit
        return bool((learner.weights()["value.0.weight"] != before).any())

    assert not moved(90.0**2)
    assert moved(110.0**2)


@pytest.mark.parametrize("spec", SPECS, ids=["apart", "shared", "critic"])
def test_a_restored_learner_continues_in_the_same_unit_bit_for_bit(spec: StockSpec) -> None:
    batch = batch_for(spec)
    whole, resumed = learner_for(spec), learner_for(spec)
    whole.learn(batch, 0)
    resumed.set_weights(whole.weights())
    resumed.set_state(whole.state())
    later = {**batch, "value_targets": 8.0 * batch["value_targets"]}
    assert whole.learn(later, 64) == resumed.learn(later, 64)
    for name, value in whole.weights().items():
        np.testing.assert_array_equal(value, resumed.weights()[name], err_msg=name)


class Bank(Several):
    """Two agents for ten steps; the right answer, 1, is paid with thousands."""

    observation_space, length = gym.spaces.Box(-1.0, 1.0, (2,), np.float32), 10

    def see(self, agent: str) -> Any:
        return np.array([(10 - self.at) / 10, 1.0], np.float32)

    def pay(self, actions: Any) -> Any:
        return {agent: 5000.0 * float(answer) for agent, answer in actions.items()}


class LossByHand(PPOPolicy):
    """Writes the value loss by hand, and reports what it has seen."""

    def loss(self, batch: Any) -> Any:
        _, stats = self.ppo_loss(batch)
        values = self.network.values(batch["obs"])
        value_loss = (values - batch["value_targets"]).square().mean()
        raw = self.value_mean + self.value_unit * batch["vf_preds"]
        seen = {"vf_preds": raw.mean(), "target": batch["value_targets"].mean()}
        return stats["policy_loss"] + 0.5 * value_loss, seen


def of(policy_class: type[PPOPolicy]) -> dict[str, Any]:
    return {"multiagent": {"policies": {"p": (policy_class, None, None, {})}}}


def trained(iterations: int = 2, **config: Any) -> tuple[dict[str, npt.NDArray[Any]], dict[str, float]]:
    """Return the weights of a policy and its last statistics."""
    config = {"num_envs_per_worker": 4, "train_batch_size": 80, "seed": 0, **config}
    with PPO(env=Bank, config=config) as algo:
        for _ in range(iterations):
            result = algo.train()
        ((policy_id, weights),) = algo.get_weights().items()
    return dict(weights), result["info"][policy_id]


@pytest.mark.parametrize("own", [OwnLoss, LossByHand])
def test_a_policy_with_a_custom_loss_learns_values_as_ppo_does(own: type[PPOPolicy]) -> None:
    # The same policy id, and so the same first weights.
    stock, _ = trained(multiagent={"policies": {"p": (None, None, None, {})}})
    found, stats = trained(**of(own))
    for name, value in stock.items():
        np.testing.assert_allclose(
            found[name], value, rtol=1e-3, atol=1e-3 * np.abs(value).max(), err_msg=name
        )
    if own is LossByHand:
        assert abs(stats["target"]) < 0.2
        assert stats["vf_preds"] > 10.0


class Critic(PPOPolicy):
    """Values come from a module of its own, in the environment's unit."""

    def make_modules(self) -> dict[str, nn.Module]:
        return {"critic": nn.Linear(2, 1)}

    def postprocess_trajectory(self, batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        with torch.no_grad():
            batch["vf_preds"] = self.modules["critic"](torch.from_numpy(batch["obs"]))[:, 0].numpy()
        return batch

    def loss(self, batch: Any) -> Any:
        total, stats = self.ppo_loss(batch, self.modules["critic"](batch["obs"])[:, 0])
        weight = self.loss_weights.vf_loss_coeff
        return total, {**stats, "weighed": weight * stats["vf_loss"], "target": batch["value_targets"].mean()}


def test_a_custom_critic_stays_in_the_environments_unit_and_does_not_outweigh_the_policy() -> None:
    with pytest.warns(
        RuntimeWarning, match=r"rewards of about 5e\+03 with a custom critic, expected rewards of about 1"
    ):
        _, stats = trained(1, **of(Critic))
    assert stats["target"] > 5_000.0
    assert stats["vf_loss"] > 1e7
    # At most four units: 0.5 * 4**2.
    assert stats["weighed"] <= 8.01


class OneLayer(nn.Module):
    """Logits and values come from one layer."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.all = nn.Linear(4, num_outputs + 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        found = self.all(obs)
        return found[:, :-1], found[:, -1]


class Bounded(nn.Module):
    """Values between -1 and 1, from a layer that is no last one."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.policy, self.value = nn.Linear(2, num_outputs), nn.Linear(2, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(obs), self.value(obs)[:, 0].tanh()


class TwoInputs(OneLayer):
    """As `OneLayer`, for the observations of `Bank`."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__(obs_space, num_outputs)
        self.all = nn.Linear(2, num_outputs + 1)


class SmallBank(Bank):
    """`Bank` whose right answer is paid with `factor`."""

    def pay(self, actions: Any) -> Any:
        return {agent: self.config["factor"] * float(answer) for agent, answer in actions.items()}


KINDS: dict[str, dict[str, Any]] = {
    "stock": {},
    "shared layers": {"model": {"vf_share_layers": True}},
    "layers shared by policies": {
        "model": {"vf_share_layers": True, "shared_layers": "all"},
        "multiagent": {
            "policies": ["a", "b"],
            "policy_mapping_fn": lambda agent_id, *args, **kwargs: agent_id,
        },
    },
    "lstm": {"model": {"use_lstm": True, "lstm_cell_size": 8}},
    "mappo": {"critic_obs": "all_agents"},
    "own loss": of(LossByHand),
    "custom model": {"model": {"custom_model": Bounded}},
    "custom model of one layer": {"model": {"custom_model": TwoInputs}},
    "no clipping": {"grad_clip": None},
}


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_times_a_power_of_two_give_the_same_ppo_run(kind: str) -> None:
    # Powers of two are exact: whatever is left of a unit shows in the last bit.
    runs: list[dict[str, Any]] = []
    for factor in (2.0**-20, 1.0, 2.0**20):
        config = {
            "num_envs_per_worker": 4,
            "train_batch_size": 160,
            "seed": 0,
            "env_config": {"factor": factor},
        }
        with PPO(env=SmallBank, config={**config, **KINDS[kind]}) as algo:
            for _ in range(3):
                algo.train()
            batch = algo.sample()
            runs.append(
                {
                    name: (rows["actions"], rows["vf_preds"] / factor)
                    for name, rows in batch.policy_batches.items()
                }
            )
    for run in runs:
        for name, (actions, values) in run.items():
            np.testing.assert_array_equal(actions, runs[1][name][0])
            np.testing.assert_array_equal(values, runs[1][name][1])
        assert any(np.abs(values).max() > 0.01 for _, values in run.values())
