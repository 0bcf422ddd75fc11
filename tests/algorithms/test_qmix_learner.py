"""The learner of a group: its targets, worked out by hand, and that masks, seeds and state decide as they must."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from menv.algorithms import DQNConfig, QMIXConfig
from menv.algorithms.networks.stock_spec import Cell
from menv.algorithms.qmix.learner import QMIXLearner, TorchGroup, lambda_targets
from menv.algorithms.qmix.network import GroupSpec, Mixer
from menv.algorithms.qmix.qmix import QMIXRecipe
from menv.errors import ConfigError
from menv.inference.onnx_backend import OnnxBackend
from menv.sample_batch import SampleBatch
from tests.algorithms.groups_of_three import MEMBERS, random_rows, spec_of
from tests.algorithms.test_dqn_learner import one_step_pieces
from tests.contract.scripted import altered
from tests.inference.lively import lively_weights
from tests.written_batches import batch as written_batch

QUICK: dict[str, Any] = {
    "train_batch_size": 16, "training_intensity": 16.0, "num_steps_sampled_before_learning_starts": 0, "lr": 1e-2,
    "n_step": 1,
}  # fmt: skip


def learner(spec: GroupSpec, weights: Any = None, seed: int = 0, **settings: Any) -> QMIXLearner:
    return QMIXLearner(spec, DQNConfig(**{**QUICK, **settings}), weights or lively_weights(spec), seed)


def constant(spec: GroupSpec, q_values: list[float]) -> dict[str, Any]:
    """Return weights by which every member's Q-values are these, whatever is seen."""
    weights = {name: np.zeros(shape, np.float32) for name, shape in spec.weight_shapes().items()}
    weights["policy.out.bias"][:] = q_values
    return weights


def next_rows(
    spec: GroupSpec, returns: list[float], discounts: list[float], mask: Any = None
) -> dict[str, Tensor]:
    rows = {
        "returns": torch.tensor(returns),
        "discounts": torch.tensor(discounts),
        "next_obs": torch.zeros(len(returns), spec.obs_size),
    }
    return rows if mask is None else {**rows, "next_mask": torch.tensor(mask)}


def team(rows: int, seed: int = 0) -> Any:
    """Return games of one step that pay the number of members that chose 1, but 9 if all did."""
    rng = np.random.default_rng(seed)
    spec = spec_of(2)
    obs, actions = rng.standard_normal((rows, spec.obs_size)), rng.integers(0, 2, (rows, MEMBERS))
    count = actions.sum(1)
    return one_step_pieces(obs, actions, np.where(count == MEMBERS, 9, count), obs, True)


def test_targets_without_mixing_network_are_the_sum_of_the_members_best() -> None:
    spec = spec_of(2, mixer="vdn", hiddens=())
    one = learner(spec, constant(spec, [1.0, 3.0]))
    found = one.targets(next_rows(spec, [1.0, 2.0, 5.0], [0.5, 1.0, 0.0]))
    # Three members, each at best worth 3.
    assert found.tolist() == [1.0 + 0.5 * 9.0, 2.0 + 9.0, 5.0]


def test_targets_without_a_mixer_are_each_members_own() -> None:
    spec = spec_of(2, mixer=None, hiddens=())
    one = learner(spec, constant(spec, [1.0, 3.0]))
    assert one.targets(next_rows(spec, [1.0, 5.0], [0.5, 0.0])).tolist() == [[2.5] * 3, [5.0] * 3]


def test_targets_are_mixed_by_the_state_that_follows() -> None:
    # One hidden unit: weights |10|, |10| and |-20| times a tenth of the state, no bias; the last weight is |-1| always.
    layout = altered(spec_of(2).layout, state=(2,))
    spec = GroupSpec(18, layout, (), embed_dim=1)
    weights = constant(spec, [1.0, 2.0])
    weights["mixer.hidden_weight.weight"][:] = [[10.0, 10.0, -20.0]]
    weights["mixer.out_weight.bias"][:] = -1.0
    rows = next_rows(spec, [1.0, 2.0], [0.5, 0.5])
    rows["next_obs"][:, 2] = torch.tensor([0.75, 4.0 / 3.0])
    # The states are 0.75 / 1.25 = 0.6 and (4 / 3) / (5 / 3) = 0.8, times (1 + 1 + 2) * 2 = 8.
    np.testing.assert_allclose(learner(spec, weights).targets(rows).numpy(), [3.4, 5.2], rtol=1e-6)


