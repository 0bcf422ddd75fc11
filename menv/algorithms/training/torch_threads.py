"""The devices and threads that torch computes with in this process. This module imports torch lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING

from menv.errors import ConfigError

if TYPE_CHECKING:
    import torch


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


def set_torch_threads(count: int | None) -> None:
    """Set the number of torch's threads in this process; None leaves it alone."""
    import torch

    if count is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)
