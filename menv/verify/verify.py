"""`verify_backends`: play an environment in every back-end that can host it, and say where they part.

Users and tests call it, `python -m menv.verify` prints what it returns. It knows the table of back-ends and nothing of
what they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from menv.algorithms.needed_packages import check_packages
from menv.checking.global_draws import state_of_generators, used_since
from menv.errors import ConfigError, MenvError
from menv.first_imports import import_first
from menv.scale.engines import ray_runs
from menv.verify.backends import BACKENDS, Backend
from menv.verify.difference import first_difference
from menv.verify.other_process import NotHostedError
from menv.verify.record import Record
from menv.verify.report import Finding, Report
from menv.verify.task import Task

NUM_ENVS = 8
ENV_STEPS = 2_000


def verify_backends(
    env: Any,
    config: Mapping[str, Any] | None = None,
    *,
    num_envs: int = NUM_ENVS,
    env_steps: int = ENV_STEPS,
    seed: int = 0,
    backends: Sequence[Backend] = BACKENDS,
    ray: bool | None = None,
    modules: Sequence[str] = (),
) -> Report:
    """Play an environment with fixed policies in every back-end that can host it, and compare.

    One seed and as many environments in all give the same trajectories, however they are batched and spread, unless the
    environment itself stands in the way. The policies have the first weights of stock networks and
    explore, unless the config says otherwise.

    Args:
        env: A registered name, a gymnasium id, "package.module:Class", a class, or a creator that takes an
            `EnvContext`.
        config: Settings as for an algorithm, such as `env_config`, `model` and `multiagent`. Without policies all
            agents with the same spaces share one.
        num_envs: Environments in all; one that brings its sub-environments along has its own number.
        env_steps: Of all of them together.
        seed: Of resets, draws and weights.
        backends: Which ones to play; all are compared with the first.
        ray: Whether those on Ray are played too, which starts it; None plays them where it runs already.
        modules: Modules, or paths of .py files, to import first, here and in another process: those that make `env`
            known by name.

    Returns:
        A report; nothing is printed. `report.same` says whether all agree.

    Raises:
        ConfigError: `env` is no environment that can be created anew, or a setting is wrong.
        ContractError: The environment broke its interface.
        EnvCrashError: It raised; a note says in which back-end.
        MissingExtraError: onnx is not installed.
    """
    check_packages("verify_backends", "onnx")
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"verify_backends: config is {config!r:.100}, expected a dict of settings; write "
            '{"env_config": {"size": 5}}'
        )
    _check_backends(backends)
    _check_counts(num_envs=(num_envs, 1), env_steps=(env_steps, 1), seed=(seed, 0))
    _check_modules(modules)
    import_first(modules, "verify_backends: module")
    task = Task(env, config, num_envs, env_steps, seed, modules)
    reference: Record | None = None
    digests, left_out = {}, {}
    differences: list[Finding] = []
    repeats, generators = True, ""
    for backend in [one for one in backends if task.kind in one.kinds]:
        if backend.on_ray and not (ray_runs() if ray is None else ray):
            left_out[backend.name] = f"{backend.name}: Ray does not run; pass ray=True (--ray) to start it"
            continue
        before = state_of_generators()
        try:
            record = backend.play(task)
        except NotHostedError as error:
            left_out[backend.name] = str(error)
            continue
        except MenvError as error:
            error.add_note(f"while verify_backends played in the back-end {backend.name!r}")
            raise
        if not backend.elsewhere:
            generators = generators or used_since(before) or ""
        # Of the others only the digest is kept: rows may be large.
        reference = reference or record
        digests[backend.name] = record.digest.hex()
        if record.digest != reference.digest:
            first = first_difference(reference, record)
            known = [finding.suspects for finding in differences]
            # What differs in this process already need not be sought between processes.
            told = backend.suspects in known or (backend.elsewhere and differences)
            suspects = backend.suspects if repeats and not told else ""
            differences.append(Finding(backend.name, first, suspects))
            repeats = repeats and not backend.repeats
    played = task.num_envs * task.env_steps
    return Report(
        task.name, task.num_envs, played, seed, digests, tuple(differences), left_out, generators
    )  # fmt: skip


def _check_backends(backends: Any) -> None:
    if (
        not isinstance(backends, Sequence)
        or not backends
        or not all(isinstance(one, Backend) for one in backends)
    ):
        raise ConfigError(
            f"verify_backends: backends is {backends!r:.100}, expected some of menv.verify.backends.BACKENDS; leave it "
            "out for all of them"
        )


def _check_modules(modules: Any) -> None:
    if not isinstance(modules, list | tuple) or not all(isinstance(one, str) and one for one in modules):
        raise ConfigError(
            f"verify_backends: modules is {modules!r:.100}, expected a list of names of modules, or of .py files; "
            'write ["my_game"]'
        )


def _check_counts(**counts: tuple[int, int]) -> None:
    for name, (value, least) in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                f"verify_backends: {name} is {value!r}, expected an integer of at least {least}; correct it"
            )
