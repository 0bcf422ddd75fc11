"""The import of torch in this process, and how many threads it computes with.

Acting keeps the number of threads that was set first: sums over several threads may differ in the last bits, and so
would runs. Large networks get more threads while they learn. This module imports torch lazily.
"""

from __future__ import annotations

import atexit
import gc
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from menv.errors import ConfigError

if TYPE_CHECKING:
    import torch

Threads = int | Literal["auto"] | None

_MUCH = 1 << 24
"""Products of numbers in one layer in one gradient step that are worth several threads; measured with two of them."""
_CONVOLUTION = 3
"""Axes that weights of convolutions have at least, those over one axis."""


def learning_device(num_gpus: float) -> torch.device:
    """Return the device that a policy with this setting learns on."""
    import torch

    if not num_gpus:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"num_gpus: {num_gpus:g}, but torch {torch.__version__} finds no GPU here, expected one; install the torch "
            "that belongs to your driver (nvidia-smi shows it), or leave num_gpus out"
        )
    return torch.device("cuda")


def gpu_names() -> list[str]:
    """Return the names of the GPUs that torch finds."""
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def set_torch_threads(count: Threads) -> None:
    """Limit torch's threads in this process, because several of them wait for each other over small networks.

    "auto" is one, except for `threads_to_learn_with`; None leaves torch alone.
    """
    _import_torch()
    import torch

    count = 1 if count == "auto" else count
    if count is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)


def threads_to_learn_with(
    setting: Threads, shapes: Mapping[str, tuple[int, ...]], rows: int, busy: int = 0
) -> int | None:
    """Return how many threads a network learns with, None for the current number; `busy` processors are in use."""
    if setting != "auto":
        return None
    convolves = any(len(shape) >= _CONVOLUTION for shape in shapes.values())
    widest = max((math.prod(shape) for shape in shapes.values()), default=0)
    if not convolves and rows * widest < _MUCH:
        return None
    return max(1, processors() - busy)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let torch compute with this number of threads; None leaves it alone."""
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
    """Import torch without garbage collections, which find nothing and take a sixth of the time.

    The quarter of a million new objects move to the oldest generation: as young ones they would soon be traversed
    several times, at 0.1 s each.
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
