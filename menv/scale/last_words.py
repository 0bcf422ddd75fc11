"""What a process writes to stderr: passed on to ours, and the end of it kept for the message when it ends.

`menv.scale.process_engine` has one for each process that it starts; whoever counts losses says them in a line.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from io import BufferedReader

from menv.scale.watchdog import FATAL, last_of, where_it_hung

_LINES = 20
_LONGEST = 500
_BYTES = 1 << 14
_JOINED_S = 1.0
_BEFORE_WORDS = "; the last lines of its stderr:"
_LONGEST_LAST = 160


def in_a_line(message: str) -> str:
    """Return the message of a `WorkerLostError` in one line, with the last one that the process wrote to stderr.

    What a watchdog wrote there is left out.
    """
    told, _, words = message.partition(_BEFORE_WORDS)
    told = " ".join(told.split())
    # Some lines of a traceback only point at what is above them.
    lines = [line.strip() for line in words.splitlines() if line.strip(" ^~")]
    if not lines or where_it_hung(words) is not None:
        return told
    fatal = [line for line in lines if line.startswith(FATAL)]
    if fatal:
        # Behind it stands where the threads were, and which modules it had.
        return f"{told}; its stderr: {fatal[-1][:_LONGEST_LAST]}"
    return f"{told}; the last line of its stderr: {lines[-1][:_LONGEST_LAST]}"


class LastWords:
    """Reads the stderr of a process until it ends.

    Args:
        stream: The end of the pipe.
    """

    def __init__(self, stream: BufferedReader) -> None:
        self._end = b""
        self._thread = threading.Thread(target=self._read, args=(stream,), name="menv stderr", daemon=True)
        self._thread.start()

    def told(self) -> str:
        """Return the last lines, once the process has ended."""
        # Somebody whom the process started may hold the pipe for longer than that.
        self._thread.join(_JOINED_S)
        lines = last_of(self._end.decode(errors="replace").splitlines(), _LINES)
        return "\n".join(line[:_LONGEST] for line in lines)

    def _read(self, stream: BufferedReader) -> None:
        begun = b""
        with stream:
            while data := stream.read1(_BYTES):
                self._end = (self._end + data)[-_BYTES:]
                begun += data
                # Whole lines only, so that those of several processes do not mix; a progress bar ends in \r.
                whole = max(begun.rfind(b"\n"), begun.rfind(b"\r")) + 1 or len(begun) * (len(begun) > _BYTES)
                _pass_on(begun[:whole])
                begun = begun[whole:]
        _pass_on(begun)


def _pass_on(data: bytes) -> None:
    # Nobody may have a stderr; what was written is kept all the same.
    with suppress(Exception):
        if data:
            sys.stderr.write(data.decode(errors="replace"))
