"""One at a time: threads that ask the same workers something wait for each other, or answers would go to the wrong one.

`menv.algorithms.rollouts.worker_rollouts` marks its methods with it. It knows no workers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def one_at_a_time(method: F) -> F:
    """Let a method of an object be called with `alone` of the object held, which its thread may hold already."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **given: Any) -> Any:
        with self.alone:
            return method(self, *args, **given)

    return call  # type: ignore[return-value]
