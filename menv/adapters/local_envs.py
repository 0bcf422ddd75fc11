"""Sub-environments that live in this process: creating, seeding, restarting, rendering, closing.

`gym` and `multi_agent` build on it; both step their sub-environments one after another inside
`poll`. One that raises is closed and made anew, and costs its episode only. It knows nothing about agents or rows.
"""

from __future__ import annotations

import time
import traceback
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import numpy as np

from menv import rng
from menv.adapters.poll_events import EpisodeReplay, PollEvents
from menv.base_env import AgentId, BaseEnv, EnvId, IntArray, MultiEnvDict
from menv.errors import (
    CallOrderError,
    ConfigError,
    ContractError,
    EnvCrashError,
    EnvFault,
    MenvError,
    WorkerLostError,
    raised_by_envs,
)
from menv.serialization import digest
from menv.spaces import call_method, close_env, close_unused, reset_env

# SEAM menv.adapters.numbered_envs
# Sub-environments that are numbered from 0, their number being their env id.
#
# `created_envs` and `lockstep` build on it. It knows neither rows nor what an environment is.


class NumberedEnvs(BaseEnv):
    """E sub-environments with their index as env id.

    Attributes:
        num_envs: E.
    """

    returns_table = True
    num_envs: int

    def _index(self, env_id: Any) -> int:
        """Return the index of a sub-environment.

        Raises:
            ConfigError: There is none of this id.
        """
        if not isinstance(env_id, int | np.integer) or not 0 <= env_id < self.num_envs:
            raise ConfigError(
                f"env id {env_id!r}: expected an integer from 0 to {self.num_envs - 1}; use the ids that poll returned"
            )
        return int(env_id)

    def _indices(self, env_id: EnvId | None) -> Sequence[int]:
        return range(self.num_envs) if env_id is None else [self._index(env_id)]


# SEAM menv.adapters.created_envs
# Sub-environments that menv made itself, and can make anew: what those ask of them who write a run down.
#
# `local_envs` are such, and those of `menv.workers.remote_envs`. `menv.sampling.episode_checkpoint` lets them
# go on where another
# run stood. Nothing here steps.


class CreatedEnvs(NumberedEnvs):
    """Numbered sub-environments that can be made anew.

    Attributes:
        on_created: Told the index and the sub-environment where one is created in another's place.
    """

    on_created: Callable[[int, Any], None] | None = None
    _seed: int | None = None
    _first_index: int = 0

    @property
    @abstractmethod
    def env_steps(self) -> IntArray:
        """[E] env steps of each sub-environment since its start."""

    @abstractmethod
    def episode_start(self, index: int) -> int:
        """Return the env steps of a sub-environment at its last reset."""

    @abstractmethod
    def slots_of(self, index: int) -> Mapping[Any, int]:
        """Return the slot of each agent that a sub-environment knows."""

    def episode_seed(self, index: int) -> int | None:
        """Return the seed of a sub-environment's last reset, None where it was left alone."""
        if self._seed is None:
            return None
        return rng.reset_seed(self._seed, self._first_index + index, self.episode_start(index))

    @abstractmethod
    def shown(self, index: int) -> str | None:
        """Return a digest of what waits in a sub-environment, None where no file could hold that."""

    @property
    @abstractmethod
    def seats(self) -> Any:
        """The seats by slot; see `Ready.seats`."""

    @property
    @abstractmethod
    def free_slots(self) -> list[int]:
        """Slots that nobody has, in the order in which they were given back."""

    @abstractmethod
    def resume(self, env_steps: IntArray, recorded: Mapping[int, EpisodeReplay], seats: Any) -> set[int]:
        """Go on where another run was written down: play running episodes again, begin new ones for the others.

        Args:
            env_steps: [E] env steps so far.
            recorded: Running episodes by index.
            seats: What `seats` and `free_slots` of the other run's environment were.

        Returns:
            The sub-environments that begin their next episodes: whose episode is not in `recorded`, or came out
            differently. Their first rows come with the next poll.
        """


# SEAM menv.adapters.crash_log
# How often each sub-environment raised without making progress, and when that is too often.
#
# `local_envs` notes every exception of a sub-environment here before it makes a new one. It keeps the first
# cause of a
# series, which is what the error that ends the run is raised from.


TOLERATED = 2
"""How many crashes of one sub-environment in a row, none with progress in between, do not end the run by default."""
PROGRESS = 10
"""An episode of so many env steps is progress, also if it ends with a crash."""
PAUSES = (0.0, 0.05, 0.25)
"""Seconds to wait before each attempt to make a replacement; when all have failed the run ends."""
# Causes whose tracebacks are kept as they are; those of more sub-environments at once become text.
_LIVE = 8