@pytest.mark.parametrize("double_q", [False, True])
def test_masked_actions_are_never_in_the_maximum(double_q: bool) -> None:
    spec = spec_of(3, mixer="vdn", hiddens=())
    one = learner(spec, constant(spec, [1.0, 3.0, 50.0]), double_q=double_q)
    mask = [
        [True, True, True, True, True, False, True, False, False],
        [False, True, False, True, False, False, False, False, True],
    ]
    found = one.targets(next_rows(spec, [0.0, 0.0], [1.0, 1.0], mask))
    assert found.tolist() == [50.0 + 3.0 + 1.0, 3.0 + 1.0 + 50.0]


def test_with_double_q_the_members_choices_are_those_of_the_network_that_learns() -> None:
    spec = spec_of(2, mixer="vdn", hiddens=())
    for double_q, wanted in ((True, 3.0 * 1.0), (False, 3.0 * 4.0)):
        one = learner(
            spec, constant(spec, [1.0, 4.0]), double_q=double_q, target_network_update_freq=10**9, lr=0.01
        )
        # All choose 0 and are paid much: the learned network soon prefers it, the target network stays.
        actions = np.zeros((64, MEMBERS), np.int64)
        obs = np.zeros((64, spec.obs_size))
        for _ in range(6):
            one.learn(one_step_pieces(obs, actions, np.full(64, 60.0), obs, True), 0)
        found = one.targets(next_rows(spec, [0.0], [1.0]))
        # Rewards of 60 are learned in a unit of 64.
        assert found.tolist() == [wanted / 64.0]


@pytest.mark.parametrize("terminated", [True, False])
def test_a_truncated_row_is_worth_what_follows_and_a_terminated_one_is_not(terminated: bool) -> None:
    spec = spec_of(2, mixer="vdn", hiddens=())
    one = learner(spec, constant(spec, [0.0, 2.0]), gamma=0.5, lr=0.0)
    zeros = np.zeros((16, spec.obs_size))
    stats = one.learn(one_step_pieces(zeros, np.ones((16, MEMBERS)), np.full(16, 6.0), zeros, terminated), 0)
    # All are worth 6 together: what was paid, and half of 6 more if the game goes on.
    assert stats["mean_q"] == 6.0
    assert stats["mean_td_error"] == (0.0 if terminated else 3.0)


@pytest.mark.parametrize(("terminated", "targets"), [
    (True, [2.59375, 4.375, 5.5, 4.0]),
    (False, [2.65625, 4.625, 6.5, 8.0]),
])  # fmt: skip
def test_lambda_targets_of_four_steps_by_hand(terminated: bool, targets: list[float]) -> None:
    # gamma and lambda are 0.5. G_3 = 4 + 0.5 * 8 = 8 or 4; G_2 = 3 + 0.5 * (0.5 * 6 + 0.5 * G_3), and so on.
    rewards, values = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[2.0, 4.0, 6.0, 8.0]])
    discounts = torch.tensor([[0.5, 0.5, 0.5, 0.0 if terminated else 0.5]])
    found = lambda_targets(rewards, discounts, values, torch.ones(1, 4, dtype=torch.bool), 0.5)
    assert found.tolist() == [targets]
    # A sequence of two steps ends at its second one. G_1 = 2 + 0.5 * 4, G_0 = 1 + 0.5 * (0.5 * 2 + 0.5 * 4).
    found = lambda_targets(
        rewards, discounts, values[..., None], torch.tensor([[True, True, False, False]]), 0.5
    )
    assert found[0, :2, 0].tolist() == [2.5, 4.0]


MEMORY = {"use_gru": True, "lstm_cell_size": 5}


