"""How all commands read arguments, print and end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TextIO

from menv.errors import ConfigError, EnvCrashError, MenvError
from menv.registry import and_how_to_import


def tell(text: str, program: str) -> None:
    """Print lines, all the way.

    Args:
        text: The lines.
        program: What begins the line of an error.

    Raises:
        SystemExit: With status 1, if they cannot be written. A closed pipe, as of `| head`, is not worth a word.
    """
    _end_unless_put(f"{text}\n", program)


def flush(program: str) -> None:
    """Write what stdout holds back, such as help, all the way; end as `tell` does where it cannot be written."""
    _end_unless_put("", program)


def _end_unless_put(text: str, program: str) -> None:
    error = _put(text, sys.stdout)
    if error is not None:
        if not isinstance(error, BrokenPipeError):
            complain(f"{program}: error: {not_taken(error)}")
        raise SystemExit(1)


def take_any_text() -> None:
    """Let stdout take text that its encoding has no form for, such as names of folders, as stderr does."""
    # There is none where it was closed before Python began, and that of a program or a test may be no file.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and sys.stdout.errors == "strict":
        reconfigure(errors="backslashreplace")


def complain(line: str) -> None:
    """Print a line to stderr, if that can be written."""
    _put(f"{line}\n", sys.stderr)


def _put(text: str, to: TextIO | None) -> OSError | None:
    """Write text to a stream, all the way; return what kept it from that."""
    # There is none where it was closed before Python began.
    if to is not None:
        try:
            to.write(text)
            to.flush()
        except OSError as error:
            let_go(to)
            return error
    return None


def let_go(stream: TextIO) -> None:
    """Let what a stream still holds, and all that is written to it from now on, go nowhere."""
    # Those of a program or a test that calls a command may be no file.
    with suppress(OSError, ValueError, AttributeError):
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def not_taken(error: OSError) -> str:
    """Return what is said of a stdout that cannot be written."""
    return f"stdout: cannot be written ({error}), expected a reader, or a disk with room"


class Parser(argparse.ArgumentParser):
    """Reads arguments; help that nobody takes ends a command in order."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End with this status, or with 1 where the help that was asked for cannot be written."""
        if status == 0:
            flush(self.prog)
        super().exit(status, message)


def ends(program: str, command: Callable[[], int]) -> int:
    """Run a command to its end.

    Args:
        program: What begins the line of an error.
        command: Does the work, and returns the exit status.

    Returns:
        That status; 1 where an environment or a policy failed, 2 where a setting is wrong, 130 after Ctrl-C.
    """
    take_any_text()
    try:
        return command()
    except MenvError as error:
        if isinstance(error, EnvCrashError) and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        complain(
            "; ".join([f"{program}: error: {and_how_to_import(error)}", *getattr(error, "__notes__", ())])
        )
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
