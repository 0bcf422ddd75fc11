"""`RecordEpisodes`: episodes of an environment as animated GIFs or text files.

The sampler steps the wrapper as it steps the environment, in this process, in workers and in evaluations.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import ALL
from menv.errors import ConfigError, ContractError, MissingExtraError
from menv.multi_agent_env import MultiAgentEnv
from menv.plain_files import claimed, path_given, writing
from menv.wrappers.common import MultiAgentWrapper

_FPS = 10
_Wrapper: Any = object


class _Recording(_Wrapper):  # type: ignore[misc]
    """Renders and writes the selected episodes of the wrapper that comes after it."""

    def __init__(
        self, env: Any, folder: str | PathLike[str], *, every: int = 1, most_pictures: int = 1000
    ) -> None:
        """Wrap `env`.

        Args:
            env: The environment.
            folder: Folder of the files, created with the first one.
            every: Record the first episode and every `every`-th one after it.
            most_pictures: Maximum number of pictures of an episode, which are in memory until it ends; later ones
                are left out.

        Raises:
            ConfigError: An argument is not usable.
        """
        if not isinstance(env, gym.Env | MultiAgentEnv):
            raise ConfigError(
                f"RecordEpisodes: env is a {type(env).__name__}, expected a gymnasium.Env or a MultiAgentEnv; wrap "
                "each environment separately, one of PettingZoo in PettingZooEnv or ParallelPettingZooEnv first"
            )
        super().__init__(env)
        for name, value in (("every", every), ("most_pictures", most_pictures)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"RecordEpisodes: {name}={value!r}, expected at least 1; pass a whole number"
                )
        self._where = f"RecordEpisodes of {type(getattr(env, 'unwrapped', env)).__name__}"
        self._folder = path_given("RecordEpisodes", folder)
        self._fps = (getattr(env, "metadata", None) or {}).get("render_fps") or _FPS
        self._every, self._most_pictures = every, most_pictures
        self._episode, self._has_steps = -1, False
        # Texts, or pictures with a palette, which take a third of the memory.
        self._frames: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        self._finish()
        result = super().reset(seed=seed, options=options)
        self._episode += 1
        self._render()
        return result

    def step(self, action: Any) -> Any:
        """Take one step."""
        result = super().step(action)
        self._has_steps = True
        self._render()
        # The adapter refuses other results.
        with suppress(TypeError, ValueError, RuntimeError):
            if any(flag.get(ALL) if isinstance(flag, dict) else flag for flag in result[2:4]):
                self._finish()
        return result

    def close(self) -> None:
        """Write the running episode and close the environment."""
        try:
            self._finish()
        finally:
            super().close()

    def _finish(self) -> None:
        """Write the episode if it is recorded and has a step; a second call does nothing."""
        frames, has_steps = self._frames, self._has_steps
        self._frames, self._has_steps = [], False
        if not (frames and has_steps):
            return
        with writing(self._where, f"an episode in {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True)
            is_text = isinstance(frames[0], str)
            name, suffix = f"episode-{self._episode:06d}", ".txt" if is_text else ".gif"
            paths = (self._folder / f"{name}{f'-{number}' if number else ''}{suffix}" for number in count())
            # Trackers read the folder meanwhile.
            with claimed(paths) as (_, draft):
                if is_text:
                    draft.write_text("\n\n".join(frames) + "\n", "utf-8")
                else:
                    write_gif(frames, draft, self._fps)

    def _render(self) -> None:
        if self._episode % self._every:
            return
        try:
            rendered = self.env.render()
        except NotImplementedError as error:
            raise ContractError(
                f"{self._where}: render is not implemented, expected a method that returns a picture, uint8 [height, "
                "width, 3], or a text; implement it"
            ) from error
        for one in rendered if isinstance(rendered, list) else [rendered]:
            if len(self._frames) < self._most_pictures:
                self._frames.append(self._checked_frame(one))

    def _checked_frame(self, one: Any) -> Any:
        first = self._frames[0] if self._frames else None
        is_picture = isinstance(one, np.ndarray) and one.dtype == np.uint8 and one.shape[2:] == (3,)
        if isinstance(one, str) and (first is None or isinstance(first, str)):
            return one
        if is_picture and (first is None or getattr(first, "size", 0) == one.shape[1::-1]):
            return quantized(one, self._where)
        got = f"{one.dtype} {list(one.shape)}" if isinstance(one, np.ndarray) else type(one).__name__
        raise ContractError(
            f"{self._where}: render returned {got}, expected a picture, uint8 [height, width, 3], or a text, and the "
            "same in all steps of an episode; make the environment with render_mode='rgb_array', or fix its render"
        )


class RecordEpisodes(_Recording, gym.Wrapper[Any, Any, Any, Any]):
    """Writes every n-th episode of an environment into a file, as `render` returned it.

        register_env("recorded", lambda context: RecordEpisodes(make_env(context), "videos", every=100))

    The environment is a `gymnasium.Env` or a `MultiAgentEnv`, for which an instance is a `RecordedMultiAgent`. Wrap a
    PettingZoo game in its wrapper first: `RecordEpisodes(PettingZooEnv(env), "videos")`.

    Each file has the rendered states after the reset and after each step, the last one included: pictures
    (`render_mode="rgb_array"`) become an animated GIF, texts a text file. An episode that is interrupted by a reset or
    by `close` is written too, if it has at least one step. The environment behaves as before.

    Copies of an environment may write into one folder, also from several processes: files are called
    `episode-000000.gif`, or `episode-000000-1.gif` where that exists. To record one copy of many, wrap only that one:
    `RecordEpisodes(env, "videos") if context.vector_index == 0 else env`.

    Attributes:
        env: The environment.
    """

    def __new__(cls, env: Any, *args: Any, **kwargs: Any) -> Any:
        """Return an instance, or a `RecordedMultiAgent` for a `MultiAgentEnv`."""
        if isinstance(env, MultiAgentEnv):
            return RecordedMultiAgent(env, *args, **kwargs)
        return super().__new__(cls)


class RecordedMultiAgent(_Recording, MultiAgentWrapper):
    """A `MultiAgentEnv` whose episodes are recorded; `RecordEpisodes` creates it."""


def quantized(picture: npt.NDArray[np.uint8], where: str) -> Any:
    """Return a picture for `write_gif`, with a palette; `where` begins the message if pillow is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            f"{where}: the package pillow is not installed; run: pip install 'menv-rl[train]'"
        ) from error
    return Image.fromarray(picture).quantize()


def write_gif(frames: list[Any], path: Path, fps: float) -> None:
    """Write pictures of `quantized` into an animated GIF."""
    duration = max(round(1000 / fps), 20)
    frames[0].save(path, "GIF", save_all=True, append_images=frames[1:], duration=duration, loop=0)