def losses_of_an_episode(
    spec: GroupSpec, terminated: bool, first_t: int = 0, **settings: Any
) -> dict[str, float]:
    """Return what a learner says of four steps that pay 1, 2, 3 and 4, where the group's value is 3 in every state."""
    written = written_batch([4])
    columns: dict[str, Any] = {
        "obs": np.zeros((4, spec.obs_size), np.float32), "actions": np.ones((4, MEMBERS), np.int64),
        "rewards": np.array([1.0, 2.0, 3.0, 4.0], np.float32), "terminateds": np.array([0, 0, 0, terminated], bool),
        "state_in_0": np.zeros((4, sum(spec.state_sizes)), np.float32), "t": np.arange(4) + first_t,
    }  # fmt: skip
    nothing = np.zeros((1, spec.obs_size), np.float32)
    segments = replace(written.segments, next_obs=nothing, prev_action=np.zeros((1, MEMBERS), np.int64))
    episode = SampleBatch({**written.stored(), **columns}, segments)
    q_value = 3.0 if spec.mixer is None else 3.0 / MEMBERS
    once = {"lr": 0.0, "gamma": 0.5, "mixer": spec.mixer, "train_batch_size": 4, "training_intensity": 1.0}
    config = QMIXConfig(**{**QUICK, **once, **settings})
    one = QMIXRecipe().make_learner(spec, constant(spec, [0.0, q_value]), config, 0)
    return one.learn(episode, 4)


@pytest.mark.parametrize(("terminated", "targets"), [
    (True, [2.734375, 3.9375, 4.75, 4.0]),
    (False, [2.7578125, 4.03125, 5.125, 5.5]),
])  # fmt: skip
@pytest.mark.parametrize("mixer", ["vdn", None])
def test_a_group_learns_lambda_targets_of_an_episode(
    mixer: Mixer, terminated: bool, targets: list[float]
) -> None:
    stats = losses_of_an_episode(spec_of(2, mixer=mixer), terminated, td_lambda=0.5)
    errors = np.abs(3.0 - np.array(targets))
    assert stats["mean_q"] == pytest.approx(3.0)
    assert stats["loss"] == pytest.approx(0.5 * np.mean(errors**2))
    # The priority of a sequence.
    assert stats["mean_td_error"] == pytest.approx(0.9 * errors.max() + 0.1 * errors.mean())


@pytest.mark.parametrize(("n_step", "terminated", "targets"), [
    # G_0 = 1 + 0.5 * 2 + 0.25 * 3, and G_2 = 3 + 0.5 * 4, and 0.25 * 3 more where the episode was truncated.
    (2, True, [2.75, 4.25, 5.0, 4.0]),
    (2, False, [2.75, 4.25, 5.75, 5.5]),
    (1, False, [2.5, 3.5, 4.5, 5.5]),
])  # fmt: skip
@pytest.mark.parametrize("mixer", ["vdn", None])
def test_a_recurrent_group_learns_targets_of_a_sequence(
    mixer: Mixer, n_step: int, terminated: bool, targets: list[float]
) -> None:
    spec = spec_of(2, mixer=mixer, cell=Cell("gru", 5))
    stats = losses_of_an_episode(spec, terminated, n_step=n_step, model=MEMORY)
    assert stats["mean_q"] == pytest.approx(3.0)
    assert stats["loss"] == pytest.approx(0.5 * np.mean((3.0 - np.array(targets)) ** 2))


@pytest.mark.parametrize(
    ("settings", "targets"), [({"n_step": 2}, [5.0, 4.0]), ({"td_lambda": 0.5}, [4.75, 4.0])]
)
def test_a_recurrent_group_learns_nothing_from_the_burn_in(
    settings: dict[str, Any], targets: list[float]
) -> None:
    spec = spec_of(2, mixer="vdn", cell=Cell("gru", 5))
    kept = {"replay_buffer_config": {"replay_burn_in": 2}}
    stats = losses_of_an_episode(spec, True, first_t=6, model=MEMORY, **kept, **settings)
    assert stats["loss"] == pytest.approx(0.5 * np.mean((3.0 - np.array(targets)) ** 2))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_recurrent_group_sees_a_sequence_as_it_acts_step_by_step(kind: Any) -> None:
    spec = spec_of(marked=True, cell=Cell(kind, 5))
    weights = lively_weights(spec)
    network = spec.torch_network({name: torch.from_numpy(value) for name, value in weights.items()})
    sequences, steps = 2, 3
    obs = observations(spec, sequences * steps)
    state = before = torch.randn(sequences, sum(spec.state_sizes), generator=torch.Generator().manual_seed(1))
    whole = network.dist_inputs(obs, None, before).reshape(sequences, steps, -1)
    acting = OnnxBackend(spec.graphs({}), spec.head, [weights], sum(spec.state_sizes))
    for step in range(steps):
        rows = obs.reshape(sequences, steps, -1)[:, step]
        decision = acting.decide(rows.numpy(), None, None, 0, state.numpy())
        q_values, state = network.step(rows, None, state)
        torch.testing.assert_close(q_values, whole[:, step])
        assert decision.state is not None
        np.testing.assert_allclose(decision.state, state.numpy(), atol=1e-6)
        best = q_values.reshape(sequences, MEMBERS, -1).argmax(-1)
        assert decision.actions.tolist() == best.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("prioritized", [False, True])
