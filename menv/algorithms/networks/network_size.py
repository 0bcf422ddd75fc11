"""How much memory a network takes, before any of it is taken.

`menv.algorithms.cohorts` asks for every policy. It knows shapes, and nothing of what they mean.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from menv.errors import ConfigError

_BYTES = 16
"""Of each weight while it is learned: itself, its gradient, and Adam's two moments."""
_OF_A_GRAPH = 2**29 - 2**18
"""Weights: a graph ends at 2 GiB, and Python with one that is larger."""
_UNKNOWN = 2**40
"""Bytes of memory where the system does not tell, so that what no machine could hold is refused there too."""
_FEW = 2**22
_most_weights = ContextVar("most_weights", default=math.inf)


@contextmanager
def weights_in_file(count: int) -> Iterator[None]:
    """Refuse, in here, networks of many more weights than a checkpoint holds: its settings do not belong to them."""
    before = _most_weights.set(count + _FEW)
    try:
        yield
    finally:
        _most_weights.reset(before)


def check_size(shapes: Mapping[str, tuple[int, ...]], *, stock: bool = True) -> None:
    """Refuse a network that cannot be learned on this machine.

    Args:
        shapes: Those of its weights, by name.
        stock: Whether it is written as a graph with all of its weights.

    Raises:
        ConfigError: It takes more memory than there is, or than a graph can have.
    """
    most = min(_memory() // _BYTES, _OF_A_GRAPH if stock else _UNKNOWN)
    if sum(map(math.prod, shapes.values())) > _most_weights.get():
        raise _refusal(shapes, f"about as many as the checkpoint holds, {_most_weights.get() - _FEW:,}")
    if sum(map(math.prod, shapes.values())) > most:
        raise _refusal(shapes, f"{most:,} at most, which this machine's memory and graphs hold")


@contextmanager
def memory_for(policy_id: str, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[None]:
    """Let it be told of a policy's network where memory ends that others have taken.

    Raises:
        ConfigError: There was not enough of it.
    """
    try:
        yield
    except MemoryError as error:
        told = _refusal(shapes, "fewer, because memory ends")
        raise ConfigError(f"policies[{policy_id!r}], {told}") from error


def _refusal(shapes: Mapping[str, tuple[int, ...]], rule: str) -> ConfigError:
    largest = max(shapes, key=lambda name: math.prod(shapes[name]))
    weights = sum(map(math.prod, shapes.values()))
    return ConfigError(
        f"model: a network of {weights:,} weights, {largest!r} {list(shapes[largest])} among them, expected {rule}; "
        "lower fcnet_hiddens, lstm_cell_size, conv_filters or mixing_embed_dim, or take smaller observations"
    )


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return _UNKNOWN
