"""The convolutions of a stock network as bare torch operations on parameters that somebody else owns.

`TorchStock` puts them below its fully connected layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from torch.nn import functional

from menv.algorithms.networks.conv_stack import ConvLayer
from menv.algorithms.torch_device import constant

PIXEL = 1.0 / 255.0


class TorchConv:
    """One trunk of convolutions.

    Args:
        shape: Height, width and channels of the image.
        layers: First to last.
        params: A tensor for each of their weights.
        activation: After each layer, None for nothing.
        pixels: Whether rows hold bytes, which are scaled to [0, 1].
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        layers: Sequence[ConvLayer],
        params: Mapping[str, Tensor],
        activation: Callable[[Tensor], Tensor] | None,
        pixels: bool,
    ) -> None:
        self._shape = shape
        self._layers = [
            (layer, params[f"{layer.name}.weight"], params[f"{layer.name}.bias"]) for layer in layers
        ]
        self._activation = activation
        self._pixels = pixels

    def __call__(self, rows: Tensor) -> Tensor:
        """Return [N, features], channel after channel, from images as rows [N, F]."""
        # The product of bytes and a float32 is float32, in one pass.
        x = (
            (rows * constant(PIXEL, rows.device) if self._pixels else rows)
            .view(-1, *self._shape)
            .permute(0, 3, 1, 2)
        )
        for layer, weight, bias in self._layers:
            top, left, bottom, right = layer.pads
            if (top, left) != (bottom, right):
                x = functional.pad(x, (left, right, top, bottom))
                top = left = 0
            x = functional.conv2d(x, weight, bias, layer.stride, (top, left))
            if self._activation is not None:
                x = self._activation(x)
        return x.flatten(1)