class _Series(NamedTuple):
    """Crashes of one sub-environment without progress in between: the first one, and how many."""

    text: str
    error: BaseException
    times: int


class CrashLog:
    """The crashes of the sub-environments of one adapter."""

    def __init__(self, *, tolerated: int | None, creator: bool) -> None:
        """Begin without crashes.

        Args:
            tolerated: Crashes in a row without progress that do not end the run; None replaces no sub-environment.
            creator: Whether there is something to make the replacement with.
        """
        self._tolerated = tolerated
        self._creator = creator
        self._series: dict[int, _Series] = {}

    def note(self, index: int, text: str, error: BaseException, steps: int) -> None:
        """Note a crash.

        Args:
            index: The sub-environment.
            text: Begins the message: where it was, and what was raised.
            error: What was raised.
            steps: Env steps of the episode that it ended, 0 in a reset.

        Raises:
            EnvCrashError: It is not to be replaced, cannot be, or has been too often; the first cause is its own.
        """
        progress = steps >= PROGRESS
        before = None if progress else self._series.get(index)
        new = _Series(text, error, 0 if progress else 1)
        series = new if before is None else before._replace(times=before.times + 1)
        if before is None and len(self._series) >= _LIVE:
            _write_down(error)
        self._series[index] = series
        if self._tolerated is None:
            raise self.error(index, "")
        if not self._creator:
            raise self.error(index, "", " (without make_env no other can be made)")
        if series.times > self._tolerated:
            raise self.error(
                index,
                f", the first of {series.times} crashes in a row in reset or in the first {PROGRESS} env steps, "
                f"expected {self._tolerated} at most (num_consecutive_env_failures_tolerance)",
            )

    def finished(self, index: int) -> None:
        """Note that a sub-environment finished an episode."""
        if self._series:
            self._series.pop(index, None)

    def replacement_error(self, index: int, last: BaseException) -> EnvCrashError:
        """Return the error for a sub-environment whose replacements fail, `last` the latest of them."""
        return self.error(
            index,
            f", and {len(PAUSES)} replacements could not be made or reset, the last because of "
            f"{type(last).__name__}: {last}",
        )

    def error(self, index: int, more: str, hint: str = "") -> EnvCrashError:
        """Return the error that ends the run, with the first cause of the series as its own."""
        series = self._series[index]
        lost = isinstance(series.error, WorkerLostError)
        above = "what is known of its process" if lost else "the environment's own traceback"
        error = EnvCrashError(f"{series.text}{more}; {above} is above{hint}")
        error.__cause__ = series.error
        return error


def _write_down(error: BaseException) -> None:
    """Turn an error's traceback into a note, because its frames keep alive what their callers hold, whole batches."""
    error.add_note("".join(traceback.format_exception(error)))
    error.__traceback__ = error.__cause__ = error.__context__ = None


