"""Torch in this process: its import and how many threads it takes; an algorithm sees to both when it is built."""

from __future__ import annotations

import atexit
import gc
import sys


def set_torch_threads(count: int | None) -> None:
    """Limit torch's threads in this process; several of them wait for each other over small networks."""
    _import_torch()
    import torch

    if count is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)


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
