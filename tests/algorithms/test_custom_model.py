"""A user's own torch module as the network of a policy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from menv.algorithms import ModelConfig
from menv.algorithms.networks.custom_model import CustomSpec, ObsStructure
from menv.algorithms.networks.stock_spec import StockSpec
from menv.algorithms.networks.torch_backend import TorchBackend
from menv.algorithms.training.flat_adam import FlatAdam
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError
from menv.inference.heads.categorical import Categorical, MultiCategorical
from menv.inference.heads.gaussian import Gaussian
from menv.inference.heads.head import ActionHead
from menv.inference.heads.q_values import QValues
from tests.worlds import like

BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
CHOICE = Categorical((3,))
WORTH = QValues((3,))


class Net(nn.Module):
    """Two heads on one layer, over whatever flattens."""

    def __init__(self, obs_space: Any, num_outputs: int, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Linear(int(np.prod(obs_space.shape)), width)
        self.policy = nn.Linear(width, num_outputs)
        self.value = nn.Linear(width, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.body(obs.flatten(1)))
        return self.policy(features), self.value(features)[:, 0]


class Moody(Net):
    """Does something else when it likes the numbers."""

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(obs if obs.sum() > 0 else -obs)


class Eye(nn.Module):
    """Convolutions of the user's own."""

    def __init__(self, obs_space: Any, num_outputs: int, **config: Any) -> None:
        super().__init__()
        assert len(obs_space.shape) == 3
        self.eye = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten()
        )
        self.body = nn.LazyLinear(64)
        self.policy, self.value = nn.Linear(64, num_outputs), nn.Linear(64, 1)

    def forward(self, obs: Tensor) -> Any:
        features = torch.relu(self.body(self.eye(obs.permute(0, 3, 1, 2) / 255)))
        return self.policy(features), self.value(features)[:, 0]


def spec_of(model: Any = Net, head: ActionHead = CHOICE, space: Any = BOX, **config: Any) -> CustomSpec:
    return CustomSpec(space, head, model, config)


def test_weights_have_the_names_and_shapes_of_the_modules_parameters() -> None:
    assert spec_of(width=8).weight_shapes() == {
        "body.weight": (8, 4),
        "body.bias": (8,),
        "policy.weight": (3, 8),
        "policy.bias": (3,),
        "value.weight": (1, 8),
        "value.bias": (1,),
    }
    assert spec_of(head=WORTH).weight_shapes()["epsilon"] == (1,)
    assert spec_of(head=Gaussian((2,))).weight_shapes()["policy.bias"] == (4,)


def test_first_weights_equal_the_weights_that_the_module_draws_under_the_seed() -> None:
    torch.manual_seed(7)
    wanted = Net(BOX, 3)
    before = torch.get_rng_state()
    found = spec_of().first_weights(7)
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in wanted.state_dict().items():
        np.testing.assert_array_equal(found[name], value.numpy())
    assert not np.array_equal(spec_of().first_weights(8)["body.weight"], found["body.weight"])


@pytest.mark.parametrize("head", [CHOICE, MultiCategorical((2, 3)), Gaussian((2,)), WORTH])
def test_it_acts_with_the_weights_of_each_policy_and_masks_choices(head: ActionHead) -> None:
    spec = spec_of(head=head)
    weights = [spec.first_weights(seed) for seed in range(3)]
    acting = TorchBackend(spec.torch_network, head, weights)
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((40, 4), np.float32)
    which = rng.integers(0, 3, 40)
    for policy in range(3):
        module = Net(BOX, head.inputs)
        named = {
            name: torch.from_numpy(value) for name, value in weights[policy].items() if name != "epsilon"
        }
        module.load_state_dict(named)
        with torch.no_grad():
            outputs, values = (found.numpy() for found in module(torch.from_numpy(obs)))
        greedy = acting.decide(obs, None, None, which).actions[which == policy]
        evaluation = acting.evaluate(policy, obs, None, acting.decide(obs, None, None, policy).actions)
        np.testing.assert_allclose(evaluation.dist_inputs, outputs, rtol=1e-5, atol=1e-6)
        if head.kind == "q_values":
            values = outputs.max(axis=1)
        np.testing.assert_allclose(acting.values(policy, obs), values, rtol=1e-5, atol=1e-6)
        if head.kind in ("categorical", "q_values"):
            np.testing.assert_array_equal(greedy, outputs.argmax(1)[which == policy])
            mask = np.ones((40, 3), np.bool_)
            mask[np.arange(40), outputs.argmax(1)] = False
            assert mask[np.arange(40), acting.decide(obs, mask, None, policy).actions].all()