class LocalEnvs(CreatedEnvs):
    """A list of sub-environments with their index as env id."""

    def __init__(
        self,
        make_env: Callable[[int], Any] | None,
        num_envs: int,
        existing: Sequence[Any] = (),
        *,
        seed: int | None = None,
        first_index: int = 0,
        tolerated: int | None = TOLERATED,
    ) -> None:
        """Create the sub-environments that are missing.

        Args:
            make_env: Creates sub-environment number `vector_index`.
            num_envs: How many there shall be.
            existing: The first of them, if they exist already.
            seed: Gives every reset its own seed; None leaves the environments alone.
            first_index: Index of the first sub-environment among all workers' sub-environments.
            tolerated: Crashes in a row, of one sub-environment without progress, that do not end the run; with None
                none is created again by `make_env`.
        """
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise ConfigError(
                f"num_envs: {num_envs!r}, expected at least 1; set num_envs_per_worker to 1 or more"
            )
        if make_env is None and len(existing) < num_envs:
            raise ConfigError(
                f"to_base_env: num_envs={num_envs} and make_env is None, expected one that creates "
                f"{num_envs - len(existing)} more; pass make_env=lambda index: YourEnv(...)"
            )
        self._make_env = make_env
        self._seed = seed
        self._first_index = first_index
        self._envs: list[Any] = list(existing[:num_envs])
        while len(self._envs) < num_envs and make_env is not None:
            env = make_env(len(self._envs))
            if any(env is other for other in self._envs):
                raise ConfigError(
                    f"to_base_env: sub-environment {len(self._envs)} is the same object as an earlier one, expected "
                    "a new environment for each vector_index; create it inside the function that you registered"
                )
            self._envs.append(env)
        self.num_envs = num_envs
        self._env_steps = np.zeros(num_envs, np.int64)
        self._started = False
        self._stopped = False
        self._events = PollEvents()
        self._crashes = CrashLog(tolerated=tolerated, creator=make_env is not None)
        self._was_reset = [False] * num_envs
        # Whether a poll is under way, or was broken off with some sub-environments stepped and others not.
        self._torn = False
        self._prepare()

    # Asked for when they are wanted: an environment that is built in its first reset has none before it, and one
    # that finds its spaces out has not to before anybody wants to know.
    @property
    def observation_space(self) -> Any:
        """What the first sub-environment declares, None if nothing."""
        return getattr(self._envs[0], "observation_space", None)

    @property
    def action_space(self) -> Any:
        """The same of actions."""
        return getattr(self._envs[0], "action_space", None)

    @abstractmethod
    def _prepare(self) -> None:
        """Make what keeps the books of the sub-environments, which exist by now."""

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the sub-environments as a list, or as a dict by index."""
        return dict(enumerate(self._envs)) if as_dict else list(self._envs)

    def try_render(self, env_id: EnvId | None = None) -> Any:
        """Render one sub-environment, the first by default."""
        return self._envs[self._index(env_id or 0)].render()

    def call(self, env_id: EnvId, method: str, *args: Any) -> Any:
        """Call a method of one sub-environment; see `BaseEnv.call`."""
        index = self._index(env_id)
        return call_method(self._envs[index], method, index, args)

    def stop(self) -> None:
        """Close every sub-environment that has a `close`, also past those that raise."""
        if not self._stopped:
            self._stopped = True
            with ExitStack() as closing:
                for index in reversed(range(len(self._envs))):
                    closing.callback(self._close, index)

    def _close(self, index: int) -> None:
        """Close a sub-environment; many that were never reset cannot be closed, and have nothing to free.

        Raises:
            EnvCrashError: It raised.
        """
        if not self._was_reset[index]:
            close_unused(self._envs[index])
            return
        try:
            close_env(self._envs[index])
        except MenvError:
            raise
        except Exception as error:
            raise EnvCrashError(
                f"env {index} close: raised {type(error).__name__}: {error}, expected it to return; mend close, all "
                "other sub-environments were closed; the environment's own traceback is above"
            ) from error

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[MultiEnvDict, MultiEnvDict]:
        """Reset one sub-environment or all; see `BaseEnv.try_reset`."""
        indices = self._indices(env_id)
        if not self._started:
            self._start()
        obs: MultiEnvDict = {}
        infos: MultiEnvDict = {}
        for index in indices:
            if self._torn or self._moved(index) or seed is not None or options is not None:
                self._abandon(index, seed, options)
            obs[index], infos[index] = self._first_row(index)
        self._torn = self._torn and env_id is not None
        return obs, infos

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Create one sub-environment or all anew; their next rows are the first of a new episode."""
        for index in self._indices(env_id):
            self._replace_env(index)
            self._tell_created(index)
            if self._started:
                self._abandon(index, None, None)

    @property
    def env_steps(self) -> IntArray:
        """[E] env steps of each sub-environment since its start."""
        return self._env_steps

    @abstractmethod
    def present(self, index: int) -> tuple[Mapping[Any, int], IntArray]:
        """Return the slots of the agents that live in a sub-environment, and the slots of those who wait."""

    def shown(self, index: int) -> str | None:
        """Return a digest of what waits in a sub-environment, None where no file could hold that."""
        return digest(self._waits(index))

    def resume(self, env_steps: IntArray, recorded: Mapping[int, EpisodeReplay], seats: Any) -> set[int]:
        """Go on where another run was written down; see `CreatedEnvs.resume`."""
        self._started, self._torn = True, False
        self._clear(seats)
        fresh = set()
        for index in range(len(self._envs)):
            # Whatever goes wrong in an environment that is not as it was, its next episode begins with a reset.
            again = False
            if index in recorded:
                with suppress(Exception):
                    again = self._play(index, recorded[index]) and self.shown(index) == recorded[index].shown
            self._env_steps[index] = env_steps[index]
            if not again:
                self._begin_next(index, {} if index not in recorded else recorded[index].slots)
                fresh.add(index)
        return fresh

    def begin_at(self, env_steps: Mapping[int, int]) -> None:
        """Begin new episodes in some sub-environments that have none, each at its count of env steps.

        Args:
            env_steps: By index; their first rows come with the next poll. The others wait for their own turn.
        """
        if not self._started:
            self._started = True
            self._clear(([], []))
        for index, steps in env_steps.items():
            self._env_steps[index] = steps
            self._begin_next(index, {})

    @property
    def free_slots(self) -> list[int]:
        """Slots that nobody has, in the order in which they were given back."""
        return []

    @abstractmethod
    def _start(self) -> None:
        """Reset every sub-environment for the first time."""

    @abstractmethod
    def _moved(self, index: int) -> bool:
        """Return whether anybody in a sub-environment has been answered since the last reset."""

    @abstractmethod
    def _first_row(self, index: int) -> tuple[dict[AgentId, Any], dict[AgentId, Any]]:
        """Return the observations and infos that agents of a sub-environment wait with, by agent."""

    @abstractmethod
    def _abandon(self, index: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """End the running episode of a sub-environment as truncated and reset it."""

    @abstractmethod
    def _waits(self, index: int) -> Any:
        """Return what waits in a sub-environment as a tree."""

    @abstractmethod
    def _clear(self, seats: Any) -> None:
        """Forget all rows, answers and episodes."""

    @abstractmethod
    def _play(self, index: int, recorded: EpisodeReplay) -> bool:
        """Play an episode again; False if it is over too early."""

    @abstractmethod
    def _begin_next(self, index: int, slots: Mapping[Any, int]) -> None:
        """Begin a new episode, with what a played one left forgotten."""

    def _next_episode(self, index: int) -> tuple[Any, Any]:
        self._crashes.finished(index)
        return self._reset_env(index)

    def _reset_env(
        self, index: int, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Reset one sub-environment, or another in its place if it raises, and return `(obs, info)`.

        Raises:
            EnvCrashError: It raised in its first reset, or has raised too often.
        """
        try:
            return self._reset_once(index, seed, options)
        except MenvError:
            raise
        except raised_by_envs() as error:
            if not self._was_reset[index]:
                raise self.crash(index, "reset", error) from error
            return self._made_anew(index, "reset", error, seed, options)

    def _reset_once(
        self, index: int, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Reset one sub-environment with a seed of its own and return `(obs, info)`; it may raise anything."""
        if seed is None and self._seed is not None:
            seed = rng.reset_seed(self._seed, self._first_index + index, int(self._env_steps[index]))
        result = reset_env(self._envs[index], index, seed, options)
        self._was_reset[index] = True
        return result

    def _made_anew(
        self,
        index: int,
        where: str,
        error: BaseException,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        *,
        steps: int = 0,
    ) -> tuple[Any, Any]:
        """Put a new sub-environment in the place of one that raised, and return `(obs, info)` of its reset.

        `steps` are the env steps of the episode that is lost.

        Raises:
            EnvCrashError: It has raised too often, or no replacement could be made and reset.
        """
        self._crashes.note(index, self._told(index, where, error), error, steps)
        self._events.faults.append(EnvFault.of(index, index, where, error))
        # A reset that raised counts as an env step, as a step does that raised: the next one has another seed.
        self._env_steps[index] += where == "reset"
        last = error
        for pause in PAUSES:
            time.sleep(pause)
            begun = self._tried_anew(index, seed, options)
            if not isinstance(begun, BaseException):
                return begun
            last = begun
        raise self._crashes.replacement_error(index, last)

    def _tried_anew(
        self, index: int, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, Any] | BaseException:
        """Create and reset a sub-environment, and return `(obs, info)` or what was raised."""
        before = self._envs[index]
        try:
            self._replace_env(index)
        except (ContractError, ConfigError):
            raise
        except raised_by_envs() as error:
            return error
        if self._envs[index] is before:
            raise self._crashes.error(
                index, ", and make_env returned the same object again, expected a new environment"
            )
        self._tell_created(index)
        try:
            return self._reset_once(index, seed, options)
        except MenvError:
            raise
        except raised_by_envs() as error:
            self._env_steps[index] += 1
            return error

    def _tell_created(self, index: int) -> None:
        if self.on_created is not None:
            self.on_created(index, self._envs[index])

    def _replace_env(self, index: int) -> None:
        if self._make_env is None:
            raise ConfigError(
                f"try_restart: env {index} was given as an instance, expected make_env; pass make_env to to_base_env"
            )
        # One that is broken may not be able to close any more; that must not keep it in its place.
        with suppress(Exception):
            close_env(self._envs[index])
        self._envs[index] = self._make_env(index)

    def _tear(self) -> None:
        """Begin a poll, which sets `_torn` back when it is over; after one that was broken off nobody may go on.

        Raises:
            CallOrderError: The last one was.
        """
        if self._torn:
            raise CallOrderError(
                "poll: the one before was broken off, so that some sub-environments may have stepped and others not, "
                "expected new episodes; call try_reset() first"
            )
        self._torn = True

    def crash(self, index: int, where: str, error: BaseException) -> EnvCrashError:
        """Return the error for an exception that a sub-environment raised."""
        return EnvCrashError(f"{self._told(index, where, error)}; the environment's own traceback is above")

    def _told(self, index: int, where: str, error: BaseException) -> str:
        return f"env {index} {where}, env step {int(self._env_steps[index])}: raised {type(error).__name__}: {error}"
