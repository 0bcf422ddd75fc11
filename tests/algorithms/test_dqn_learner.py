"""The DQN learner: what it keeps, when and what it learns, and that seeds and state decide everything."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from menv.algorithms import DQNConfig, QMIXConfig
from menv.algorithms.dqn.learner import DQNLearner, conservative_gaps, dqn_loss, td_targets
from menv.algorithms.networks.stock_graphs import StockGraphs
from menv.algorithms.networks.stock_spec import StockSpec
from menv.errors import ConfigError
from menv.inference.heads.head import ILLEGAL
from menv.inference.heads.q_values import QValues
from menv.inference.onnx_backend import OnnxBackend
from menv.sample_batch import SampleBatch, TrajectorySlices

SPEC = StockSpec(3, QValues((2,)), (16,), dueling=True)


def learner(spec: StockSpec = SPEC, seed: int = 0, **settings: Any) -> DQNLearner:
    settings = {
        "train_batch_size": 8,
        "training_intensity": 8.0,
        "num_steps_sampled_before_learning_starts": 0,
        **settings,
    }
    return DQNLearner(spec, DQNConfig(**settings), spec.first_weights(1), seed)


def one_step_pieces(
    obs: Any, actions: Any, rewards: Any, next_obs: Any, terminated: Any, mask: Any = None
) -> SampleBatch:
    """Each row is a piece of its own: what follows it is given."""
    count = len(obs)
    zeros = np.zeros(count, np.int64)
    next_mask = np.ones((count, 0 if mask is None else len(mask[0])), np.bool_)
    segments = TrajectorySlices(
        lengths=np.ones(count, np.int64), next_obs=np.asarray(next_obs, np.float32), next_mask=next_mask,
        final_missing=zeros > 0,
        first_t=zeros, eps_id=np.arange(count), agent_index=zeros, env_id=zeros, unroll_id=np.arange(count),
        prev_action=zeros, prev_reward=np.zeros(count, np.float32), life=zeros,
    )  # fmt: skip
    terminateds = np.broadcast_to(terminated, count).copy()
    columns: dict[str, Any] = {
        "obs": np.asarray(obs, np.float32), "actions": np.asarray(actions, np.int64),
        "rewards": np.asarray(rewards, np.float32), "terminateds": terminateds, "truncateds": ~terminateds,
        "t": zeros,
    }  # fmt: skip
    if mask is not None:
        columns["action_mask"] = np.asarray(mask, bool)
    return SampleBatch(columns, segments)


def bandit(rows: int, seed: int = 0) -> SampleBatch:
    """One state after another; action 1 pays 1, action 0 nothing, and that is the end."""
    rng = np.random.default_rng(seed)
    obs, actions = rng.standard_normal((rows, 3)), rng.integers(0, 2, rows)
    return one_step_pieces(obs, actions, actions == 1, obs, True)


@pytest.mark.each_value
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("prioritized", [False, True])
def test_q_values_become_what_actions_pay(dueling: bool, double_q: bool, prioritized: bool) -> None:
    spec = StockSpec(3, QValues((2,)), (16,), dueling=dueling)
    one = learner(spec, lr=1e-2, double_q=double_q, replay_buffer_config={"prioritized_replay": prioritized})
    for number in range(4):
        stats = one.learn(bandit(64, number), 64 * (number + 1))
    acting = OnnxBackend(StockGraphs(spec), spec.head, [one.weights()])
    q_values = acting.evaluate(0, bandit(50)["obs"], None, np.zeros(50, np.int64)).dist_inputs
    np.testing.assert_allclose(q_values.mean(0), [0.0, 1.0], atol=0.1)
    assert stats["updates"] == 64.0
    assert stats["replay_rows"] == 256.0
    assert all(type(value) is float and math.isfinite(value) for value in stats.values())
    assert set(stats) == {
        "loss", "mean_q", "mean_td_error", "grad_gnorm", "epsilon", "cur_lr", "replay_rows", "updates"
    }  # fmt: skip


@pytest.mark.parametrize(("env_steps", "rate"), [(0, 0.01), (50, 0.0075), (200, 0.005)])
def test_a_schedule_sets_the_learning_rate_at_the_env_steps_of_the_run(env_steps: int, rate: float) -> None:
    one = learner(lr=1.0, training_intensity=1.0, lr_schedule=[[0, 0.01], [100, 0.005]])
    before = one.weights()
    stats = one.learn(bandit(8), env_steps)
    assert stats["updates"] == 1.0
    assert stats["cur_lr"] == pytest.approx(rate)
    # The first step of Adam changes a weight by the learning rate, whatever its gradient.
    change = np.abs(one.weights()["policy.out.bias"] - before["policy.out.bias"])
    np.testing.assert_allclose(change, rate, rtol=1e-3)


def test_one_gradient_step_is_the_one_worked_out_by_hand() -> None:
    # One linear layer on a constant observation, Q-values 0. Both rows took action 0 and ended with reward 0.5, which
    # is the unit: an error of -1 each, whose mean gradient is -1. Adam's first step has the size of the learning rate,
    # 0.01 in that unit.
    spec = StockSpec(1, QValues((2,)), hiddens=())
    zeros = {name: np.zeros(shape, np.float32) for name, shape in spec.weight_shapes().items()}
    settings = DQNConfig(
        lr=0.01, train_batch_size=2, training_intensity=1.0, num_steps_sampled_before_learning_starts=0
    )
    one = DQNLearner(spec, settings, zeros, 0)
    stats = one.learn(one_step_pieces(np.zeros((2, 1)), [0, 0], [0.5, 0.5], np.zeros((2, 1)), True), 2)
    assert stats["loss"] == pytest.approx(0.125)
    assert stats["mean_td_error"] == pytest.approx(0.5)
    assert stats["grad_gnorm"] == pytest.approx(1.0)
    np.testing.assert_allclose(one.weights()["policy.out.bias"], [0.005, 0.0], rtol=1e-4)


@pytest.mark.each_value
@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(
    ("loss", "q_value", "expected"),
    # Returns of 0 and 4: "huber" is linear beyond an error of 4.
    [("huber", 3.0, 0.5), ("mse", 3.0, 0.5), ("huber", 14.0, 4 * (10 - 0.5 * 4)), ("mse", 14.0, 0.5 * 10**2)],
)
def test_huber_is_linear_beyond_the_span_of_the_returns_and_mse_squares_all_errors(
    loss: Any, q_value: float, expected: float, factor: float
) -> None:
    spec = StockSpec(1, QValues((2,)), hiddens=())
    weights = {name: np.zeros(shape, np.float32) for name, shape in spec.weight_shapes().items()}
    weights["policy.out.bias"][0] = q_value * factor
    settings = DQNConfig(
        lr=0.0, td_error_loss_fn=loss, train_batch_size=1, num_steps_sampled_before_learning_starts=0
    )
    one = DQNLearner(spec, settings, weights, 0)
    stats = one.learn(one_step_pieces([[0.0]], [0], [4.0 * factor], [[0.0]], True), 1)
    assert stats["loss"] == pytest.approx(expected * factor**2, rel=1e-5)
    assert stats["mean_q"] == pytest.approx(q_value * factor)
    assert stats["mean_td_error"] == pytest.approx(abs(q_value - 4.0) * factor)


@pytest.mark.slow_unless("1.0-huber")
@pytest.mark.parametrize("loss", ["huber", "mse"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_rare_reward_counts_by_its_mean(loss: Any, sign: float) -> None:
    # Action 0 pays 5; action 1 pays 100 with probability 0.2, and is taken once in 20 times.
    rng = np.random.default_rng(0)
    spec = StockSpec(1, QValues((2,)), hiddens=())
    one = learner(spec, lr=1e-2, td_error_loss_fn=loss, train_batch_size=256, training_intensity=64.0)
    actions = (rng.random(4000) < 0.05).astype(np.int64)
    rewards = np.where(actions == 0, 5.0, 100.0 * (rng.random(4000) < 0.2))
    mean = rewards[actions == 1].mean()
    obs = np.zeros((4000, 1))
    one.learn(one_step_pieces(obs, actions, sign * rewards, obs, True), 0)
    np.testing.assert_allclose(sign * one.weights()["policy.out.bias"], [5.0, mean], atol=4.0)


def test_with_tau_the_target_network_moves_by_that_share_with_each_gradient_step() -> None:
    one = learner(tau=0.25, lr=1e-2)
    one.learn(bandit(64), 0)
    before = one.state()["target.policy.out.weight"]
    one.gradient_steps(1)
    expected = before + 0.25 * (one.weights()["policy.out.weight"] - before)
    np.testing.assert_allclose(one.state()["target.policy.out.weight"], expected, rtol=1e-6)


def test_soft_updates_and_a_number_of_timesteps_between_copies_are_refused_together() -> None:
    for kind in (DQNConfig, QMIXConfig):
        with pytest.raises(ConfigError, match="target_network_update_freq"):
            kind(tau=0.1, target_network_update_freq=500)


@pytest.mark.parametrize("terminated", [True, False])
def test_a_truncated_row_is_worth_what_follows_and_a_terminated_one_is_not(terminated: bool) -> None:
    # Two states: the first pays nothing and leads to the second, which pays 1 and ends.
    first, second = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    batch = one_step_pieces([first, second] * 32, [0] * 64, [0.0, 1.0] * 32, [second, second] * 32, True)
    batch["terminateds"][::2] = terminated
    one = learner(lr=1e-2, gamma=0.5, target_network_update_freq=10)
    for number in range(8):
        one.learn(batch, number)
    acting = OnnxBackend(StockGraphs(SPEC), SPEC.head, [one.weights()])
    q_values = acting.evaluate(0, np.array([first], np.float32), None, np.zeros(1, np.int64)).dist_inputs
    assert q_values[0, 0] == pytest.approx(0.0 if terminated else 0.5, abs=0.1)


def test_gradient_steps_and_copies_are_due_at_their_rows_whatever_sums_of_fractions_lose() -> None:
    one = learner(train_batch_size=10, training_intensity=1.0)
    counts = [one.learn(bandit(1), rows)["updates"] for rows in range(1, 51)]
    assert [row for row, count in enumerate(counts, 1) if count] == [10, 20, 30, 40, 50]
    # Each step stands for 20 / 3 rows.
    two = learner(train_batch_size=20, training_intensity=3.0, target_network_update_freq=50, lr=1e-2)
    two.learn(bandit(1), 1)
    two.gradient_steps(29)
    before = two.state()["target.policy.out.weight"]
    two.gradient_steps(1)
    state, weights = two.state(), two.weights()
    np.testing.assert_array_equal(state["target.policy.out.weight"], weights["policy.out.weight"])
    assert not np.array_equal(before, state["target.policy.out.weight"])


def test_nothing_is_learned_before_the_run_has_enough_steps_and_nothing_is_made_up_for() -> None:
    one = learner(num_steps_sampled_before_learning_starts=100)
    before = one.weights()
    early = one.learn(bandit(50), 99)
    assert (early["updates"], "loss" in early) == (0.0, False)
    for name, value in one.weights().items():
        if name != "epsilon":
            np.testing.assert_array_equal(value, before[name])
    assert one.learn(bandit(5), 100)["updates"] == 5.0


def test_epsilon_follows_the_steps_of_the_run_and_is_published_with_the_weights() -> None:
    schedule = {"initial_epsilon": 0.9, "final_epsilon": 0.1, "epsilon_timesteps": 100}
    one = learner(exploration_config=schedule)
    assert one.weights()["epsilon"].tolist() == [1.0]
    for env_steps, epsilon in ((0, 0.9), (50, 0.5), (100, 0.1), (10_000, 0.1)):
        assert one.learn(bandit(4), env_steps)["epsilon"] == pytest.approx(epsilon)
        np.testing.assert_allclose(one.weights()["epsilon"], [epsilon], rtol=1e-6)
    assert set(one.weights()) == set(SPEC.weight_shapes())


def test_rows_with_larger_errors_get_higher_priorities() -> None:
    # Nothing is ever learned, Q-values are 0: the error of a row is its reward.
    spec = StockSpec(3, SPEC.head, hiddens=())
    zeros = {name: np.zeros(shape, np.float32) for name, shape in spec.weight_shapes().items()}
    buffer: Any = {"prioritized_replay": True, "prioritized_replay_alpha": 0.5}
    settings = DQNConfig(
        lr=0.0,
        num_steps_sampled_before_learning_starts=0,
        training_intensity=640.0,
        replay_buffer_config=buffer,
    )
    one = DQNLearner(spec, settings, zeros, 0)
    one.learn(one_step_pieces(np.zeros((3, 3)), [0, 1, 0], [-4.0, 1.0, 9.0], np.zeros((3, 3)), True), 0)
    # The root mean square of the rewards is 5.7, for which the unit is 8.
    np.testing.assert_allclose(
        one.state()["replay.priorities"], np.sqrt(np.array([4.0, 1.0, 9.0]) / 8.0), rtol=1e-3
    )


# The loss of Q-learning, worked out by hand.


RETURNS = torch.tensor([1.0, 2.0, 3.0])
DISCOUNTS = torch.tensor([0.5, 0.5, 0.0])
TARGET_NEXT = torch.tensor([[4.0, 6.0], [8.0, -2.0], [100.0, 100.0]])


def test_the_best_choice_of_the_target_network_counts() -> None:
    assert td_targets(RETURNS, DISCOUNTS, TARGET_NEXT, None).tolist() == [4.0, 6.0, 3.0]


def test_with_double_q_the_choice_is_that_of_the_network_that_learns() -> None:
    online_next = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert td_targets(RETURNS, DISCOUNTS, TARGET_NEXT, online_next).tolist() == [3.0, 1.0, 3.0]


@pytest.mark.parametrize("double", [False, True])
def test_an_illegal_choice_never_counts_however_good_it_looks(double: bool) -> None:
    mask = torch.tensor([[True, False], [False, True], [False, True]])
    masked = torch.where(mask, TARGET_NEXT, ILLEGAL)
    online_next = torch.where(mask, torch.tensor([[0.0, 9.0], [9.0, 0.0], [9.0, 0.0]]), ILLEGAL)
    targets = td_targets(RETURNS, DISCOUNTS, masked, online_next if double else None)
    assert targets.tolist() == [3.0, 1.0, 3.0]


def test_the_loss_is_square_up_to_an_error_of_1_and_straight_beyond_and_rows_are_weighed() -> None:
    q_values = torch.tensor([[0.5, 9.0], [9.0, 4.0], [2.0, 9.0]])
    terms = dqn_loss(q_values, torch.tensor([0, 1, 0]), torch.tensor([0.0, 1.0, 2.0]), None)
    # Errors 0.5, 3 and 0: losses 0.125, 2.5 and 0.
    assert terms.td_errors.tolist() == [0.5, 3.0, 0.0]
    assert terms.q_taken.tolist() == [0.5, 4.0, 2.0]
    assert float(terms.loss) == pytest.approx((0.125 + 2.5) / 3)
    weights = torch.tensor([1.0, 0.2, 0.7])
    weighed = dqn_loss(q_values, torch.tensor([0, 1, 0]), torch.tensor([0.0, 1.0, 2.0]), weights)
    assert float(weighed.loss) == pytest.approx((0.125 + 0.5) / 3)
    assert weighed.td_errors.tolist() == [0.5, 3.0, 0.0]


def test_the_conservative_term_is_what_was_worked_out_by_hand() -> None:
    q_values = torch.tensor([[0.0, math.log(3.0), 9.0], [math.log(2.0), 0.0, math.log(5.0)]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    gaps = conservative_gaps(q_values, torch.tensor([0, 2]), mask)
    # log(1 + 3) - 0 without the action that is not allowed, and log(2 + 1 + 5) - log(5).
    assert gaps.tolist() == pytest.approx([math.log(4.0), math.log(8.0 / 5.0)])
    targets, taken = torch.zeros(2), torch.tensor([0, 2])
    loss = dqn_loss(q_values, taken, targets, torch.tensor([1.0, 0.5]), None, gaps).loss.item()
    squares = 0.5 * 0.0 + 0.5 * 0.5 * math.log(5.0) ** 2
    assert loss == pytest.approx((squares + math.log(4.0) + 0.5 * math.log(1.6)) / 2)


def test_the_conservative_term_is_on_where_recordings_are_the_only_experience() -> None:
    assert DQNConfig().conservatism == 0
    assert DQNConfig(input={"sampler": 1.0, "games/*.parquet": 1.0}).conservatism == 0
    assert DQNConfig(input="games/*.parquet").conservatism == 1
    assert DQNConfig(input="games/*.parquet", cql_alpha=0.25).conservatism == 0.25


@pytest.mark.slow_unless("True")
@pytest.mark.parametrize("double_q", [False, True])
def test_a_choice_that_will_be_illegal_is_worth_nothing_however_much_it_would_pay(double_q: bool) -> None:
    # In the second state action 1 would pay 10 and is taken in half of the rows, as if by mistake; it is illegal.
    first, second = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    obs, actions = [first, second, second] * 32, [0, 0, 1] * 32
    rewards, ends = [0.0, 1.0, 10.0] * 32, np.tile([False, True, True], 32)
    batch = one_step_pieces(obs, actions, rewards, [second] * 96, ends, np.ones((96, 2)))

    class WithMask:
        def __init__(self, segments: Any) -> None:
            self.segments, self.next_mask = segments, np.tile([True, False], (96, 1))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.segments, name)

    batch.segments = WithMask(batch.segments)  # type: ignore[assignment]
    one = learner(lr=1e-2, gamma=0.5, target_network_update_freq=10, double_q=double_q)
    for number in range(10):
        one.learn(batch, number)
    acting = OnnxBackend(StockGraphs(SPEC), SPEC.head, [one.weights()])
    seen = np.array([first, second], np.float32)
    q_values = acting.evaluate(0, seen, None, np.zeros(2, np.int64)).dist_inputs
    assert q_values[1, 1] > 5.0
    assert q_values[0, 0] == pytest.approx(0.5, abs=0.25)


def test_the_target_network_is_copied_after_so_many_rows() -> None:
    def target(of: DQNLearner) -> Any:
        return of.state()["target.policy.out.weight"]

    one = learner(target_network_update_freq=32, lr=1e-2)
    one.has_first_weights = True
    first = target(one)
    one.learn(bandit(31), 0)
    np.testing.assert_array_equal(target(one), first)
    one.learn(bandit(1), 0)
    np.testing.assert_array_equal(target(one), one.weights()["policy.out.weight"])
    assert not np.array_equal(target(one), first)


def test_new_weights_are_copied_to_the_target_network_too() -> None:
    one = learner()
    new = SPEC.first_weights(9)
    one.set_weights({**new, "epsilon": np.array([0.25], np.float32)})
    np.testing.assert_array_equal(one.state()["target.policy.out.weight"], new["policy.out.weight"])
    np.testing.assert_array_equal(one.weights()["epsilon"], np.array([0.25], np.float32))
    with pytest.raises(ConfigError, match="weights"):
        one.set_weights(StockSpec(3, SPEC.head, (17,), dueling=True).first_weights(0))
