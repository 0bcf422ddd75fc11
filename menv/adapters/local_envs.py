"""Sub-environments of this process: created, seeded, restarted, rendered and closed.

`LocalEnvs` is the base of `gym` and `multi_agent`, which step their sub-environments one after another inside `poll`. A
sub-environment that raises is closed and created again, and only its own episode is lost. Nothing here knows agents or
rows.
"""

from __future__ import annotations

import time
import traceback
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from menv import rng
from menv.adapters.adapter import Adapter
from menv.adapters.poll_events import PollEvents
from menv.base_env import AgentId, EnvId, IntArray, MultiEnvDict
from menv.env_calls import call_method, close_env, close_unused, reset_env
from menv.errors import (
    CallOrderError,
    ConfigError,
    ContractError,
    EnvCrashError,
    EnvFault,
    MenvError,
    WorkerLostError,
    in_words,
)

TOLERATED = 2
"""How many crashes of one sub-environment in a row, without progress in between, do not end the run by default."""
PROGRESS = 10
"""An episode of this many env steps is progress, even if it ends with a crash."""
PAUSE = 0.1
"""Seconds to wait before another replacement for each crash in a row after the first."""
# Causes that keep their tracebacks; with more sub-environments in trouble the tracebacks become text.
_MAX_TRACEBACKS = 8


class CrashLog:
    """The crashes of each sub-environment since it last made progress.

    A series of crashes keeps its first cause, which becomes the cause of the error that ends the run.

    Args:
        tolerated: Crashes in a row without progress that do not end the run; None replaces no sub-environment.
        creator: Whether there is a `make_env` for replacements.
    """

    def __init__(self, *, tolerated: int | None, creator: bool) -> None:
        self._tolerated = tolerated
        self._creator = creator
        # By index: the text and the error of the first crash, and how many there were.
        self._series: dict[int, tuple[str, BaseException, int]] = {}
        # The last one, by index.
        self._faults: dict[int, EnvFault] = {}

    def note(self, index: int, text: str, error: BaseException, steps: int, fault: EnvFault) -> None:
        """Record a crash that ended an episode after `steps` env steps, and pause before the replacement.

        `steps` is 0 in a reset and for a replacement that could not be made; `text` begins the message.

        Raises:
            EnvCrashError: The sub-environment cannot be replaced, or crashed too often.
        """
        progress = steps >= PROGRESS
        self._faults[index] = fault
        before = None if progress else self._series.get(index)
        if before is None and len(self._series) >= _MAX_TRACEBACKS:
            # The text of the traceback is kept, but not its frames, which keep whole batches alive.
            error.add_note("".join(traceback.format_exception(error)))
            error.__traceback__ = error.__cause__ = error.__context__ = None
        first, cause, times = before or (text, error, -1 if progress else 0)
        self._series[index] = first, cause, times + 1
        if self._tolerated is None:
            raise self.error(index, "")
        if not self._creator:
            raise self.error(index, "", " (without make_env no other can be made)")
        if times + 1 > self._tolerated:
            raise self.error(
                index,
                f", the first of {times + 1} crashes in a row in reset or in the first {PROGRESS} env steps of an "
                f"episode, expected {self._tolerated} at most (num_consecutive_env_failures_tolerance)",
            )
        time.sleep(PAUSE * max(0, times))

    def finished(self, index: int) -> None:
        """Record that a sub-environment finished an episode."""
        if self._series:
            self._series.pop(index, None)
            self._faults.pop(index, None)

    def error(self, index: int, more: str, hint: str = "") -> EnvCrashError:
        """Return the error that ends the run, with the first cause of the series as its cause."""
        text, cause, _ = self._series[index]
        lost = isinstance(cause, WorkerLostError)
        above = "the report of its process" if lost else "the environment's own traceback"
        error = EnvCrashError(f"{text}{more}; {above} is above{hint}")
        error.__cause__, error._fault = cause, self._faults[index]
        return error


class LocalEnvs(Adapter):
    """Sub-environments that this process steps.

    Args:
        make_env: Creates sub-environment number `vector_index`.
        num_envs: How many there are.
        existing: The first of them, if they exist already.
        seed: Gives every reset its own seed; None resets without seeds.
        first_index: Index of the first sub-environment among the sub-environments of all workers.
        tolerated: Crashes in a row, of one sub-environment without progress, that do not end the run; None creates no
            replacements.
    """

    can_restart = events_have_order = True
    seats: list[tuple[EnvId, AgentId]]

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
        self.seed = seed
        self.first_index = first_index
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
        self.env_steps = np.zeros(num_envs, np.int64)
        self._started = False
        self._stopped = False
        self._events = PollEvents()
        self._crashes = CrashLog(tolerated=tolerated, creator=make_env is not None)
        self.on_created: Callable[[int, Any], None] | None = None
        self._was_reset = [False] * num_envs
        # True during a poll, and after a poll that was interrupted with some sub-environments stepped and others not.
        self._in_poll = False
        # Sub-environments whose episode has ended and that were not reset yet.
        self._over: list[int] = []
        self._prepare()

    # Read when they are needed: an environment may only have spaces after its first reset.
    @property
    def observation_space(self) -> Any:
        """The observation space of the first sub-environment, None if it declares none."""
        return getattr(self._envs[0], "observation_space", None)

    @property
    def action_space(self) -> Any:
        """The action space of the first sub-environment, None if it declares none."""
        return getattr(self._envs[0], "action_space", None)

    @abstractmethod
    def _prepare(self) -> None:
        """Create the state of a subclass; the sub-environments exist."""

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        return dict(enumerate(self._envs)) if as_dict else list(self._envs)

    def try_render(self, env_id: EnvId | None = None) -> Any:
        return self._envs[self.index_of(env_id or 0)].render()

    def call(self, env_id: EnvId, method: str, *args: Any) -> Any:
        index = self.index_of(env_id)
        return call_method(self._envs[index], method, index, args)

    def stop(self) -> None:
        """Close every sub-environment that has a `close`, even if some of them raise."""
        if not self._stopped:
            self._stopped = True
            with ExitStack() as closing:
                for index in reversed(range(len(self._envs))):
                    closing.callback(self._close, index)

    def _close(self, index: int) -> None:
        # Many environments that were never reset cannot be closed, and hold nothing.
        if not self._was_reset[index]:
            close_unused(self._envs[index])
            return
        try:
            close_env(self._envs[index])
        except MenvError:
            raise
        except Exception as error:
            raise EnvCrashError(
                f"env {index} close: raised {in_words(error)}; fix close, all "
                "other sub-environments were closed; the environment's own traceback is above"
            ) from error

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[MultiEnvDict, MultiEnvDict]:
        indices = self.indices(env_id)
        if not self._started:
            self._start()
        obs: MultiEnvDict = {}
        infos: MultiEnvDict = {}
        for index in indices:
            if self._in_poll or self._moved(index) or seed is not None or options is not None:
                self._begin_anew(index, seed, options)
            obs[index], infos[index] = self._first_row(index)
        self._in_poll = self._in_poll and env_id is not None
        return obs, infos

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Replace one sub-environment or all; their next rows are the first of a new episode."""
        for index in self.indices(env_id):
            self._replace_env(index)
            self._report_created(index)
            if self._started:
                self._begin_anew(index)

    def _begin_anew(self, index: int, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Reset a sub-environment; a running episode ends as truncated."""
        if index in self._over:
            self._over.remove(index)
        else:
            self._truncate(index)
        self._reset_and_begin(index, seed, options)

    def _begin_over(self) -> None:
        """Begin the next episode where one has ended."""
        for index in list(self._over):
            first = self._next_episode(index)
            self._over.remove(index)
            self._begin(index, *first)

    @property
    def replayable(self) -> LocalEnvs | None:
        return self

    @abstractmethod
    def episode_start(self, index: int) -> int:
        """Return the env steps of a sub-environment at its last reset."""

    def start_from(self, env_steps: IntArray) -> None:
        self.begin_at(dict(enumerate(env_steps.tolist())))

    def begin_at(self, env_steps: Mapping[int, int]) -> None:
        """Begin new episodes in some sub-environments, each at its count of env steps.

        Args:
            env_steps: By index; the first rows come with the next poll. If it has all sub-environments, everything
                before is forgotten. The other sub-environments do not begin.
        """
        if not self._started or len(env_steps) == self.num_envs:
            self._started, self._in_poll, self.paused = True, False, False
            self._over.clear()
            self._clear()
        for index, steps in env_steps.items():
            self.env_steps[index] = steps
            self._reset_and_begin(index)

    @abstractmethod
    def _start(self) -> None:
        """Reset every sub-environment for the first time."""

    @abstractmethod
    def _moved(self, index: int) -> bool:
        """Return whether an agent of a sub-environment has been answered since the last reset."""

    @abstractmethod
    def _first_row(self, index: int) -> tuple[dict[AgentId, Any], dict[AgentId, Any]]:
        """Return the observations and infos of the agents that wait, by agent."""

    @abstractmethod
    def _truncate(self, index: int) -> None:
        """End the running episode of a sub-environment as truncated."""

    @abstractmethod
    def _reset_and_begin(
        self, index: int, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Reset a sub-environment whose episode is over, and begin the next one."""

    @abstractmethod
    def _begin(self, index: int, obs: object, infos: object) -> None:
        """Begin an episode with what a reset returned."""

    @abstractmethod
    def _clear(self) -> None:
        """Forget all rows, answers and episodes."""

    def _next_episode(self, index: int) -> tuple[Any, Any]:
        self._crashes.finished(index)
        return self._reset_env(index)

    def _reset_env(
        self, index: int, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Reset a sub-environment, or a replacement if it raises, and return `(obs, info)`.

        Raises:
            EnvCrashError: It raised in its first reset, or too often.
        """
        try:
            return self._reset_once(index, seed, options)
        except MenvError:
            raise
        except Exception as error:
            if not self._was_reset[index]:
                first = EnvCrashError(
                    f"{self._crash_text(index, 'reset', error)}; the environment's own traceback is above"
                )
                first._fault = EnvFault.of(index, index, "reset", error, int(self.env_steps[index]))
                raise first from error
            return self._recreate(index, "reset", error, seed, options)

    def _reset_once(
        self, index: int, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Reset a sub-environment with its own seed and return `(obs, info)`; may raise anything."""
        if seed is None:
            seed = self._reset_seed(index, int(self.env_steps[index]))
        result = reset_env(self._envs[index], index, seed, options)
        self._was_reset[index] = True
        return result

    def _reset_seed(self, index: int, env_steps: int) -> int | None:
        return None if self.seed is None else rng.reset_seed(self.seed, self.first_index + index, env_steps)

    def _recreate(
        self,
        index: int,
        where: str,
        error: BaseException,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        *,
        steps: int = 0,
    ) -> tuple[Any, Any]:
        """Replace a sub-environment that raised `steps` env steps into its episode; return `(obs, info)` of its reset.

        Raises:
            EnvCrashError: It, or its replacements, raised too often.
        """
        # The env step that raised was counted.
        began = int(self.env_steps[index]) - (steps + 1) * (where == "step")
        fault = EnvFault.of(index, index, where, error, began)
        self._crashes.note(index, self._crash_text(index, where, error), error, steps, fault)
        self._events.faults.append(fault)
        # A reset that raised counts as an env step, as a step that raised does: the next one gets another seed.
        self.env_steps[index] += where == "reset"
        while isinstance(result := self._try_recreate(index, seed, options), BaseException):
            self._crashes.note(index, self._crash_text(index, "replacement", result), result, 0, fault)
        return result

    def _try_recreate(
        self, index: int, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, Any] | BaseException:
        """Create and reset a sub-environment; return `(obs, info)`, or what it raised."""
        before = self._envs[index]
        try:
            self._replace_env(index)
        except (ContractError, ConfigError):
            raise
        except Exception as error:
            return error
        if self._envs[index] is before:
            raise self._crashes.error(
                index, ", and make_env returned the same object again, expected a new environment"
            )
        self._report_created(index)
        try:
            return self._reset_once(index, seed, options)
        except MenvError:
            raise
        except Exception as error:
            self.env_steps[index] += 1
            return error

    def _report_created(self, index: int) -> None:
        if self.on_created is not None:
            self.on_created(index, self._envs[index])

    def _replace_env(self, index: int) -> None:
        if self._make_env is None:
            raise ConfigError(
                f"try_restart: env {index} was given as an instance, expected make_env; pass make_env to to_base_env"
            )
        # A broken environment may fail to close; it is replaced anyway.
        with suppress(Exception):
            close_env(self._envs[index])
        self._envs[index] = self._make_env(index)

    def _crash_text(self, index: int, where: str, error: BaseException) -> str:
        return f"env {index} {where}, env step {int(self.env_steps[index])}: raised {in_words(error)}"


def interrupted_poll_error() -> CallOrderError:
    """Return the error for a poll after an interrupted one, which left `_in_poll` set."""
    return CallOrderError(
        "poll: the previous poll was interrupted, so some sub-environments may have stepped and others not, expected "
        "new episodes; call try_reset() first"
    )