def test_mixing_learns_what_adding_up_cannot_express(prioritized: bool) -> None:
    errors = {}
    for mixer in ("qmix", "vdn", None):
        spec = spec_of(2, mixer=mixer)
        one = learner(spec, spec.first_weights(0), replay_buffer_config={"prioritized_replay": prioritized})
        one.has_first_weights = True
        for number in range(16):
            stats = one.learn(team(64, number), 0)
        errors[mixer] = stats["mean_td_error"]
        assert stats["updates"] == 64.0
        assert all(type(value) is float and math.isfinite(value) for value in stats.values())
    assert errors["qmix"] < 0.4
    assert errors["vdn"] > 1.0
    assert errors[None] > 1.0


def test_every_weight_but_epsilon_learns_and_all_are_published() -> None:
    spec = spec_of(2)
    one = learner(spec, exploration_config={"initial_epsilon": 0.5, "final_epsilon": 0.5})
    before = one.weights()
    one.learn(team(64), 0)
    after = one.weights()
    assert list(after) == [*[name for name in spec.weight_shapes() if name != "epsilon"], "epsilon"]
    for name, value in after.items():
        assert not np.array_equal(value, before[name]), name
    assert after["epsilon"].tolist() == [0.5]
    acting = OnnxBackend(spec.graphs(after), spec.head, [before])
    acting.set_weights(0, after)
    obs, _, _ = random_rows(spec, 5)
    q_values = acting.evaluate(0, obs, None, np.zeros((5, MEMBERS), np.int64)).dist_inputs
    network = spec.torch_network({name: torch.from_numpy(value) for name, value in after.items()})
    np.testing.assert_allclose(q_values, network.dist_inputs(torch.from_numpy(obs), None).numpy(), atol=1e-5)


def test_the_mixing_network_has_its_own_target_network() -> None:
    spec = spec_of(2)
    one = learner(spec, target_network_update_freq=10**9, double_q=False)
    rows = next_rows(spec, [0.0], [1.0])
    name = "mixer.hidden_bias.weight"
    one.learn(team(64), 0)
    one.set_weights(one.weights())
    target, before = one.state()[f"target.{name}"], one.targets(rows).tolist()
    one.learn(team(64), 0)
    np.testing.assert_array_equal(one.state()[f"target.{name}"], target)
    assert not np.array_equal(one.weights()[name], target)
    assert one.targets(rows).tolist() == before
    one.set_weights(one.weights())
    np.testing.assert_array_equal(one.state()[f"target.{name}"], one.weights()[name])
    assert one.targets(rows).tolist() != before


@pytest.mark.each_value
@pytest.mark.parametrize("mixer", ["qmix", None])
@pytest.mark.parametrize("prioritized", [False, True])
def test_a_restored_learner_continues_as_if_it_had_never_stopped(mixer: Any, prioritized: bool) -> None:
    spec = spec_of(2, mixer=mixer)
    settings: dict[str, Any] = {
        "replay_buffer_config": {"prioritized_replay": prioritized}, "target_network_update_freq": 20,
    }  # fmt: skip
    whole, resumed = learner(spec, **settings), learner(spec, **settings)
    whole.learn(team(50), 50)
    resumed.set_weights(whole.weights())
    resumed.set_state(whole.state())
    for number in (1, 2):
        assert whole.learn(team(9, number), 60) == resumed.learn(team(9, number), 60)
    for name, value in whole.weights().items():
        np.testing.assert_array_equal(value, resumed.weights()[name])


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(ConfigError, match="weights"):
        learner(spec_of(2)).set_weights(spec_of(2, mixer="vdn").first_weights(0))


