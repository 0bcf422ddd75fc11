"""`check_env`: play an environment and say what it does against the contract, in codes.

Users and tests call it, `python -m menv.checking` prints what it returns. It creates copies, plays one
at length and others in pieces, closes them, and never raises what the environment raises.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import BaseEnv
from menv.checking.batched_runners import BaseEnvRunner, GymVectorRunner
from menv.checking.codes import Broken, Finding, FindingCollector, checked_codes
from menv.checking.env_runner import EnvRunner, GymRunner, VectorRunner, describe
from menv.checking.multi_agent_runner import MultiAgentRunner
from menv.checking.play import ActionFn, Actor, play_at_length, same
from menv.checking.seeds import SeedProbe
from menv.env_context import EnvContext
from menv.errors import ConfigError, EnvCrashError, UnknownNameError
from menv.multi_agent_env import MultiAgentEnv
from menv.registry import resolve_env
from menv.vector_env import VectorEnv

# A class may be of two kinds; its agents are lost if it is taken for a single-agent one.
_STAGES: tuple[tuple[type[Any], type[EnvRunner]], ...] = (
    (BaseEnv, BaseEnvRunner),
    (VectorEnv, VectorRunner),
    (gym.vector.VectorEnv, GymVectorRunner),
    (MultiAgentEnv, MultiAgentRunner),
    (gym.Env, GymRunner),
)


class EnvUnderTest:
    """Creates the runners that play an environment.

    Attributes:
        stages: Those made so far.
        is_instance: True if the caller gave an environment that exists: there are no copies of it, and it is the
            caller's to close.
        ignored: Codes that the environment itself asks to ignore.
    """

    def __init__(self, env: Any, config: Mapping[str, Any] | None) -> None:
        """Find the creator of the environment.

        Raises:
            ConfigError: `env` is no environment, or an unknown name.
            Broken: It cannot create anything.
        """
        self.stages: list[EnvRunner] = []
        self.is_instance = _is_instance(env)
        self.ignored: Any = getattr(env, "menv_ignore", ())
        self._env = env
        self._config = config
        self._contexts: list[tuple[EnvContext, EnvContext]] = []
        if self.is_instance and config is not None:
            raise ConfigError(
                "check_env: config is given with an environment that exists, expected None; pass the class instead"
            )
        self._creator = None if self.is_instance else _creator(env)

    def stage(self, report: FindingCollector, vector_index: int) -> EnvRunner:
        """Return a runner of a new copy of the environment, or of the instance itself.

        Args:
            report: Takes the findings.
            vector_index: Which sub-environment the copy is told to be.

        Raises:
            Broken: It could not be created, or is of no known kind.
        """
        env = self._env if self._creator is None else self._create(self._creator, vector_index)
        if self._creator is not None and any(stage.given is env for stage in self.stages):
            raise Broken(
                "ME077", "two calls of the creator returned the same object, expected a new one each time"
            )
        self.ignored = getattr(env, "menv_ignore", None) or getattr(_inner(env), "menv_ignore", self.ignored)
        stage = _stage_class(env)(env, report)
        self.stages.append(stage)
        return stage

    def _create(self, creator: Callable[[EnvContext], Any], vector_index: int) -> Any:
        context = EnvContext(self._config, vector_index=vector_index)
        self._contexts.append((context, context.copy()))
        try:
            env = creator(context)
        except (Exception, SystemExit) as error:
            raise Broken(
                "ME092", f"the creator (vector_index={vector_index}) raised {describe(error)}"
            ) from error
        if env is None or isinstance(env, type):
            got = "None" if env is None else f"the class {env.__name__}"
            raise Broken("ME092", f"the creator returned {got}, expected an environment")
        return env

    def check_config(self, report: FindingCollector) -> None:
        """Report an environment that changed the settings that it was given."""
        for now, before in self._contexts:
            if not same(dict(now), dict(before)):
                changed = sorted(
                    str(key)
                    for key in now.keys() | before.keys()
                    if key not in now or key not in before or not same(now[key], before[key])
                )
                report.add("ME075", f"the env_config has changed in {changed[:8]}")


def _creator(env: Any) -> Callable[[EnvContext], Any]:
    try:
        return resolve_env(env)
    except UnknownNameError:
        raise
    except EnvCrashError as error:
        raise Broken("ME092", str(error)) from error
    except ConfigError as error:
        if not callable(env) and not isinstance(env, str):
            raise
        raise Broken("ME093", str(error).partition(";")[0]) from error


def _is_instance(env: Any) -> bool:
    return not isinstance(env, type | str) and any(
        callable(getattr(env, method, None)) for method in ("step", "poll", "vector_step")
    )


def _inner(env: Any) -> Any:
    return env.unwrapped if isinstance(env, gym.Env) else env


def _stage_class(env: Any) -> type[EnvRunner]:
    """Return the stage for an environment of this kind.

    Raises:
        Broken: There is none.
    """
    for kind, stage in _STAGES:
        if isinstance(env, kind):
            return stage
    name = type(env).__name__
    packages = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    spaces_are_methods = callable(getattr(env, "observation_space", None)) and not isinstance(
        env.observation_space, gym.Space
    )
    if "pettingzoo" in packages or (spaces_are_methods and hasattr(env, "possible_agents")):
        wrapper = "PettingZooEnv" if callable(getattr(env, "agent_iter", None)) else "ParallelPettingZooEnv"
        raise Broken(
            "ME008", f"{name} is a PettingZoo environment, expected it wrapped",
            fix=f"pass `lambda context: menv.wrappers.{wrapper}(env)`, with the environment made inside",
        )  # fmt: skip
    if "gym" in packages or _looks_old(env):
        raise Broken("ME009", f"{name} is an environment of the old gym API, expected a gymnasium.Env")
    raise Broken("ME007", f"{name} is no kind of environment that menv knows")


def _looks_old(env: Any) -> bool:
    """Return whether an object speaks the gym API from before 0.26: its reset takes no seed."""
    if not all(hasattr(env, name) for name in ("reset", "step", "observation_space", "action_space")):
        return False
    try:
        parameters = inspect.signature(env.reset).parameters.values()
    except (TypeError, ValueError):
        return False
    return not any(one.name == "seed" or one.kind is one.VAR_KEYWORD for one in parameters)


_PATIENCE = 2.0
"""Seconds that threads and processes have to end after close."""


_HELPERS = (
    ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
    ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
)
"""Where Python keeps the ids of its helper processes, which outlive the code that started them."""
_OVER = (b"Z", b"X", b"x")
"""States of processes that have ended and wait to be reaped."""


@dataclass(frozen=True)
class _Child:
    """A child process that the system lists, however it was started.

    Process ids are reused: the start time distinguishes a process from an earlier one.
    """

    pid: int
    started: int
    program: str = field(compare=False)

    @property
    def name(self) -> str:
        return f"{self.program} (process {self.pid})"


def running() -> set[object]:
    """Return the threads and child processes of this process; `subprocess` and `os.fork` children on Linux only."""
    known = multiprocessing.active_children()
    apart = {os.getpid(), *(one.pid for one in known), *_helpers()}
    return {*threading.enumerate(), *known, *(one for one in _children() if one.pid not in apart)}


def _helpers() -> Iterator[int | None]:
    for module, owner, number in _HELPERS:
        yield getattr(getattr(sys.modules.get(module), owner, None), number, None)


def _children() -> Iterator[_Child]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # One that ends meanwhile is none.
            head, _, rest = stat.read_bytes().rpartition(b")")
            pid, _, program = head.partition(b" (")
            state, parent, *more = rest.split()
            if int(parent) == os.getpid() and state not in _OVER:
                yield _Child(int(pid), int(more[17]), program.decode(errors="replace"))


def check_closing(report: FindingCollector, stages: Iterable[EnvRunner], before: set[object]) -> None:
    """Close every stage, and the first one twice.

    Args:
        report: Takes the findings.
        stages: What was played on.
        before: What ran before there was any of them.
    """
    for number, stage in enumerate(stages):
        try:
            stage.close()
        except (Exception, SystemExit) as error:
            report.add("ME080", f"close raised {describe(error)}")
            continue
        if number == 0:
            try:
                stage.close()
            except (Exception, SystemExit) as error:
                report.add("ME081", f"the second close raised {describe(error)}")
    left = _left_after(_PATIENCE, before)
    if left:
        names = sorted(str(getattr(one, "name", one)) for one in left)[:4]
        report.add("ME082", f"still running after close: {', '.join(names)}")


def _left_after(patience: float, before: set[object]) -> set[object]:
    deadline = time.monotonic() + patience
    left = running() - before
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = running() - before
    return left


ENV_STEPS = 500
_SLOW = 0.1
"""Seconds; a median env step above that is worth a word."""
_SILENT = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


def check_env(
    env: Any,
    config: Mapping[str, Any] | None = None,
    *,
    actions: ActionFn | None = None,
    ignore: Iterable[str] = (),
    seed: int = 0,
    env_steps: int = ENV_STEPS,
) -> list[Finding]:
    """Play an environment of any kind and return what is wrong with it; nothing is printed.

    Args:
        env: A registered name, a gymnasium id, "module:Class", a class, a creator that takes an `EnvContext`, or
            an environment. One that exists is played on and left open, and what needs a second copy
            or an end (other copies, closing) is not looked at.
        config: The env_config for the copies.
        actions: `actions(obs, agent_id) -> action` decides; by default chance does, within action masks.
        ignore: Codes that are not wanted, besides those in an attribute `menv_ignore` of the environment.
        seed: Of resets and random actions: the same seed gives the same findings.
        env_steps: Length of the long play; the pieces played for seeds come on top.

    Returns:
        Findings, errors first; an empty list if all is well.

    Raises:
        ConfigError: `env` is no environment or an unknown name, or another argument is invalid.
    """
    silent = checked_codes(ignore, "check_env: ignore")
    for name, value, least in (("env_steps", env_steps, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ConfigError(
                f"check_env: {name}={value!r}, expected an integer of at least {least}; pass one"
            )
    if actions is not None and not callable(actions):
        raise ConfigError(
            f"check_env: actions is {actions!r:.100}, expected a function (obs, agent_id); leave it out for chance"
        )
    report = FindingCollector()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for category in _SILENT:
            warnings.simplefilter("ignore", category)
        own = _check(report, env, config, actions, seed, env_steps)
    for warning in caught:
        text = f"{warning.category.__name__}: {warning.message}"
        report.add("ME095", text, about=text)
    return report.findings(silent | checked_codes(own, "check_env: menv_ignore of the environment"))


def _check(
    report: FindingCollector,
    env: Any,
    config: Mapping[str, Any] | None,
    actions: ActionFn | None,
    seed: int,
    env_steps: int,
) -> Any:
    """Run everything and return the codes that the environment asks to ignore."""
    before = running()
    try:
        subject = EnvUnderTest(env, config)
    except Broken as broken:
        report.take(broken)
        return getattr(env, "menv_ignore", ())
    try:
        stage = subject.stage(report, 0)
        spaces = stage.declared()
        stage.check_spaces()
        play_at_length(stage, Actor(seed, actions), seed, env_steps)
        seconds = _median_seconds(stage)
        if seconds > _SLOW:
            report.add("ME096", f"half of the env steps took longer than {seconds:.2f} s")
        _check_seeds(report, subject, stage, spaces, seed, actions)
    except Broken as broken:
        report.take(broken)
    if subject.is_instance:
        for stage in subject.stages:
            stage.release()
    else:
        subject.check_config(report)
        check_closing(report, subject.stages, before)
    return subject.ignored


def _median_seconds(stage: EnvRunner) -> float:
    return statistics.median(stage.seconds) if stage.seconds else 0.0


def _check_seeds(
    report: FindingCollector,
    subject: EnvUnderTest,
    stage: EnvRunner,
    spaces: Any,
    seed: int,
    actions: ActionFn | None,
) -> None:
    """Play on copies with equal and different seeds, all of which declare the spaces that `stage` did at first."""

    def new_stage(vector_index: int) -> EnvRunner | None:
        if subject.is_instance:
            return None
        copy = subject.stage(FindingCollector(), vector_index)
        if not stage.late and not same(spaces, copy.declared()):
            raise Broken(
                "ME004", "copies for different vector_index declare different spaces, expected the same"
            )
        if not stage.late and not same(spaces, stage.declared()):
            raise Broken(
                "ME004", "other spaces are declared now than before the first reset, expected the same"
            )
        copy.takes_seed = stage.takes_seed
        return copy

    if not (stage.repeats and stage.takes_seed):
        new_stage(1)
        return
    # What was wrong in the long play is known; the pieces are compared and nothing else.
    again = type(stage)(stage.given, FindingCollector())
    again.takes_seed = stage.takes_seed
    SeedProbe(report, again, new_stage, seed, actions, _median_seconds(stage) > _SLOW).run()
