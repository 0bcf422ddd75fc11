"""Networks with convolutions: what they compute, in torch and in ONNX Runtime, for one policy and for several."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from menv.algorithms.networks.stock_spec import ConvLayer
from menv.algorithms.networks.torch_stock import TorchStock
from menv.algorithms.training.flat_adam import FlatAdam
from tests.algorithms.test_backends_agree import CHOICES, IMAGES, of_images, random_rows, weights_of


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


@pytest.mark.parametrize("place", range(len(IMAGES)))
@pytest.mark.parametrize("pixels", [False, True])
def test_convolutions_are_what_the_definition_says(place: int, pixels: bool) -> None:
    spec = of_images(place, CHOICES, "relu", pixels)
    assert spec.conv is not None
    layers, (weights,) = spec.conv_layers("policy"), weights_of(spec, 1)
    params = {name: torch.from_numpy(value) for name, value in weights.items()}
    row = random_rows(spec, 1)[0]
    found = TorchStock(spec, params).dist_inputs(torch.from_numpy(row), None)
    image = row[0].reshape(spec.conv.shape) / (255.0 if pixels else 1.0)
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


def test_a_gradient_step_moves_every_kernel_and_is_that_of_torch() -> None:
    spec = of_images(1, CHOICES, "relu", share=True)
    (weights,) = weights_of(spec, 1)
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