# What the choices of a group's members are worth together.


def group(spec: GroupSpec, seed: int = 0) -> TorchGroup:
    weights = lively_weights(spec, seed)
    return spec.torch_network({name: torch.from_numpy(value) for name, value in weights.items()})


def observations(spec: GroupSpec, rows: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, spec.obs_size), np.float32))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    member=st.integers(0, MEMBERS - 1),
    worth=st.lists(st.floats(-20, 20, width=32), min_size=MEMBERS, max_size=MEMBERS),
    more=st.floats(0.125, 20, width=32),
    mixer=st.sampled_from(["qmix", "vdn"]),
)
def test_the_group_is_never_worth_less_when_a_member_is_worth_more(
    seed: int, member: int, worth: list[float], more: float, mixer: Mixer
) -> None:
    spec = spec_of(mixer=mixer)
    network, obs = group(spec, seed), observations(spec, 1, seed)
    low = torch.tensor([worth])
    high = low.clone()
    high[0, member] += more
    rounding = 1e-4 * (1 + abs(float(network.mixed(high, obs))))
    assert float(network.mixed(high, obs) - network.mixed(low, obs)) >= -rounding
    low.requires_grad_()
    (slope,) = torch.autograd.grad(network.mixed(low, obs).sum(), low)
    assert float(slope.min()) >= 0.0


def test_a_member_can_count_for_more_or_less_depending_on_the_state() -> None:
    # One hidden unit: the first member's weight is the state, the second's 2, the third's 1 minus the state.
    spec = GroupSpec(18, altered(spec_of(2).layout, state=(2,)), (), embed_dim=1)
    weights = constant(spec, [0.0, 0.0])
    weights["mixer.hidden_weight.weight"][:] = [[10.0, 0.0, -10.0]]
    weights["mixer.hidden_weight.bias"][:] = [0.0, 2.0, 1.0]
    weights["mixer.out_weight.bias"][:] = 1.0
    network = spec.torch_network({name: torch.from_numpy(value) for name, value in weights.items()})
    obs, worth = torch.zeros(2, 18), torch.ones(2, MEMBERS, requires_grad=True)
    # The states are 0.75 / 1.25 and (-4 / 3) / (5 / 3), of which weights read a tenth.
    obs[:, 2] = torch.tensor([0.75, -4.0 / 3.0])
    (slope,) = torch.autograd.grad(network.mixed(worth, obs).sum(), worth)
    np.testing.assert_allclose(slope.numpy(), [[0.6, 2.0, 0.4], [0.8, 2.0, 1.8]], rtol=1e-5)


def test_mixing_is_what_was_worked_out_by_hand() -> None:
    # A linear and an exponential hidden unit with equal weights, one number of state, two members. The state is 0.75,
    # divided by sqrt(1 + 0.75 ** 2) 0.6, of which weights read a tenth: the hidden weights are |-50 * 0.06| and
    # |100 * 0.06|, the bias 5 * 0.6, the last weight |50 * 0.06 - 4| = 1, the last bias relu(3) * 4.
    layout = altered(spec_of(2, 2).layout, state=(2,))
    spec = GroupSpec(12, layout, (), embed_dim=2)
    weights = {name: np.zeros(shape, np.float32) for name, shape in spec.weight_shapes().items()}
    weights["mixer.hidden_weight.weight"][:] = [[-50.0, -50.0, 100.0, 100.0]]
    weights["mixer.hidden_bias.weight"][:] = 5.0
    weights["mixer.out_weight.weight"][:] = 50.0
    weights["mixer.out_weight.bias"][:] = -4.0
    weights["mixer.out_bias.0.weight"][:] = [[5.0, 0.0]]
    weights["mixer.out_bias.1.weight"][:] = 4.0
    network = spec.torch_network({name: torch.from_numpy(value) for name, value in weights.items()})
    obs = torch.zeros(2, 12)
    obs[:, 2] = 0.75
    # 3 * 1 + 6 * 2 + 3 = 18; and 3 * -3 + 6 * 0 + 3 = -6, of which the exponential unit makes exp(-6) - 1. Their mean
    # counts.
    found = network.mixed(torch.tensor([[1.0, 2.0], [-3.0, 0.0]]), obs)
    np.testing.assert_allclose(found.numpy(), [30.0, 12.0 + (-6.0 + np.expm1(-6.0)) / 2.0], rtol=1e-6)


