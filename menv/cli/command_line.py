"""How all commands parse arguments, print and exit."""

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


def run_command(program: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit status; 1 after a failure, 2 for a wrong setting, 130 after Ctrl-C."""
    allow_any_text()
    try:
        return command()
    except MenvError as error:
        if isinstance(error, EnvCrashError) and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print_error(
            "; ".join([f"{program}: error: {and_how_to_import(error)}", *getattr(error, "__notes__", ())])
        )
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


class Parser(argparse.ArgumentParser):
    """An argument parser that handles a closed stdout when it prints help."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit with this status, or with 1 if the help cannot be written."""
        if status == 0:
            flush(self.prog)
        super().exit(status, message)


def print_text(text: str, program: str) -> None:
    """Print text to stdout; exit with status 1 if it cannot be written, silently for a closed pipe as of `| head`."""
    _write_or_exit(f"{text}\n", program)


def flush(program: str) -> None:
    """Write what stdout holds back, such as help, all the way; end as `tell` does where it cannot be written."""
    _write_or_exit("", program)


def _write_or_exit(text: str, program: str) -> None:
    error = _write(text, sys.stdout)
    if error is not None:
        if not isinstance(error, BrokenPipeError):
            print_error(f"{program}: error: {stdout_error(error)}")
        raise SystemExit(1)


def allow_any_text() -> None:
    """Let stdout escape characters that its encoding lacks, as stderr does."""
    # stdout is None if it was closed before Python started, and may be no file in tests.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and sys.stdout.errors == "strict":
        reconfigure(errors="backslashreplace")


def print_error(line: str) -> None:
    """Print a line to stderr, if it can be written."""
    _write(f"{line}\n", sys.stderr)


def _write(text: str, to: TextIO | None) -> OSError | None:
    # The stream is None if it was closed before Python started.
    if to is not None:
        try:
            to.write(text)
            to.flush()
        except OSError as error:
            discard_output(to)
            return error
    return None


def discard_output(stream: TextIO) -> None:
    """Discard the buffered and all later output of a stream."""
    # Streams may be no files in tests.
    with suppress(OSError, ValueError, AttributeError):
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def stdout_error(error: OSError) -> str:
    """Return the message for a stdout that cannot be written."""
    return f"stdout: cannot be written ({error}), expected a reader, or a disk with room"
