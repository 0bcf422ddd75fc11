"""`check_env`: play an environment and say what it does against the contract, in codes.

Users and tests call it, `python -m menv.checking` prints what it returns. It creates copies, plays one
at length and others in pieces, closes them, and never raises what the environment raises.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from menv.checking.actions import ActionFn, Actor
from menv.checking.closing import check_closing, running
from menv.checking.finding import Finding
from menv.checking.play import play_at_length
from menv.checking.report import Broken, Report, checked_codes
from menv.checking.seeds import SeedProbe
from menv.checking.stage import Stage
from menv.checking.subject import Subject
from menv.checking.transcript import same
from menv.errors import ConfigError

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
        ConfigError: `env` is no environment or a name that nobody knows, or another argument is wrong.
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
    report = Report()
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
    report: Report,
    env: Any,
    config: Mapping[str, Any] | None,
    actions: ActionFn | None,
    seed: int,
    env_steps: int,
) -> Any:
    """Run everything and return the codes that the environment asks to ignore."""
    before = running()
    try:
        subject = Subject(env, config)
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


def _median_seconds(stage: Stage) -> float:
    return statistics.median(stage.seconds) if stage.seconds else 0.0


def _check_seeds(
    report: Report, subject: Subject, stage: Stage, spaces: Any, seed: int, actions: ActionFn | None
) -> None:
    """Play on copies with equal and different seeds, all of which declare the spaces that `stage` did at first."""

    def new_stage(vector_index: int) -> Stage | None:
        if subject.is_instance:
            return None
        copy = subject.stage(Report(), vector_index)
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
    again = type(stage)(stage.given, Report())
    again.takes_seed = stage.takes_seed
    SeedProbe(report, again, new_stage, seed, actions, _median_seconds(stage) > _SLOW).run()