@pytest.mark.parametrize("width", [4, 64])
def test_how_much_a_member_counts_does_not_grow_with_the_state_or_the_hidden_layer(width: int) -> None:
    spec = spec_of(embed_dim=width)
    worth = torch.ones(200, MEMBERS, requires_grad=True)
    params = {name: torch.from_numpy(value) for name, value in spec.first_weights(0).items()}
    for size in (1.0, 100.0):
        mixed = spec.torch_network(params).mixed(worth, size * observations(spec, 200))
        (slope,) = torch.autograd.grad(mixed.sum(), worth)
        # Both weights are 1 give or take a tenth, and a hidden unit's slope is 1 above 0.
        assert float(slope.mean()) == pytest.approx(1.0, abs=0.1)


def test_deviations_are_joint_actions_in_which_one_member_does_something_else() -> None:
    spec = spec_of(2, mixer="vdn", hiddens=())
    one = learner(spec, constant(spec, [1.0, 3.0]))
    q_values, taken = torch.tensor([[[1.0, 3.0], [5.0, 7.0], [0.0, 9.0]]]), torch.tensor([[3.0, 5.0, 0.0]])
    found = one._network.deviations(q_values, taken, torch.zeros(1, spec.obs_size))
    assert found.tolist() == [[[6.0, 8.0], [8.0, 10.0], [8.0, 17.0]]]


def test_vdn_adds_up_and_no_mixer_leaves_each_to_itself() -> None:
    worth = torch.tensor([[1.0, 2.0, 4.0], [-1.0, 0.0, 0.5]])
    for mixer, wanted in (("vdn", [7.0, -0.5]), (None, worth.tolist())):
        spec = spec_of(mixer=mixer)
        assert not [name for name in spec.weight_shapes() if name.startswith("mixer.")]
        assert group(spec).mixed(worth, observations(spec, 2)).tolist() == wanted


@pytest.mark.parametrize("mixer", ["qmix", "vdn", None])
def test_specs_are_equal_if_the_networks_are(mixer: Mixer) -> None:
    assert spec_of(mixer=mixer) == spec_of(mixer=mixer)
    assert spec_of(mixer=mixer) != spec_of(mixer=mixer, hiddens=(17,))
    assert spec_of(mixer="vdn") != spec_of(mixer="qmix")


def test_a_new_group_is_worth_the_sum_of_its_members_in_a_state_of_zeros() -> None:
    # All weights are their biases of 1, all other biases 0. Half the units are linear; of a sum x below 0 the others
    # make exp(x) - 1: (x + exp(x) - 1) / 2 with the slope (1 + exp(x)) / 2, so members that cost much still learn.
    spec = spec_of()
    for seed in range(5):
        first = spec.first_weights(seed)
        params = {name: torch.from_numpy(value).requires_grad_() for name, value in first.items()}
        worth = torch.tensor([[1.0, 2.0, 4.0], [-1.0, 0.0, -1.0], [-9.0, -9.0, -9.0]], requires_grad=True)
        mixed = spec.torch_network(params).mixed(worth, torch.zeros(3, spec.obs_size))
        wanted = [7.0, (-2.0 + np.expm1(-2.0)) / 2.0, (-27.0 + np.expm1(-27.0)) / 2.0]
        np.testing.assert_allclose(mixed.detach().numpy(), wanted, rtol=1e-5)
        biases = [params["mixer.hidden_weight.bias"], params["mixer.out_weight.bias"]]
        slopes = torch.autograd.grad(mixed.sum(), [worth, *biases])
        each = np.array([1.0, (1.0 + np.exp(-2.0)) / 2.0, (1.0 + np.exp(-27.0)) / 2.0])
        np.testing.assert_allclose(slopes[0].numpy(), np.repeat(each[:, None], MEMBERS, 1), rtol=1e-5)
        assert all(float(slope.abs().min()) > 0.0 for slope in slopes[1:])
