"""A forked child: the process that an environment makes with `os.fork()`, which ends where it raises.

It would go on as a second sampler, driver or worker otherwise, with the frames that it has inherited, while its parent
waits for its end. `menv.fault` and `menv.scale.home` ask, wherever they catch what an environment raised. What a
process calls that was forked before is its own: multiprocessing may run all of menv in a child.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from types import FrameType

_inherited: list[FrameType] = []
"""What this process, if it is such a child, was in the middle of when it was forked."""


def end_if_forked(error: BaseException) -> None:
    """End this process, as Python ends one that raised, if it was forked within a call that raised an error."""
    here = error.__traceback__
    while here is not None and not any(here.tb_frame is frame for frame in _inherited):
        here = here.tb_next
    if here is not None:
        _end(error)


def _end(error: BaseException) -> None:
    """End this process at once: what else there is to take apart belongs to the parent."""
    code = error.code if isinstance(error, SystemExit) else 1
    with suppress(Exception):
        if not isinstance(error, SystemExit):
            # Not a hook that somebody put there: that of Ray asks threads, which only the parent has.
            sys.__excepthook__(type(error), error, error.__traceback__)
        elif not isinstance(code, int | None):
            sys.stderr.write(f"{code}\n")
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def _remember() -> None:
    _inherited.clear()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        _inherited.append(frame)
        frame = frame.f_back


if hasattr(os, "register_at_fork"):  # where there is no fork, there is nothing to remember
    os.register_at_fork(after_in_child=_remember)
