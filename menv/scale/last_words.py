"""What a process writes to stderr: passed on to ours, and its last lines kept for the message when it ends.

`menv.scale.process_engine` has one for each process that it starts.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextlib import suppress
from typing import IO

_KEPT = 20
_LONGEST = 500


class LastWords:
    """Reads the stderr of a process until it ends.

    Args:
        stream: The end of the pipe.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._thread = threading.Thread(target=self._read, args=(stream,), name="menv stderr", daemon=True)
        self._thread.start()

    def told(self) -> str:
        """Return the last lines, once the process has ended."""
        self._thread.join(1.0)
        return "\n".join(self._lines)

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in stream:
                line = raw.decode(errors="replace").rstrip("\n")
                self._lines.append(line[:_LONGEST])
                # Nobody may have a stderr; what was written is kept all the same.
                with suppress(Exception):
                    sys.stderr.write(f"{line}\n")
