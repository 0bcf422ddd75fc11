"""What is raised between two instructions, wherever a signal's handler may raise it."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_LOOKS = frozenset(
    number
    for name, number in dis.opmap.items()
    if name.startswith("CALL") or name in ("RESUME", "JUMP_BACKWARD")
)
"""Instructions at which the interpreter looks for signals; between others no handler ever runs."""


class Alarm(BaseException):
    """Is raised in the midst of things, as KeyboardInterrupt is at Ctrl-C."""


def raised_at(instruction: int, function: Callable[[], Any]) -> bool:
    """Call a function, and raise Alarm at one of the instructions of menv that it runs.

    Args:
        instruction: Which one; if signals are not looked for there, the next one where they are, or a function returns.
        function: What is called.

    Returns:
        Whether it came to that instruction.
    """
    left = instruction

    def inside(frame: FrameType, event: str, result: Any) -> Any:
        nonlocal left
        left -= event == "opcode"
        returns = event == "return" and result is not None
        if left < 0 and (returns or (event == "opcode" and frame.f_code.co_code[frame.f_lasti] in _LOOKS)):
            sys.settrace(None)
            raise Alarm
        return inside

    def called(frame: Any, *_: Any) -> Any:
        if not frame.f_globals["__name__"].startswith("menv."):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return inside

    before = sys.gettrace()
    # What the collector finalizes meanwhile is not of this function.
    gc.disable()
    sys.settrace(called)
    try:
        function()
    except Alarm:
        return True
    finally:
        sys.settrace(before)
        gc.enable()
    return False
