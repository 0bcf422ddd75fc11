"""Playing a task in a Python process of its own, in which strings have other hashes.

`menv.verify.backends` has it in its table, `menv.verify.__main__` is the other end. What goes over is a command line:
the environment by name, settings as JSON; what comes back is a file of plain arrays. Environments that no name leads to
stay here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path
from typing import Any

from menv.errors import MenvError
from menv.first_imports import IMPORT
from menv.registry import describe_env, resolve_env
from menv.scale.home import import_paths
from menv.verify.record import Record
from menv.verify.task import Task

ROWS = "--rows"
"""The option with which a process of ours writes down what happened, in place of comparing."""

_HASH_SEEDS = ("1", "2")


class NotHostedError(MenvError):
    """A back-end cannot host this environment; compare the others."""


def play_in_another_process(task: Task) -> Record:
    """Play a task in another process.

    Raises:
        NotHostedError: No name leads there, or the environment cannot be played there.
    """
    name, settings = _name_of(task), _as_json(task.settings)
    seed = next(seed for seed in _HASH_SEEDS if seed != os.environ.get("PYTHONHASHSEED"))
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(import_paths())}
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.npz"
        command = [
            sys.executable, "-m", "menv.verify", name, "--config", settings, "--envs", str(task.num_envs),
            "--steps", str(task.num_envs * task.env_steps), "--seed", str(task.seed), ROWS, str(rows),
            *(word for module in task.modules for word in (IMPORT, module)),
        ]  # fmt: skip
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode or not rows.exists():
            last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise NotHostedError(f"another process: it ended with status {done.returncode}: {last}")
        return Record.load(rows)


def _name_of(task: Task) -> str:
    """Return what another process finds the environment of a task by.

    Raises:
        NotHostedError: There is no such name.
    """
    env = task.env
    creator = resolve_env(env)
    module, name = getattr(creator, "__module__", None), getattr(creator, "__qualname__", "")
    if isinstance(creator, partial) and isinstance(env, str):
        # A gymnasium id; one that was registered by code is not known there, which that process says.
        return env
    with suppress(AttributeError, KeyError):
        found: Any = sys.modules[str(module)]
        if module != "__main__" and reduce(getattr, name.split("."), found) is creator:
            return f"{module}:{name}"
    if task.modules and isinstance(env, str):
        # They made the name known here.
        return env
    raise NotHostedError(
        f"another process: no name leads to {describe_env(env)}, expected a class or a function at the top of a module "
        "that can be imported; move it there"
    )


def _as_json(settings: Mapping[str, Any]) -> str:
    """Return settings as text.

    Raises:
        NotHostedError: JSON cannot hold them.
    """
    try:
        text = json.dumps(settings)
    except (TypeError, ValueError) as error:
        raise NotHostedError(
            f"another process: JSON cannot hold these settings ({error}), expected names and numbers; give the others "
            "to the environment in another way"
        ) from error
    if json.loads(text) != settings:
        raise NotHostedError(
            "another process: JSON turns these settings into others, expected dicts with strings as keys, and lists; "
            "write them so"
        )
    return text
