"""Where tensors live: this process's processor, or a GPU that `num_gpus` asks for.

Learners and the torch acting back-end call it. What they compute lies where their parameters do; numpy arrays come
in and go out. torch's name for GPUs is "cuda", those of AMD among them.
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

from menv.errors import ConfigError

CPU = torch.device("cpu")


def learning_device(num_gpus: float) -> torch.device:
    """Return where a policy with this setting learns.

    Raises:
        ConfigError: It asks for a GPU and torch finds none.
    """
    if not num_gpus:
        return CPU
    if not torch.cuda.is_available():
        raise ConfigError(
            f"num_gpus: {num_gpus:g}, but torch {torch.__version__} finds no GPU here, expected one; install the torch "
            "that belongs to your driver (nvidia-smi shows it), or leave num_gpus out"
        )
    return torch.device("cuda")


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
    """Return a scalar tensor of float32, always the same; nobody may write into it."""
    return torch.tensor(value, device=device, dtype=torch.float32)


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Have convolutions and cells on a GPU add up in the same order each time, so that a seed repeats its run there.

    They keep to float32, of which cuDNN would by itself drop 13 bits: what acts and what learns must agree.
    """
    if device.type == "cpu":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield
