"""Episodes of an environment as files to look at.

    register_env("seen", lambda context: RecordEpisodes(TicTacToe({"render_mode": "rgb_array"}), "films", every=100))

Users wrap an environment in it; the sampler steps it as it steps the environment itself, here, in workers and in
evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL, AgentId
from menv.errors import ConfigError, ContractError, MissingExtraError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.serialization import path_given, writing


class VideoRecorder:
    """The frames of one episode.

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
        """Keep a rendered frame: a picture, a list of pictures, or a text.

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
        """Create a new file; no other process has it."""
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


_FPS = 10


class RecordEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Writes every so many episodes of an environment into files, each picture as `render` returned it.

    A `gymnasium.Env` is wrapped in this, a `MultiAgentEnv` in a `RecordedMultiAgent`; of PettingZoo's the wrapper of
    menv is wrapped: `RecordEpisodes(PettingZooEnv(env), "films")`. What is rendered are the states after the reset and
    after each step, the last one too: pictures (`render_mode="rgb_array"`) become an animated GIF, texts a text file.
    An episode that is broken off, or runs when the environment is closed, is written as far as it came, if it took a
    step. Nothing else changes.

    Copies of an environment may write into one folder, those of other processes too: files are called
    `episode-000000.gif`, and `episode-000000-1.gif` where there is one. To record one copy of many, wrap that:
    `RecordEpisodes(env, "films") if context.vector_index == 0 else env`.

    Attributes:
        env: The environment.
    """

    def __new__(cls, env: Any, *args: Any, **kwargs: Any) -> Any:
        """Return an instance, or a `RecordedMultiAgent` for a `MultiAgentEnv`."""
        if isinstance(env, MultiAgentEnv):
            return RecordedMultiAgent(env, *args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self, env: Any, folder: str | PathLike[str], *, every: int = 1, most_pictures: int = 1000
    ) -> None:
        """Wrap `env`.

        Args:
            env: The environment.
            folder: Where the files go; made when the first is written.
            every: Record the first episode, and each so many after it.
            most_pictures: Of an episode; what comes after them is left out. They are held until the episode is over.

        Raises:
            ConfigError: An argument is not usable.
        """
        _check_env(env)
        super().__init__(env)
        self._recorder = _Recorder(env, folder, every, most_pictures)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start an episode."""
        self._recorder.over()
        result = self.env.reset(seed=seed, options=options)
        self._recorder.begun()
        return result

    def step(self, action: Any) -> Any:
        """Take one step."""
        result = self.env.step(action)
        self._recorder.stepped()
        if isinstance(result, tuple) and len(result) == 5 and _any_set(result[2:4]):
            self._recorder.over()
        return result

    def close(self) -> None:
        """Write the episode that runs, and close the environment."""
        _close(self._recorder, self.env.close)


def _of_env(name: str) -> Any:
    return property(lambda self: getattr(self.env, name))


class RecordedMultiAgent(MultiAgentEnv):
    """A `MultiAgentEnv` of which episodes are recorded; `RecordEpisodes` creates it.

    Attributes:
        env: The environment.
    """

    possible_agents = _of_env("possible_agents")
    agents = _of_env("agents")
    observation_space = _of_env("observation_space")
    action_space = _of_env("action_space")
    observation_spaces = _of_env("observation_spaces")
    action_spaces = _of_env("action_spaces")
    metadata = _of_env("metadata")
    render_mode = _of_env("render_mode")
    num_agents = _of_env("num_agents")
    np_random = _of_env("np_random")
    # Where classic environments keep the ids of their agents.
    _agent_ids = _of_env("_agent_ids")

    def __init__(
        self, env: MultiAgentEnv, folder: str | PathLike[str], *, every: int = 1, most_pictures: int = 1000
    ) -> None:
        self.env = env
        self._recorder = _Recorder(env, folder, every, most_pictures)

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start an episode."""
        self._recorder.over()
        plain = seed is None and options is None
        result = self.env.reset() if plain else self.env.reset(seed=seed, options=options)
        self._recorder.begun()
        return result

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Let the agents act."""
        result = self.env.step(action_dict)
        self._recorder.stepped()
        flags = result[2:4] if isinstance(result, tuple) and len(result) == 5 else ()
        if _any_set(one.get(ALL) for one in flags if isinstance(one, dict)):
            self._recorder.over()
        return result

    def render(self) -> Any:
        """Return what the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Write the episode that runs, and close the environment."""
        _close(self._recorder, self.env.close)

    def get_observation_space(self, agent_id: AgentId) -> gym.Space[Any]:
        """Return the observation space of one agent."""
        return self.env.get_observation_space(agent_id)

    def get_action_space(self, agent_id: AgentId) -> gym.Space[Any]:
        """Return the action space of one agent."""
        return self.env.get_action_space(agent_id)


class _Recorder:
    """Counts the episodes of an environment and records the selected ones."""

    def __init__(self, env: Any, folder: str | PathLike[str], every: int, most_pictures: int) -> None:
        for name, value in (("every", every), ("most_pictures", most_pictures)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"RecordEpisodes: {name}={value!r}, expected at least 1; pass a whole number"
                )
        fps = (getattr(env, "metadata", None) or {}).get("render_fps") or _FPS
        self._where = f"RecordEpisodes of {type(getattr(env, 'unwrapped', env)).__name__}"
        self._film = VideoRecorder(self._where, path_given("RecordEpisodes", folder), 1 / fps, most_pictures)
        self._env = env
        self._every = every
        self._episode = -1
        self._moved = False

    def begun(self) -> None:
        """Start an episode."""
        self._episode += 1
        self._show()

    def stepped(self) -> None:
        """Record an env step."""
        self._moved = True
        self._show()

    def over(self) -> None:
        """Write the episode, if it is one of those and has begun to move; nothing where that has been done."""
        if self._moved:
            self._film.cut(f"episode-{self._episode:06d}")
        self._film.clear()
        self._moved = False

    def _show(self) -> None:
        if self._episode % self._every:
            return
        try:
            rendered = self._env.render()
        except NotImplementedError as error:
            raise ContractError(
                f"{self._where}: its render is not written, expected one that returns a picture, uint8 [height, width, "
                "3], or a text; write it"
            ) from error
        self._film.show(rendered)


def _check_env(env: Any) -> None:
    if not isinstance(env, gym.Env):
        raise ConfigError(
            f"RecordEpisodes: env is a {type(env).__name__}, expected a gymnasium.Env or a MultiAgentEnv; wrap each "
            "environment by itself, one of PettingZoo in PettingZooEnv or ParallelPettingZooEnv first"
        )


def _any_set(flags: Iterable[Any]) -> bool:
    """Return whether a flag is set; what is none is for the adapter to name."""
    try:
        return any(flags)
    except (ValueError, RuntimeError):
        return False


def _close(recorder: _Recorder, close: Callable[[], None]) -> None:
    """Write the episode that runs, and close the environment in any case."""
    try:
        recorder.over()
    finally:
        close()
