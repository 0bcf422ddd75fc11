"""Where tensors live: this process's processor, or a GPU that `num_gpus` asks for.

Learners and the torch acting back-end call it. What they compute lies where their parameters do; numpy arrays come
in and go out. torch's name for GPUs is "cuda", those of AMD among them.
"""

from __future__ import annotations

import atexit
import gc
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

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


# SEAM menv.algorithms.torch_threads
# Torch in this process: its import and how many threads it takes.
#
# An algorithm sees to both when it is built, and gives large networks more threads while they learn. Acting
# keeps to
# what was set first: what several threads add up may differ in the last bits, and runs would differ with
# them.


Threads = int | Literal["auto"] | None

_MUCH = 1 << 24
"""Products of numbers in one layer in one gradient step that are worth several threads; measured with two of them."""
_CONVOLUTION = 3
"""Axes that weights of convolutions have at least, those over one axis."""


def set_torch_threads(count: Threads) -> None:
    """Limit torch's threads in this process; several of them wait for each other over small networks.

    Args:
        count: How many; "auto" is one, but for `threads_to_learn_with`; None leaves torch alone.
    """
    _import_torch()
    import torch

    count = 1 if count == "auto" else count
    if count is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)


def threads_to_learn_with(
    setting: Threads, shapes: Mapping[str, tuple[int, ...]], rows: int, busy: int = 0
) -> int | None:
    """Return how many threads a network learns with, None for as many as are set.

    Args:
        setting: As for `set_torch_threads`.
        shapes: Those of the network's weights, by name.
        rows: Of one gradient step.
        busy: Processors that others use meanwhile.
    """
    if setting != "auto":
        return None
    convolves = any(len(shape) >= _CONVOLUTION for shape in shapes.values())
    widest = max((math.prod(shape) for shape in shapes.values()), default=0)
    if not convolves and rows * widest < _MUCH:
        return None
    return max(1, processors() - busy)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Have torch compute with so many threads; None leaves it alone."""
    if count is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def processors() -> int:
    """Return how many processors this process may use at once: at least one, and no more than a container gets."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdecimal() and int(told):
        return min(count, int(told))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, int(quota) // int(period)))
    except (OSError, ValueError):
        # No Linux, no container, or one without a limit, "max".
        return count


def _import_torch() -> None:
    """Import torch without looks for garbage meanwhile, which find none and take a sixth of the time.

    What it made, a quarter of a million objects, goes among the old ones: as young ones they would be looked through
    several times soon, at 0.1 s each.
    """
    if "torch" in sys.modules:
        return
    collecting = gc.isenabled()
    gc.disable()
    try:
        import torch  # noqa: F401

        # The interpreter looks for garbage twice when it ends, before and after it has let its modules go. The second
        # time finds what the first would have; each takes 0.1 s and more now.
        atexit.register(gc.disable)
        # Who froze objects would not want them back.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
    finally:
        if collecting:
            gc.enable()
