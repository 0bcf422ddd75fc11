"""`check_env` runs an environment and returns findings about the contract.

It creates copies, runs one of them at length and others in short plays with equal and different seeds, and closes them.
Errors of the environment become findings.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from menv.checking.codes import Broken, Finding, FindingCollector, checked_codes
from menv.checking.play import ActionFn, Actor, SeedProbe, play_at_length
from menv.checking.runner import Runner, describe
from menv.checking.values import same
from menv.env_context import EnvContext
from menv.errors import ConfigError, ContractError, EnvCrashError, UnknownNameError
from menv.registry import acts_like_an_env, resolve_env, wrapped_if_foreign


class EnvUnderTest:
    """Creates the runners of an environment's copies. The caller owns and closes an existing instance."""

    def __init__(self, env: Any, config: Mapping[str, Any] | None) -> None:
        self.runners: list[Runner] = []
        self.is_instance = not isinstance(env, type | str) and acts_like_an_env(env)
        self.ignored: Any = getattr(env, "menv_ignore", ())
        self._env = env
        self._config = config
        self._created: list[Any] = []
        if self.is_instance and config is not None:
            raise ConfigError(
                "check_env: config is given with an environment that exists, expected None; pass the class instead"
            )
        self._creator = None if self.is_instance else _creator(env)

    def new_runner(self, collector: FindingCollector, vector_index: int) -> Runner:
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
        runner = Runner(env, collector)
        self.runners.append(runner)
        return runner

    def _create(self, creator: Callable[[EnvContext], Any], vector_index: int) -> Any:
        try:
            env = creator(EnvContext(self._config, vector_index=vector_index))
        except (Exception, SystemExit) as error:
            raise Broken(
                "ME092", f"the creator (vector_index={vector_index}) raised {describe(error)}"
            ) from error
        if env is None or isinstance(env, type):
            got = "None" if env is None else f"the class {env.__name__}"
            raise Broken("ME092", f"the creator returned {got}, expected an environment")
        return env


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
        message, _, fix = str(error).partition("; ")
        raise Broken("ME092", message, fix=fix) from error


def _inner(env: Any) -> Any:
    return env.unwrapped if isinstance(env, gym.Env) else env


def check_closing(collector: FindingCollector, runners: Iterable[Runner]) -> None:
    """Close every runner, the first one twice."""
    for number, runner in enumerate(runners):
        for which in ("close", "the second close")[: 2 - bool(number)]:
            try:
                runner.close()
            except (Exception, SystemExit) as error:
                collector.add("ME080", f"{which} raised {describe(error)}")
                break


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
        ConfigError: `env` is not an environment or an unknown name, or another argument is invalid.
    """
    silent = checked_codes(ignore, "check_env: ignore")
    for name, value, least in (("env_steps", env_steps, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ConfigError(
                f"check_env: {name}={value!r}, expected an integer of at least {least}; pass one"
            )
    if actions is not None and not callable(actions):
        raise ConfigError(
            f"check_env: actions is {actions!r:.100}, expected a function (obs, agent_id); leave it out for random "
            "actions"
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
    try:
        under_test = EnvUnderTest(env, config)
    except Broken as broken:
        collector.take(broken)
        return getattr(env, "menv_ignore", ())
    try:
        runner = under_test.new_runner(collector, 0)
        spaces = runner.declared()
        play_at_length(runner, Actor(seed, actions), seed, env_steps)
        seconds = _median_seconds(runner)
        if seconds > _SLOW:
            collector.add("ME096", f"half of the env steps last longer than {seconds:.2f} s")
        _check_seeds(collector, under_test, runner, spaces, seed, actions)
    except Broken as broken:
        collector.take(broken)
    if not under_test.is_instance:
        check_closing(collector, under_test.runners)
    return under_test.ignored


def _median_seconds(runner: Runner) -> float:
    return statistics.median(runner.seconds) if runner.seconds else 0.0


def _check_seeds(
    collector: FindingCollector,
    under_test: EnvUnderTest,
    runner: Runner,
    spaces: Any,
    seed: int,
    actions: ActionFn | None,
) -> None:
    """Compare copies with equal and different seeds; all must declare `spaces`."""

    def new_runner(vector_index: int) -> Runner | None:
        if under_test.is_instance:
            return None
        copy = under_test.new_runner(FindingCollector(), vector_index)
        if not same(spaces, copy.declared()):
            raise Broken(
                "ME004", "copies for different vector_index declare different spaces, expected the same"
            )
        return copy

    if not runner.repeats:
        new_runner(1)
        return
    # What was wrong in the long play is reported already.
    again = Runner(runner.env, FindingCollector())
    SeedProbe(collector, again, new_runner, seed, actions, _median_seconds(runner) > _SLOW).run()
