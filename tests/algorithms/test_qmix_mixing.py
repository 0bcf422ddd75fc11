"""What the choices of a group's members are worth together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from menv.algorithms.qmix.learner import TorchGroup
from menv.algorithms.qmix.network import GroupSpec, Mixer
from tests.algorithms.groups_of_three import MEMBERS, STATE, spec_of
from tests.inference.lively import lively_weights


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
    spec = spec_of()
    worth, obs = torch.ones(50, MEMBERS, requires_grad=True), observations(spec, 50)
    (slope,) = torch.autograd.grad(group(spec).mixed(worth, obs).sum(), worth)
    assert float(slope[:, 0].max()) > 2.0 * float(slope[:, 0].min())


def test_mixing_is_what_was_worked_out_by_hand() -> None:
    # One hidden unit, one number of state, two members. The state is 2: the hidden weights are |-1 * 2| and
    # |3 * 2|, its bias 2, the last weight |0.5 * 2 - 2| = 1, the last bias relu(2) * 4.
    layout = spec_of(2, 2).layout._replace(state=(2,))
    spec = GroupSpec(12, layout, (), embed_dim=1)
    weights = {name: np.zeros(shape, np.float32) for name, shape in spec.weight_shapes().items()}
    weights["mixer.hidden_weight.weight"][:] = [[-1.0, 3.0]]
    weights["mixer.hidden_bias.weight"][:] = 1.0
    weights["mixer.out_weight.weight"][:] = 0.5
    weights["mixer.out_weight.bias"][:] = -2.0
    weights["mixer.out_bias.0.weight"][:] = 1.0
    weights["mixer.out_bias.1.weight"][:] = 4.0
    network = spec.torch_network({name: torch.from_numpy(value) for name, value in weights.items()})
    obs = torch.zeros(2, 12)
    obs[:, 2] = 2.0
    # 2 * 1 + 6 * 2 + 2 = 16; and 2 * -4 + 6 * 0 + 2 = -6, of which the exponential unit makes exp(-6) - 1.
    found = network.mixed(torch.tensor([[1.0, 2.0], [-4.0, 0.0]]), obs)
    np.testing.assert_allclose(found.numpy(), [24.0, 8.0 + np.expm1(-6.0)], rtol=1e-6)


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


def test_every_member_of_a_new_group_counts_in_a_state_of_zeros() -> None:
    # |0 * weight + bias| of a bias of 0 would have no slope, and neither would the hidden unit's |0| above it.
    spec = spec_of()
    for seed in range(5):
        first = spec.first_weights(seed)
        params = {name: torch.from_numpy(value).requires_grad_() for name, value in first.items()}
        network, worth = spec.torch_network(params), torch.ones(1, MEMBERS, requires_grad=True)
        biases = [params["mixer.hidden_weight.bias"], params["mixer.out_weight.bias"]]
        slopes = torch.autograd.grad(
            network.mixed(worth, torch.zeros(1, spec.obs_size)).sum(), [worth, *biases]
        )
        assert float(slopes[0].min()) > 1e-3
        for bias, slope in zip(biases, slopes[1:], strict=True):
            assert 0.0 < float(bias.detach().abs().max()) <= 1.0 / np.sqrt(STATE)
            assert float(slope.abs().max()) > 0.0
