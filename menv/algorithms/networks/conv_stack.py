"""The convolutions of a stock network: which filters, over which image, and what comes out.

`StockSpec` holds one where observations are images; the torch form and the graphs read its layers. It needs
neither torch nor onnx.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from menv.errors import ConfigError

if TYPE_CHECKING:
    from menv.algorithms.networks.stock import Activation

MOST_SIZE = 2**31 - 1
"""Of one layer: sides of arrays that every library takes."""
LEAST_SIDE = 24
"""Height and width from which on an image gets convolutions without being asked."""

_LARGE_SIDE = 64
_LAST_SIDE = 11


class ConvFilter(NamedTuple):
    """One entry of `conv_filters`.

    Attributes:
        outputs: Channels that come out.
        kernel: Height and width.
        stride: Down and across.
    """

    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]

    def __str__(self) -> str:
        return f"[{self.outputs}, {list(self.kernel)}, {list(self.stride)}]"


class ConvLayer(NamedTuple):
    """One convolution: weights are called `<name>.weight` [outputs, inputs, height, width] and `<name>.bias`.

    Attributes:
        name: Of its weights.
        inputs: Channels that go in.
        outputs: Channels that come out.
        kernel: Height and width.
        stride: Down and across.
        pads: Zeros put around: top, left, bottom, right.
        size: Height and width of what comes out.
    """

    name: str
    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]
    size: tuple[int, int]

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Shape of its kernels."""
        return (self.outputs, self.inputs, *self.kernel)


@dataclass(frozen=True)
class ConvStack:
    """Convolutions one after the other, over an image of a fixed size.

    All but the last are padded with zeros so that their size is that of what they read, divided by the stride
    and rounded up; the last one is not padded. That is what the same filters mean in the classic system.

    Attributes:
        shape: Height, width and channels of the image; rows hold it in this order.
        filters: First to last, at least one.
        activation: Non-linearity after each.

    Raises:
        ConfigError: The last kernel is larger than what is left of the image.
    """

    shape: tuple[int, int, int]
    filters: tuple[ConvFilter, ...]
    activation: Activation = "relu"

    def __str__(self) -> str:
        filters = ", ".join(map(str, self.filters))
        return f"[{filters}] over {_by(self.shape)} with {self.activation!r}"

    def __post_init__(self) -> None:
        last = self.layers("")[-1]
        if min(last.size) < 1:
            sizes = [self.shape[:2], *(layer.size for layer in self.layers("")[:-1])]
            raise ConfigError(
                f"model: conv_filters: the last kernel is {_by(last.kernel)} and meets {_by(sizes[-1])} (an image of "
                f"{' -> '.join(map(_by, sizes))}), expected at most that; take smaller kernels or strides, and images "
                "of shape (height, width, channels)"
            )

    @property
    def features(self) -> int:
        """Numbers a row that come out, flattened channel after channel."""
        last = self.layers("")[-1]
        return last.outputs * math.prod(last.size)

    def layers(self, trunk: str) -> tuple[ConvLayer, ...]:
        """Return the layers, first to last, their weights named for `trunk`."""
        size, channels = self.shape[:2], self.shape[2]
        found: list[ConvLayer] = []
        for index, (outputs, kernel, stride) in enumerate(self.filters):
            padded = index < len(self.filters) - 1
            (height, top, bottom), (width, left, right) = (
                _along(*sides, padded) for sides in zip(size, kernel, stride, strict=True)
            )
            size = (height, width)
            pads = (top, left, bottom, right)
            found.append(ConvLayer(f"{trunk}.conv{index}", channels, outputs, kernel, stride, pads, size))
            channels = outputs
        return tuple(found)


def read_filters(value: Any) -> tuple[ConvFilter, ...]:
    """Return what the setting `conv_filters` means.

    Args:
        value: A list of `[out_channels, kernel, stride]`; kernel and stride are a number or a pair.

    Raises:
        ConfigError: It is something else.
    """
    filters = [_filter(entry) for entry in value] if _is_list(value) else [None]
    if None in filters:
        raise ConfigError(
            f"model: conv_filters is {value!r}, expected a list of [out_channels, kernel, stride], positive integers; "
            "for example [[16, [8, 8], 4], [32, 4, 2]]"
        )
    return tuple(one for one in filters if one is not None)


def default_filters(shape: tuple[int, int, int]) -> tuple[ConvFilter, ...]:
    """Return filters that bring an image down to a side of about 10."""
    size: Sequence[int] = shape[:2]
    first = ConvFilter(16, (8, 8), (4, 4)) if max(size) >= _LARGE_SIDE else ConvFilter(16, (4, 4), (2, 2))
    filters = [first]
    size = [-(-side // first.stride[0]) for side in size]
    while max(size) > _LAST_SIDE:
        filters.append(ConvFilter(32, (4, 4), (2, 2)))
        size = [-(-side // 2) for side in size]
    # A long and narrow image may be narrower than the kernel by now.
    return (*filters, ConvFilter(32, (min(3, size[0]), min(3, size[1])), (1, 1)))


def _filter(entry: Any) -> ConvFilter | None:
    if not _is_list(entry) or len(entry) != 3 or not is_count(entry[0]):
        return None
    kernel, stride = _pair(entry[1]), _pair(entry[2])
    return None if kernel is None or stride is None else ConvFilter(int(entry[0]), kernel, stride)


def _pair(value: Any) -> tuple[int, int] | None:
    pair = list(value) if _is_list(value) else [value, value]
    return (int(pair[0]), int(pair[1])) if len(pair) == 2 and all(map(is_count, pair)) else None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def is_count(value: Any) -> bool:
    """Return whether a setting is a positive integer, Python's or numpy's, that layers can have for a size."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 < int(value) <= MOST_SIZE


def _along(side: int, kernel: int, stride: int, padded: bool) -> tuple[int, int, int]:
    """Return the size of one side of what comes out, and the zeros before and behind."""
    if not padded:
        return max(0, (side - kernel) // stride + 1), 0, 0
    out = -(-side // stride)
    zeros = max(0, (out - 1) * stride + kernel - side)
    return out, zeros // 2, zeros - zeros // 2


def _by(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))
