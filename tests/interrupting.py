"""What is raised between any two instructions, as a signal's handler may."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Alarm(BaseException):
    """Is raised in the midst of things, as KeyboardInterrupt is at Ctrl-C."""


def raised_at(instruction: int, function: Callable[[], Any]) -> bool:
    """Call a function, and raise Alarm before one of the instructions of menv that it runs.

    Args:
        instruction: Which one.
        function: What is called.

    Returns:
        Whether it came to that instruction.
    """
    left = instruction

    def inside(_: Any, event: str, __: Any) -> Any:
        nonlocal left
        left -= event == "opcode"
        if left < 0:
            sys.settrace(None)
            raise Alarm
        return inside

    def called(frame: Any, *_: Any) -> Any:
        if not frame.f_globals["__name__"].startswith("menv."):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return inside

    before = sys.gettrace()
    sys.settrace(called)
    try:
        function()
    except Alarm:
        return True
    finally:
        sys.settrace(before)
    return False
