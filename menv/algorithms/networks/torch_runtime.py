"""The device of tensors: the CPU, or a GPU that `num_gpus` asks for (torch calls AMD's "cuda" too).

Numpy arrays go in and come out; learners and the torch backend compute where their parameters are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

CPU = torch.device("cpu")


def tensor_of(
    array: npt.NDArray[Any], device: torch.device = CPU, dtype: npt.DTypeLike | None = None
) -> Tensor:
    """Return an array as a tensor on `device`, of `dtype` if that is given; on the processor it may share memory."""
    return torch.from_numpy(np.require(array, dtype, ("C", "W"))).to(device)


def array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """Return a tensor without a gradient as an array; from the processor it shares memory."""
    array: npt.NDArray[Any] = tensor.cpu().numpy()
    return array


@cache
def constant(value: float, device: torch.device) -> Tensor:
    """Return a cached scalar tensor of float32, which must not be written to."""
    return torch.tensor(value, device=device, dtype=torch.float32)


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Make convolutions and cells on a GPU add up in a fixed order, so that seeded runs repeat.

    They stay in full float32, of which cuDNN would drop 13 bits by default: acting and learning must agree.
    """
    if device.type == "cpu":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield
