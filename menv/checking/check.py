"""`check_env` runs an environment and returns findings about the contract.

It creates copies, runs one of them at length and others in short plays with equal and different seeds, and closes them.
Errors of the environment become findings.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from menv.checking.agent_runners import BaseEnvRunner, MultiAgentRunner
from menv.checking.codes import Broken, Finding, FindingCollector, checked_codes
from menv.checking.play import ActionFn, Actor, SeedProbe, play_at_length
from menv.checking.runners import EnvRunner, GymRunner, GymVectorRunner, VectorRunner, describe, parameters_of
from menv.checking.values import same
from menv.env_context import EnvContext
from menv.errors import ConfigError, ContractError, EnvCrashError, UnknownNameError
from menv.registry import acts_like_an_env, env_kind, refuse_rllib, resolve_env, wrapped_if_foreign

_RUNNERS: Mapping[Any, type[EnvRunner]] = {
    "base_env": BaseEnvRunner,
    "vector": VectorRunner,
    "gym_vector": GymVectorRunner,
    "multi_agent": MultiAgentRunner,
    "single_agent": GymRunner,
}
"""By the kind of environment."""


class EnvUnderTest:
    """Creates the runners of an environment's copies. The caller owns and closes an existing instance."""

    def __init__(self, env: Any, config: Mapping[str, Any] | None) -> None:
        self.runners: list[EnvRunner] = []
        self.is_instance = not isinstance(env, type | str) and acts_like_an_env(env)
        self.ignored: Any = getattr(env, "menv_ignore", ())
        self._env = env
        self._config = config
        self._contexts: list[tuple[EnvContext, EnvContext]] = []
        self._created: list[Any] = []
        if self.is_instance and config is not None:
            raise ConfigError(
                "check_env: config is given with an environment that exists, expected None; pass the class instead"
            )
        self._creator = None if self.is_instance else _creator(env)

    def new_runner(self, collector: FindingCollector, vector_index: int) -> EnvRunner:
        """Return a runner of a new copy, or of the existing instance."""
        env = self._env if self._creator is None else self._create(self._creator, vector_index)
        if self._creator is not None and any(one is env for one in self._created):
            raise Broken(
                "ME077", "two calls of the creator returned the same object, expected a new one each time"
            )
        self._created.append(env)
        self.ignored = getattr(env, "menv_ignore", None) or getattr(_inner(env), "menv_ignore", self.ignored)
        try:
            env = wrapped_if_foreign(env)
        except ContractError as error:
            raise Broken.of(error) from error
        runner = _runner_class(env)(env, collector)
        self.runners.append(runner)
        return runner

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

    def check_config(self, collector: FindingCollector) -> None:
        """Report an environment that changed the settings that it was given."""
        for now, before in self._contexts:
            if not same(dict(now), dict(before)):
                changed = sorted(
                    str(key)
                    for key in now.keys() | before.keys()
                    if key not in now or key not in before or not same(now[key], before[key])
                )
                collector.add("ME075", f"the env_config has changed in {changed[:8]}")


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


def _inner(env: Any) -> Any:
    return env.unwrapped if isinstance(env, gym.Env) else env


def _runner_class(env: Any) -> type[EnvRunner]:
    try:
        refuse_rllib(env, "check_env")
    except ConfigError as error:
        message, _, fix = str(error).rpartition("; ")
        raise Broken("ME016", message, fix=fix) from error
    runner = _RUNNERS.get(env_kind(env))
    if runner is not None:
        return runner
    name = type(env).__name__
    packages = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    spaces_are_methods = callable(getattr(env, "observation_space", None)) and not isinstance(
        env.observation_space, gym.Space
    )
    if spaces_are_methods and hasattr(env, "possible_agents"):
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
    parameters = parameters_of(env.reset)
    return parameters is not None and "seed" not in parameters


_CLOSE_TIMEOUT = 2.0
"""Seconds."""
_HELPERS = (
    ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
    ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
)
"""Where Python keeps the ids of its helper processes, which outlive the code that started them."""
_ENDED = (b"Z", b"X", b"x")
"""States of processes that ended and wait to be reaped."""


def running() -> dict[object, str]:
    """Return the names of this process's threads and children; `subprocess` and `os.fork` children on Linux only."""
    known = multiprocessing.active_children()
    apart = {os.getpid(), *(one.pid for one in known), *_helpers()}
    named: dict[object, str] = {thread: thread.name for thread in threading.enumerate()}
    named |= {process: process.name for process in known}
    return named | {child: name for child, name in _children() if child[0] not in apart}


def _helpers() -> Iterator[int | None]:
    for module, owner, number in _HELPERS:
        yield getattr(getattr(sys.modules.get(module), owner, None), number, None)


