"""The home of an object: made in a process of its own, and asked for its methods.

`menv.scale.process_main` and `menv.scale.ray_home` each have one, so that whoever asks sees no difference. It does not
know how questions come.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from menv.forked_child import end_if_forked
from menv.scale.far_error import Raised
from menv.scale.packing import Parts, UnsendableError, pack, unpack

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables of the environment: a home has a core of its own, at most; threads beside it would take those of others."""
CREATE = ""
"""In place of a method's name: the first argument is what makes the object."""


def import_paths() -> list[str]:
    """Return where this process looks for modules, in a form that holds elsewhere."""
    # Python passes over what is no text, such as a Path that somebody has put there, and over a folder that is gone.
    here = ""
    with suppress(FileNotFoundError):
        here = os.getcwd()
    return [path or here for path in sys.path if isinstance(path, str) and (path or here)]


def question(label: str, method: str, args: tuple[Any, ...]) -> Parts:
    """Return a question for a home.

    Args:
        label: What messages call the home.
        method: The name of a method, or `CREATE`.
        args: What it is called with.

    Raises:
        UnsendableError: An argument cannot be sent.
    """
    where = f"{label}, {method}" if method else f"{label}, to make it"
    return pack((method, args), f"{where}: args", "[1]")


class Home:
    """The object that was made here."""

    def __init__(self) -> None:
        self._object: Any = None
        self._failed: Raised | None = None

    def answer(self, question: Parts, parcel: Parts | None = None) -> Parts:
        """Answer one question.

        Args:
            question: The name of a method, and a tuple of what it is called with.
            parcel: One more argument.

        Returns:
            Whether it went well, and what was returned or a `Raised`.
        """
        method = "?"
        try:
            method, args = _opened(question, parcel)
            value = self._call(method, args)
            if isinstance(value, Raised):
                return pack((False, value))
            return pack((True, value), f"the answer of {method!r}", "[1]")
        except Exception as error:
            end_if_forked(error)
            raised = Raised.of(error)
            if self._object is None:
                self._failed = self._failed or raised
            return pack((False, raised))

    def stop(self) -> None:
        """Let the object end in its own way."""
        stop = getattr(self._object, "stop", None)
        if stop is not None:
            stop()

    def _call(self, method: str, args: tuple[Any, ...]) -> Any:
        if method == CREATE:
            self._object = args[0](*args[1:])
            return None
        # Questions may have been on their way before it was known that there is nothing to ask.
        return self._failed if self._failed is not None else getattr(self._object, method)(*args)


def _opened(question: Parts, parcel: Parts | None) -> tuple[str, tuple[Any, ...]]:
    """Return the name of a method, and what it is called with.

    Raises:
        UnsendableError: Something is named in it that there is not in this process.
    """
    try:
        method, args = unpack(question)
        return method, args if parcel is None else (*args, unpack(parcel))
    except (ImportError, AttributeError) as error:
        raise UnsendableError(
            f"opened in another process: {type(error).__name__}: {error}, expected names of modules that can be "
            "imported there too; put the folder of the module on sys.path, or the class into the script"
        ) from error
