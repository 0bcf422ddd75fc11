"""The devices and threads that torch computes with in this process. This module imports torch lazily."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from menv.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import torch


def check_packages(who: str, *packages: str) -> None:
    """Raise `MissingExtraError` where packages of `menv-rl[train]` are missing; imports none of them."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        one = len(missing) == 1
        raise MissingExtraError(
            f"{who}: the package{'' if one else 's'} {' and '.join(missing)} {'is' if one else 'are'} not installed; "
            "run: pip install 'menv-rl[train]'"
        )


def learning_device(num_gpus: float) -> torch.device:
    """Return the device that a policy with this setting learns on."""
    import torch

    if not num_gpus:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"num_gpus: {num_gpus:g}, but torch {torch.__version__} finds no GPU here; install the torch build for "
            "your driver (nvidia-smi shows it), or leave num_gpus out"
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
