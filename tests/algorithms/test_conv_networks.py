"""Networks with convolutions: what they compute, in torch and in ONNX Runtime, for one policy and for several."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch

from menv.algorithms import PPO
from menv.algorithms.flat_adam import FlatAdam
from menv.algorithms.networks.stock_graphs import StockGraphs
from menv.algorithms.networks.stock_spec import (
    Activation,
    ConvLayer,
    ConvStack,
    StockSpec,
    default_filters,
    read_filters,
)
from menv.algorithms.networks.torch_stock import TorchStock
from menv.algorithms.torch_backend import TorchBackend, check_against
from menv.errors import ConfigError
from menv.inference.acting_graphs import GraphKind
from menv.inference.action_heads import ActionHead
from menv.inference.onnx_backend import OnnxBackend
from tests.inference.lively import lively_weights

HEADS = [
    ActionHead("categorical", (3,)),
    ActionHead("multi_categorical", (3, 2)),
    ActionHead("gaussian", (2,)),
    ActionHead("q_values", (4,)),
]
# Even and odd sizes, kernels that need more zeros on one side, a wide last layer, one with a single channel.
SHAPES: list[tuple[tuple[int, int, int], Any]] = [
    ((24, 24, 1), None),
    ((46, 12, 3), [[8, [4, 3], [2, 1]], [5, 3, 2], [7, [3, 2], 1]]),
    ((12, 13, 4), [[4, 2, 2], [1, 3, 1], [3, 3, 2]]),
    ((84, 84, 3), [[16, [8, 8], 4], [32, [4, 4], 2], [64, [11, 11], 1]]),
]
ACTIVATIONS: list[Activation] = ["relu", "tanh", "silu", "elu", "linear"]


def spec_of(
    shape: tuple[int, int, int],
    filters: Any,
    head: ActionHead = HEADS[0],
    activation: Activation = "relu",
    pixels: bool = True,
    share: bool = False,
) -> StockSpec:
    stack = ConvStack(shape, read_filters(filters) if filters else default_filters(shape), activation)
    dueling = head.kind == "q_values" and share
    shared = share and not dueling
    size = int(np.prod(shape))
    return StockSpec(size, head, (33,), activation, shared, dueling, conv=stack, pixels=pixels)


def random_rows(spec: StockSpec, rows: int) -> tuple[Any, Any, Any]:
    rng, head = np.random.default_rng(rows), spec.head
    obs: Any = rng.standard_normal((rows, spec.obs_size), np.float32)
    if spec.pixels:
        obs = rng.integers(0, 256, (rows, spec.obs_size), np.uint8)
    if head.kind == "gaussian":
        return obs, None, rng.standard_normal((rows, head.noise_width), np.float32)
    mask = rng.random((rows, head.mask_width)) < 0.5
    mask[:, np.cumsum((0, *head.sizes[:-1]))] = True
    return (
        obs,
        mask,
        rng.integers(0, 2**23, (rows, head.noise_width)).astype(np.float32) * np.float32(2.0**-23),
    )


def onnx_acting(spec: StockSpec, policies: int = 1) -> OnnxBackend:
    return OnnxBackend(
        StockGraphs(spec), spec.head, [lively_weights(spec, seed, shaken_by=0.1) for seed in range(policies)]
    )


def torch_acting(spec: StockSpec, policies: int = 1) -> TorchBackend:
    return TorchBackend(
        spec.torch_network, spec.head, [lively_weights(spec, seed, shaken_by=0.1) for seed in range(policies)]
    )


def by_hand(image: Any, layer: ConvLayer, weight: Any, bias: Any, padded: bool) -> npt.NDArray[np.float64]:
    """Convolve [H, W, C] by the definition; zeros are shared out evenly, one more behind if they are odd."""
    (down, across), (tall, wide) = layer.stride, layer.kernel
    if padded:
        out = [-(-side // stride) for side, stride in zip(image.shape, layer.stride, strict=False)]
        zeros = [
            max(0, (n - 1) * s + k - side)
            for n, s, k, side in zip(out, layer.stride, layer.kernel, image.shape, strict=False)
        ]
        image = np.pad(image, [*((total // 2, total - total // 2) for total in zeros), (0, 0)])
    rows, columns = (image.shape[0] - tall) // down + 1, (image.shape[1] - wide) // across + 1
    found = np.empty((layer.outputs, rows, columns))
    for y in range(rows):
        for x in range(columns):
            part = image[y * down : y * down + tall, x * across : x * across + wide]
            found[:, y, x] = np.einsum("hwc,ochw->o", part, weight) + bias
    return found


@pytest.mark.parametrize(("shape", "filters"), SHAPES[:3])
@pytest.mark.parametrize("pixels", [False, True])
def test_convolutions_are_what_the_definition_says(shape: Any, filters: Any, pixels: bool) -> None:
    spec = spec_of(shape, filters, pixels=pixels)
    assert spec.conv is not None
    layers, weights = spec.conv_layers("policy"), lively_weights(spec, 0, shaken_by=0.1)
    params = {name: torch.from_numpy(value) for name, value in weights.items()}
    row = random_rows(spec, 1)[0]
    found = TorchStock(spec, params).dist_inputs(torch.from_numpy(row), None)
    image = row[0].reshape(shape) / (255.0 if pixels else 1.0)
    for layer in layers:
        weight, bias = weights[f"{layer.name}.weight"], weights[f"{layer.name}.bias"]
        answer = np.maximum(by_hand(image, layer, weight, bias, layer is not layers[-1]), 0.0)
        assert answer.shape[1:] == layer.size
        image = np.moveaxis(answer, 0, 2)
    features = answer.reshape(-1)
    assert len(features) == spec.conv.features
    hidden = np.maximum(features @ weights["policy.0.weight"] + weights["policy.0.bias"], 0.0)
    wanted = hidden @ weights["policy.out.weight"] + weights["policy.out.bias"]
    np.testing.assert_allclose(found[0].numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.each_value
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("pixels", [False, True])
def test_torch_and_onnx_agree_on_everything(head: ActionHead, share: bool, pixels: bool) -> None:
    for shape, filters in SHAPES[:3]:
        spec = spec_of(shape, filters, head, "tanh", pixels, share)
        mine, reference = onnx_acting(spec), torch_acting(spec)
        obs, mask, noise = random_rows(spec, 40)
        actions = mine.decide(obs, mask, noise).actions
        np.testing.assert_allclose(reference.decide(obs, mask, noise).actions, actions, rtol=1e-4, atol=1e-4)
        for ours, theirs in zip(
            mine.evaluate(0, obs, mask, actions), reference.evaluate(0, obs, mask, actions), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(mine.values(0, obs), reference.values(0, obs), rtol=1e-4, atol=1e-4)
        network = spec.torch_network(
            {name: torch.from_numpy(w) for name, w in lively_weights(spec, 0, shaken_by=0.1).items()}
        )
        inputs, values = network.both(torch.from_numpy(obs), None if mask is None else torch.from_numpy(mask))
        np.testing.assert_allclose(
            inputs.numpy(), mine.evaluate(0, obs, mask, actions)[0], rtol=1e-4, atol=1e-4
        )
        np.testing.assert_allclose(values.numpy(), mine.values(0, obs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_check_of_backends_reads_bytes_where_observations_are_bytes(activation: Activation) -> None:
    spec = spec_of(*SHAPES[2], activation=activation)
    mine, reference = onnx_acting(spec, 2), torch_acting(spec, 2)
    check_against(mine, reference, np.random.default_rng(0), dtype=np.uint8)
    changed = mine.get_weights(1)
    changed["value.conv1.weight"] += 0.5
    mine.set_weights(1, changed)
    with pytest.raises(ConfigError, match="values of policy 1 differ"):
        check_against(mine, reference, np.random.default_rng(0), dtype=np.uint8)


class Small(gym.Env[Any, Any]):
    """Shows images that get no convolutions."""

    observation_space = gym.spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = gym.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (12, 12, 3)).astype(np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.np_random.integers(0, 256, (12, 12, 3)).astype(np.uint8), 1.0, False, False, {}


# What failed with bytes of up to 255, by rounding alone.
@pytest.mark.parametrize("seed", [5, 10])
def test_large_bytes_that_nothing_divides_are_no_reason_to_act_with_torch(seed: int) -> None:
    config = {
        "train_batch_size": 4,
        "rollout_fragment_length": 4,
        "num_sgd_iter": 1,
        "model": {"use_lstm": True},
    }
    with PPO(env=lambda context: Small(), config={**config, "seed": seed}) as algorithm:
        assert algorithm.train()["inference"] == {"default_policy": "onnx"}


@pytest.mark.slow_unless("*-relu", "shape1-*")
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("shape", "filters"), SHAPES)
def test_a_rows_answer_does_not_depend_on_the_batch_size_to_the_last_bit(
    shape: Any, filters: Any, activation: Activation
) -> None:
    spec = spec_of(shape, filters, HEADS[2], activation)
    acting = onnx_acting(spec)
    obs, _, noise = random_rows(spec, 67)
    actions = acting.decide(obs, None, noise).actions
    expected = [actions, *acting.evaluate(0, obs, None, actions), acting.values(0, obs)]
    for size in (1, 2, 3, 5, 8, 13, 31, 66):
        for start in (0, 67 - size):
            part = slice(start, start + size)
            found = [
                acting.decide(obs[part], None, noise[part]).actions,
                *acting.evaluate(0, obs[part], None, actions[part]),
                acting.values(0, obs[part]),
            ]
            for ours, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(ours, wanted[part])


@pytest.mark.parametrize("width", [1, 21, 37, 64])
def test_elu_rounds_alike_in_every_batch_without_convolutions_too(width: int) -> None:
    spec = StockSpec(5, ActionHead("gaussian", (3,)), (width, width), "elu")
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape, np.float32) for name, shape in spec.weight_shapes().items()}
    acting = OnnxBackend(StockGraphs(spec), spec.head, [weights])
    obs = rng.standard_normal((300, 5), np.float32)
    whole = acting.values(0, obs)
    for size in range(1, 40):
        for start in range(0, 300 - size, 37):
            np.testing.assert_array_equal(
                acting.values(0, obs[start : start + size]), whole[start : start + size]
            )


@pytest.mark.parametrize("head", HEADS)
def test_many_policies_in_one_batch_answer_as_each_alone_to_the_last_bit(head: ActionHead) -> None:
    spec = spec_of(*SHAPES[2], head)
    acting, reference = onnx_acting(spec, policies=3), torch_acting(spec, policies=3)
    for rows in (0, 1, 2, 7, 50):
        obs, mask, noise = random_rows(spec, rows)
        which = np.random.default_rng(rows).integers(0, 3, rows)
        drawn, best = (
            acting.decide(obs, mask, noise, which).actions,
            acting.decide(obs, mask, None, which).actions,
        )
        for policy in range(3):
            mine = which == policy
            np.testing.assert_array_equal(drawn[mine], acting.decide(obs, mask, noise, policy).actions[mine])
            np.testing.assert_array_equal(best[mine], acting.decide(obs, mask, None, policy).actions[mine])
        np.testing.assert_allclose(
            reference.decide(obs, mask, None, which).actions, best, rtol=1e-4, atol=1e-4
        )


def test_more_rows_than_are_computed_at_a_time_are_answered_alike() -> None:
    spec = spec_of((84, 84, 3), SHAPES[3][1])
    acting, reference = onnx_acting(spec), torch_acting(spec)
    obs, mask, noise = random_rows(spec, 230)
    actions = acting.decide(obs, mask, noise).actions
    for backend in (acting, reference):
        values, (inputs, logp) = backend.values(0, obs), backend.evaluate(0, obs, mask, actions)
        for part in (slice(0, 20), slice(190, 230)):
            np.testing.assert_allclose(backend.values(0, obs[part]), values[part], rtol=1e-5, atol=1e-5)
            again = backend.evaluate(0, obs[part], mask[part], actions[part])
            np.testing.assert_allclose(again.dist_inputs, inputs[part], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(again.logp, logp[part], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["act", "greedy", "evaluate", "values"])
@pytest.mark.parametrize("head", HEADS)
def test_every_graph_is_valid_onnx_and_none_is_stacked(kind: GraphKind, head: ActionHead) -> None:
    for pixels in (False, True):
        graphs = StockGraphs(spec_of(*SHAPES[1], head, "silu", pixels, share=pixels))
        assert not graphs.stacks
        model = onnx.load_from_string(graphs.build(kind, masked=head.mask_width > 0 and kind != "values"))
        onnx.checker.check_model(model, full_check=True)
    assert StockGraphs(StockSpec(4, head)).stacks


def test_a_small_image_of_bytes_without_convolutions_is_read_as_the_numbers_that_it_holds() -> None:
    bytes_spec, float_spec = (StockSpec(12, HEADS[0], (8,), pixels=pixels) for pixels in (True, False))
    weights = lively_weights(float_spec, 1, shaken_by=0.1)
    obs = np.random.default_rng(0).integers(0, 256, (9, 12), np.uint8)
    wanted = OnnxBackend(StockGraphs(float_spec), HEADS[0], [weights]).values(0, obs.astype(np.float32))
    for backend in (
        OnnxBackend(StockGraphs(bytes_spec), HEADS[0], [weights]),
        TorchBackend(bytes_spec.torch_network, HEADS[0], [weights]),
    ):
        np.testing.assert_allclose(backend.values(0, obs), wanted, rtol=1e-5)


def test_bytes_and_floats_are_not_mistaken_for_each_other() -> None:
    acting = onnx_acting(spec_of(*SHAPES[2]))
    obs, mask, noise = random_rows(spec_of(*SHAPES[2]), 3)
    with pytest.raises(ConfigError, match=r"obs is float32 \[3, 624\], expected uint8"):
        acting.decide(obs.astype(np.float32), mask, noise)


def test_names_and_shapes_of_weights_and_which_trunk_they_belong_to() -> None:
    stack = ConvStack((6, 6, 2), read_filters([[4, 3, 2], [5, 2, 1]]))
    shapes = StockSpec(72, HEADS[0], (8,), conv=stack).weight_shapes()
    assert {name: shape for name, shape in shapes.items() if name.startswith("policy")} == {
        "policy.conv0.weight": (4, 2, 3, 3),
        "policy.conv0.bias": (4,),
        "policy.conv1.weight": (5, 4, 2, 2),
        "policy.conv1.bias": (5,),
        "policy.0.weight": (20, 8),
        "policy.0.bias": (8,),
        "policy.out.weight": (8, 3),
        "policy.out.bias": (3,),
    }
    shared = StockSpec(72, HEADS[0], (8,), vf_share_layers=True, conv=stack).weight_shapes()
    assert sorted({name.partition(".")[0] for name in shared if "conv" in name}) == ["shared"]
    assert len(shapes) == 16
    assert len(shared) == 10


def test_first_kernels_are_orthogonal_and_the_layers_of_flat_networks_are_as_ever() -> None:
    spec = spec_of((24, 24, 1), None)
    weights = spec.first_weights(3)
    for layer in spec.conv_layers("value"):
        matrix = weights[f"{layer.name}.weight"].reshape(layer.outputs, -1).astype(np.float64)
        small = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
        np.testing.assert_allclose(small, 2.0 * np.eye(len(small)), atol=1e-5)
        assert not weights[f"{layer.name}.bias"].any()
    assert spec.conv is not None
    flat = StockSpec(spec.conv.features, spec.head, (33,), "relu").first_weights(3)
    for name, value in flat.items():
        np.testing.assert_array_equal(weights[name], value)
    again, other = spec.first_weights(3), spec.first_weights(4)
    np.testing.assert_array_equal(again["policy.conv0.weight"], weights["policy.conv0.weight"])
    assert not np.array_equal(other["policy.conv0.weight"], weights["policy.conv0.weight"])


def test_a_gradient_step_moves_every_kernel_and_is_that_of_torch() -> None:
    spec = spec_of(*SHAPES[1], share=True)
    weights = lively_weights(spec, 0, shaken_by=0.1)
    adam = FlatAdam(weights, 1e-3)
    obs = torch.from_numpy(random_rows(spec, 16)[0])
    copies = {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in weights.items()}
    optimizer = torch.optim.Adam(list(copies.values()), 1e-3, eps=1e-5)
    for _ in range(3):
        for params in (adam.params, copies):
            inputs, values = spec.torch_network(params).both(obs, None)
            torch.autograd.backward((inputs.square().mean() + (values - 1.0).square().mean(),))
        adam.step()
        optimizer.step()
        optimizer.zero_grad()
    for name, found in adam.weights().items():
        np.testing.assert_allclose(found, copies[name].detach().numpy(), rtol=1e-4, atol=2e-5)
        assert not np.array_equal(found, weights[name])


def test_specs_differ_if_their_convolutions_do() -> None:
    same = partial(spec_of, (24, 24, 1), None)
    assert same() == same()
    assert len({same(), same(pixels=False), same(activation="tanh"), spec_of((24, 24, 1), [[8, 4, 2]])}) == 4
