"""What all commands have in common: how they read arguments, and how they end where something is wrong."""

from __future__ import annotations

import argparse
import signal
import traceback
from collections.abc import Callable
from typing import NoReturn

from menv.errors import ConfigError, EnvCrashError, MenvError
from menv.first_imports import and_how_to_import
from menv.stdout import complain, flush, take_any_text


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