def test_a_gradient_step_is_that_of_torchs_own_adam_on_the_module() -> None:
    spec = spec_of(Eye, space=gym.spaces.Box(0, 255, (12, 12, 1), np.uint8))
    adam = FlatAdam(spec.first_weights(3), 1e-2)
    network = spec.torch_network(adam.params)
    rows = torch.randint(0, 256, (8, 144), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = Eye(gym.spaces.Box(0, 255, (12, 12, 1), np.uint8), 3)
        module(torch.zeros(2, 12, 12, 1))
    optimizer = torch.optim.Adam(module.parameters(), 1e-2, eps=1e-5)
    for _ in range(3):
        for inputs, values in (network.both(rows, None), module(rows.float().view(8, 12, 12, 1))):
            torch.autograd.backward((inputs.square().sum() + (values - 1.0).square().sum(),))
        adam.step()
        optimizer.step()
        optimizer.zero_grad()
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(adam.weights()[name], value.numpy(), rtol=1e-3, atol=1e-5)


class Kept(Net):
    """Has what is not learned: a frozen layer, a drawn buffer, dropout, and one parameter under two names."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__(obs_space, num_outputs)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("drawn", torch.randn(4))
        self.dropout = nn.Dropout(0.9)
        self.again = self.body

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(self.dropout(self.frozen(obs)) + self.drawn)


def test_frozen_parameters_and_buffers_are_the_same_for_every_policy_and_dropout_is_off() -> None:
    spec = spec_of(Kept)
    assert set(spec.weight_shapes()) == set(spec_of().weight_shapes())
    weights = spec.first_weights(4)
    obs = np.random.default_rng(0).standard_normal((9, 4), np.float32)
    one, other = (TorchBackend(spec.torch_network, CHOICE, [weights]) for _ in range(2))
    np.testing.assert_array_equal(one.values(0, obs), one.values(0, obs))
    np.testing.assert_array_equal(one.values(0, obs), other.values(0, obs))
    assert len(set(one.values(0, obs).tolist())) == 9


NESTED = gym.spaces.Dict(
    {
        "action_mask": gym.spaces.MultiBinary(3),
        "b": gym.spaces.Tuple([gym.spaces.Discrete(3, start=1), gym.spaces.MultiDiscrete([2, 2])]),
        "a": gym.spaces.Box(-9.0, 9.0, (2, 2), np.float32),
        "c": gym.spaces.MultiBinary((2, 1)),
    }
)


def test_observations_come_in_the_form_of_their_space_without_the_mask() -> None:
    structure = ObsStructure(NESTED)
    assert "action_mask" not in structure.space.spaces  # type: ignore[attr-defined]
    NESTED.seed(3)
    raw = [
        NESTED.sample(mask={"action_mask": None, "a": None, "c": None, "b": (None, None)}) for _ in range(5)
    ]
    for one in raw:
        one["action_mask"][:] = 1
    rows, _ = ObsPreprocessor(NESTED)(raw)
    shown = structure(torch.from_numpy(rows))
    assert set(shown) == {"a", "b", "c"}
    np.testing.assert_array_equal(shown["a"].numpy(), np.stack([one["a"] for one in raw]))
    np.testing.assert_array_equal(shown["c"].numpy(), np.stack([one["c"] for one in raw]))
    discrete, several = shown["b"]
    np.testing.assert_array_equal(discrete.numpy().argmax(1) + 1, [one["b"][0] for one in raw])
    assert discrete.shape == (5, 3)
    np.testing.assert_array_equal(several.view(5, 2, 2).numpy().argmax(2), [one["b"][1] for one in raw])


def test_policies_share_a_group_if_class_and_arguments_are_equal() -> None:
    assert spec_of(width=8) == spec_of(width=8)
    assert spec_of(width=8) != spec_of(width=9)
    assert spec_of() != spec_of(Kept)
    assert spec_of() != spec_of(head=Categorical((4,)))
    assert spec_of() != StockSpec(4, CHOICE)

    scaled = like(
        Net, __init__=lambda self, obs_space, num_outputs, scale: Net.__init__(self, obs_space, num_outputs)
    )
    assert spec_of(scaled, scale=np.ones(3)) != spec_of(scaled, scale=np.ones(3))


def gives(result: Any) -> Any:
    """Return a module class whose forward gives what `result` makes of (outputs, values)."""

    return like(Net, forward=lambda self, obs: result(*Net.forward(self, obs)))


def test_q_values_may_come_alone_or_first_in_a_tuple_and_must_be_one_for_each_action() -> None:
    for result in (lambda outputs, values: outputs, lambda outputs, values: (outputs,), lambda *both: both):
        assert spec_of(gives(result), WORTH).first_weights(0)["epsilon"].tolist() == [1.0]
    for wrong in (lambda outputs, values: outputs[:, 0], lambda outputs, values: ()):
        with pytest.raises(ConfigError, match="custom_model"):
            spec_of(gives(wrong), WORTH)


class WithBatchNorm(Net):
    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__(obs_space, num_outputs)
        self.norm = nn.BatchNorm1d(4)


WithState = like(Net, get_initial_state=lambda self: [torch.zeros(3)])
BadState = like(WithState, get_initial_state=lambda self: [torch.zeros(1, 4)])


class Doubles(Net):
    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__(obs_space, num_outputs)
        self.scale = nn.Parameter(torch.ones(2, dtype=torch.float64))


Classic = like(
    Net, forward=lambda self, input_dict, state, seq_lens: (Net.forward(self, input_dict["obs"]), state)
)


class Unlearned(Net):
    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__(obs_space, num_outputs)
        self.requires_grad_(False)


@pytest.mark.parametrize("model", [
    gives(lambda outputs, values: outputs),
    gives(lambda outputs, values: (outputs[:, :2], values)),
    gives(lambda outputs, values: (outputs, values[:, None])),
    gives(lambda outputs, values: (outputs, values, None)),
    gives(lambda outputs, values: (outputs.double(), values)),
    gives(lambda outputs, values: {"outputs": outputs}),
    gives(lambda outputs, values: None),
    gives(lambda outputs, values: (outputs.detach(), values)),
    gives(lambda outputs, values: values @ outputs.T @ values),
    WithBatchNorm, WithState, BadState, Doubles, Classic, Unlearned,
    lambda obs_space, num_outputs: 7,
    lambda obs_space: None,
])  # fmt: skip
def test_modules_that_cannot_be_learned_are_refused_by_name(model: Any) -> None:
    before = torch.get_rng_state()
    with pytest.raises(ConfigError, match="custom_model") as caught:
        spec_of(model)
    assert model.__name__ in str(caught.value)
    assert "\n" not in str(caught.value)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("model", [
    {"custom_model": Net(BOX, 3)}, {"custom_model": "my_model"}, {"custom_model_config": {"width": 3}},
    {"custom_model": Net, "conv_filters": [[4, 3, 1]]}, {"custom_model": Net, "custom_model_config": [3]},
])  # fmt: skip
def test_settings_that_cannot_work_are_refused(model: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(reversed(model))):
        ModelConfig(**model)