def _children() -> Iterator[tuple[tuple[int, int], str]]:
    """Yield id and start time, and the name, of each child. The start time tells apart processes with a reused id."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, rest = stat.read_bytes().rpartition(b")")
            pid, _, program = head.partition(b" (")
            state, parent, *more = rest.split()
            if int(parent) == os.getpid() and state not in _ENDED:
                name = f"{program.decode(errors='replace')} (process {int(pid)})"
                yield (int(pid), int(more[17])), name


def check_closing(
    collector: FindingCollector, runners: Iterable[EnvRunner], before: Collection[object]
) -> None:
    """Close every runner, the first one twice; `before` is what `running` returned before the check."""
    for number, runner in enumerate(runners):
        try:
            runner.close()
        except (Exception, SystemExit) as error:
            collector.add("ME080", f"close raised {describe(error)}")
            continue
        if number == 0:
            try:
                runner.close()
            except (Exception, SystemExit) as error:
                collector.add("ME081", f"the second close raised {describe(error)}")
    deadline = time.monotonic() + _CLOSE_TIMEOUT
    while (
        left := [name for one, name in running().items() if one not in before]
    ) and time.monotonic() < deadline:
        time.sleep(0.02)
    if left:
        collector.add("ME082", f"still running after close: {', '.join(sorted(left)[:4])}")


ENV_STEPS = 500
_SLOW = 0.1
"""Seconds: a median env step above it is reported."""
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
            an environment. An existing one is left open, and the checks that need a second copy or
            close the environment are left out.
        config: The env_config for the copies.
        actions: `actions(obs, agent_id) -> action` chooses the actions; None samples them within action masks.
        ignore: Codes to leave out, in addition to the environment's attribute `menv_ignore`.
        seed: Of resets and random actions: the same seed gives the same findings.
        env_steps: Length of the long play; the short plays that compare seeds are extra.

    Returns:
        Findings, errors first; an empty list if there are none.

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
    collector = FindingCollector()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for category in _SILENT:
            warnings.simplefilter("ignore", category)
        own = _check(collector, env, config, actions, seed, env_steps)
    for warning in caught:
        text = f"{warning.category.__name__}: {warning.message}"
        collector.add("ME095", text, about=text)
    return collector.findings(silent | checked_codes(own, "check_env: menv_ignore of the environment"))


def _check(
    collector: FindingCollector,
    env: Any,
    config: Mapping[str, Any] | None,
    actions: ActionFn | None,
    seed: int,
    env_steps: int,
) -> Any:
    """Run all checks and return the codes in the environment's `menv_ignore`."""
    before = running()
    try:
        under_test = EnvUnderTest(env, config)
    except Broken as broken:
        collector.take(broken)
        return getattr(env, "menv_ignore", ())
    try:
        runner = under_test.new_runner(collector, 0)
        spaces = runner.declared()
        runner.check_spaces()
        play_at_length(runner, Actor(seed, actions), seed, env_steps)
        seconds = _median_seconds(runner)
        if seconds > _SLOW:
            collector.add("ME096", f"half of the env steps took longer than {seconds:.2f} s")
        _check_seeds(collector, under_test, runner, spaces, seed, actions)
    except Broken as broken:
        collector.take(broken)
    if under_test.is_instance:
        for runner in under_test.runners:
            runner.release()
    else:
        under_test.check_config(collector)
        check_closing(collector, under_test.runners, before)
    return under_test.ignored


def _median_seconds(runner: EnvRunner) -> float:
    return statistics.median(runner.seconds) if runner.seconds else 0.0


def _check_seeds(
    collector: FindingCollector,
    under_test: EnvUnderTest,
    runner: EnvRunner,
    spaces: Any,
    seed: int,
    actions: ActionFn | None,
) -> None:
    """Compare copies with equal and different seeds; all must declare `spaces`."""

    def new_runner(vector_index: int) -> EnvRunner | None:
        if under_test.is_instance:
            return None
        copy = under_test.new_runner(FindingCollector(), vector_index)
        if not runner.late_spaces and not same(spaces, copy.declared()):
            raise Broken(
                "ME004", "copies for different vector_index declare different spaces, expected the same"
            )
        if not runner.late_spaces and not same(spaces, runner.declared()):
            raise Broken(
                "ME004", "other spaces are declared now than before the first reset, expected the same"
            )
        copy.takes_seed = runner.takes_seed
        return copy

    if not (runner.repeats and runner.takes_seed):
        new_runner(1)
        return
    # What was wrong in the long play is reported already.
    again = type(runner)(runner.given, FindingCollector())
    again.takes_seed = runner.takes_seed
    SeedProbe(collector, again, new_runner, seed, actions, _median_seconds(runner) > _SLOW).run()
