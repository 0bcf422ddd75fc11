"""How many threads torch takes in this process; an algorithm sets it when it is built."""

from __future__ import annotations


def set_torch_threads(count: int | None) -> None:
    """Limit torch's threads in this process; several of them wait for each other over small networks."""
    import torch

    if count is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)
