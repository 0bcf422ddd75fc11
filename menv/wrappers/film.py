"""Pictures of episodes, kept while they are played and written when they are over.

`menv.wrappers.record_episodes` shows it what an environment renders. It knows no environments. Pillow, which comes with
tensorboard, is imported when the first picture comes.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from menv.errors import ContractError, MissingExtraError
from menv.paths import writing


class Film:
    """What was shown of one episode at a time.

    Args:
        where: Begins messages: what records, and of which environment.
        folder: Where files go; made when the first is written.
        seconds: How long each picture is to be seen.
        most: Pictures of an episode that are kept; what comes after them is left out.
    """

    def __init__(self, where: str, folder: Path, seconds: float, most: int) -> None:
        self._where = where
        self._folder = folder
        self._seconds = seconds
        self._most = most
        self._shown: list[Any] = []

    def show(self, rendered: Any) -> None:
        """Keep what an environment rendered: a picture, a list of pictures, or a text.

        Raises:
            ContractError: It is something else, or not like what came before.
            MissingExtraError: It is a picture, and Pillow is not installed.
        """
        for one in rendered if isinstance(rendered, list) else [rendered]:
            if len(self._shown) < self._most:
                self._shown.append(self._kept(one))

    def cut(self, name: str) -> Path | None:
        """Write what was shown, and forget it.

        Args:
            name: Of the file; where there is one already, a number is put behind it.

        Returns:
            The file, None if nothing was shown.

        Raises:
            NotWrittenError: The folder or the file cannot be made, or the disk is full.
        """
        shown = self._shown
        if not shown:
            return None
        self.clear()
        text = isinstance(shown[0], str)
        with writing(self._where, f"an episode in {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._unused(name, ".txt" if text else ".gif")
            try:
                if text:
                    path.write_text("\n\n".join(shown) + "\n", "utf-8")
                else:
                    duration = max(round(1000 * self._seconds), 20)
                    shown[0].save(
                        path, "GIF", save_all=True, append_images=shown[1:], duration=duration, loop=0
                    )
            except OSError:
                path.unlink(missing_ok=True)
                raise
        return path

    def clear(self) -> None:
        """Forget what was shown."""
        self._shown = []

    def _unused(self, name: str, suffix: str) -> Path:
        """Make a file that nobody else has made, other processes among them."""
        for number in count():
            path = self._folder / f"{name}{f'-{number}' if number else ''}{suffix}"
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                continue
            return path
        raise AssertionError

    def _kept(self, one: Any) -> Any:
        """Return a text, or a picture of a palette, which takes a third of the room."""
        before = self._shown[0] if self._shown else None
        if isinstance(one, str) and not (before and not isinstance(before, str)):
            return one
        if not (
            isinstance(one, np.ndarray) and one.dtype == np.uint8 and one.ndim == 3 and one.shape[2] == 3
        ):
            got = f"{one.dtype} {list(one.shape)}" if isinstance(one, np.ndarray) else type(one).__name__
            raise ContractError(
                f"{self._where}: render returned {got}, expected a picture, uint8 [height, width, 3], or a text, and "
                "the same each time; make the environment with render_mode='rgb_array', or mend its render"
            )
        size = (one.shape[1], one.shape[0])
        if before is not None and (isinstance(before, str) or before.size != size):
            was = "a text" if isinstance(before, str) else f"{before.size[0]} x {before.size[1]} pixels"
            raise ContractError(
                f"{self._where}: render returned {size[0]} x {size[1]} pixels after {was}, expected the same in all "
                "steps of an episode; mend its render"
            )
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingExtraError(
                f"{self._where}: the package pillow is not installed, expected it; run: pip install 'menv[train]'"
            ) from error
        return Image.fromarray(one).quantize()
