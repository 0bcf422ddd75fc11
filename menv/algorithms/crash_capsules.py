"""Crash capsules: a small JSON file for each fault of an environment, from which `menv replay` repeats its episode.

The process of the algorithm writes them, for workers too, because only it knows the run folder. A capsule holds data
only. Secrets are left out: strings under a key such as `password` or `api_token`, wherever they appear.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import msgspec
import numpy as np

import menv
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.stored_config import NamedOnlyError, as_json, stored_setting
from menv.errors import ConfigError, EnvFaultWarning, MenvError
from menv.registry import named_creator
from menv.serialization import SpaceDecoder, from_plain, path_given, read_json, to_plain

CRASHES = "crashes"
"""The folder of capsules in a run folder."""
LEFT_OUT = "<left out>"
"""In place of a secret."""
_KIND, _VERSION = "menv crash capsule", 1
_MOST_BYTES = 1 << 26
_SECRET = re.compile(
    r"(^|[^a-z])(token|password|passwd|secret|credentials?|(api|access|private)?_?key)s?$", re.I
)
_IN_URL = re.compile(r"://[^/@:\s]*:([^/@\s]+)@")
_SHORTEST_SECRET = 6


class Capsule(msgspec.Struct, kw_only=True):
    """The content of a crash capsule.

    Attributes:
        env: The environment's name, or where its class is defined.
        env_config: As in the settings of a checkpoint.
        algorithm: Name of the algorithm.
        config: Its settings.
        where: "reset" or "step".
        line: The fault in one line.
        origin: Type of the error, file and line that raised it.
        traceback: Its text, or what a lost process wrote last.
        seed: With `env_index` and `began` the path of the seed of the episode's reset; None resets without a seed.
        env_index: Index of the sub-environment among all.
        began: Env steps of the sub-environment at that reset.
        actions: Each agent's actions since then, in order, with the one that failed; None if they are not known.
        arrays: The arrays in `actions`, by name: dtype, shape and numbers.
        versions: Of Python, menv and the packages of the environment.
    """

    kind: Literal["menv crash capsule"]
    version: Literal[1]
    env: str
    env_config: dict[str, Any]
    algorithm: str
    config: dict[str, Any]
    where: str
    line: str
    origin: tuple[str, str, int]
    traceback: str
    worker_index: int
    vector_index: int
    num_workers: int
    seed: int | None
    env_index: int
    began: int
    actions: list[tuple[Any, Any]] | None
    arrays: dict[str, tuple[str, list[int], list[Any]]]
    versions: dict[str, str]

    def actions_by_agent(self) -> dict[Any, list[Any]]:
        """Return each agent's actions, in order."""
        decoder, arrays = SpaceDecoder(), {}
        for name, (dtype, shape, values) in self.arrays.items():
            kind = decoder.dtype(dtype)
            arrays[name] = np.array(values).astype(kind).reshape(decoder.shape(shape, kind))
        return {
            from_plain(agent, arrays): list(from_plain(actions, arrays))
            for agent, actions in self.actions or ()
        }

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `env_config`, with `given` over it.

        Raises:
            ConfigError: A part of it is not in the file and not given.
        """
        stored = {key: value for key, value in self.env_config.items() if key not in given}
        missing = [key for key, value in stored.items() if LEFT_OUT in str(value)]
        try:
            stored = stored_setting({"env_config": stored}, "env_config")
        except NamedOnlyError as error:
            missing += [str(path[1]) for path, _ in error.missing]
        if missing:
            raise ConfigError(
                f"capsule: {', '.join(missing)} of env_config not in it, because it holds no secrets and no objects, "
                "expected them to be given; add --env-config '{\"name\": value}'"
            )
        return {**stored, **given}


def read_capsule(path: str | os.PathLike[str]) -> Capsule:
    """Return the content of a crash capsule.

    Raises:
        ConfigError: It is no capsule, damaged, or written by another version.
    """
    file = path_given("capsule", path)
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError(f"larger than {_MOST_BYTES} bytes")
        content = read_json(data)
        is_capsule = isinstance(content, dict) and content.get("kind") == _KIND
        if is_capsule and content.get("version") != _VERSION:
            raise ConfigError(
                f"{file}: a capsule of version {content.get('version')!r:.20}, expected {_VERSION}; replay it with the "
                "menv that wrote it"
            )
        return msgspec.convert(content, Capsule)
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file}: cannot be read ({error}), expected a crash capsule, such as runs/NAME/crashes/001.json; check "
            "the path, or copy it again"
        ) from None


class CrashCapsules:
    """Writes the capsules of one algorithm's environments.

    Attributes:
        folder: Where; None makes a temporary folder for the first capsule.
    """

    folder: Path | None = None

    def __init__(self, algorithm: str, config: AlgorithmConfig) -> None:
        self._algorithm = algorithm
        self._config = config
        self._warned: set[tuple[Any, ...]] = set()

    @contextmanager
    def written(self, take_faults: Callable[[], list[dict[str, Any]]]) -> Iterator[None]:
        """Write the faults that happen in the block: warn of each that cost an episode, and add to errors."""
        try:
            yield
        except MenvError as error:
            # The error says enough.
            for record in take_faults():
                self.write(record)
            if error._capsule is not None:
                error.args = (f"{error}{self.write(error._capsule)}", *error.args[1:])
                error._capsule = None
            raise
        for record in take_faults():
            where, cause = self.write(record), tuple(record["origin"])
            if cause not in self._warned:
                self._warned.add(cause)
                warnings.warn(
                    f"{record['line']}: its episode is lost and the environment was re-created, expected none to "
                    f"raise; fix it, or set restart_failed_sub_environments=False to stop there{where}",
                    EnvFaultWarning,
                    stacklevel=2,
                )

    def write(self, record: Mapping[str, Any]) -> str:
        """Write a capsule; return the end of a message that names it, "" if it cannot be written."""
        with suppress(OSError, ConfigError):
            content = self._content(record)
            if self.folder is None:
                self.folder = Path(tempfile.mkdtemp(prefix="menv-crashes-"))
            self.folder.mkdir(exist_ok=True)
            path = next(
                one for number in count(1) if not (one := self.folder / f"{number:03d}.json").exists()
            )
            try:
                path.write_bytes(content)
                repeats = record["actions"] is not None
                return f"; {'replay it with: menv replay' if repeats else 'its crash capsule:'} {path}"
            except OSError:
                path.unlink(missing_ok=True)
                # The folder stays if it has capsules.
                self.folder.rmdir()
        return ""

    def _content(self, record: Mapping[str, Any]) -> bytes:
        config, arrays = self._config, dict[str, Any]()
        stored = as_json(config)
        secrets = {value for name, value in os.environ.items() if _SECRET.search(name)}
        content = {
            "kind": _KIND, "version": _VERSION, "env": _name_of(config.env),
            "env_config": _without_secrets(stored.pop("env_config"), secrets), "algorithm": self._algorithm,
            "config": _without_secrets(stored, secrets), "num_workers": config.num_workers, **record,
            "actions": None if record["actions"] is None else to_plain(record["actions"], arrays),
            "arrays": {name: _listed(array) for name, array in arrays.items()}, "versions": _versions(config.env),
        }  # fmt: skip
        lines = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in content.items()]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        for secret in sorted((one for one in secrets if len(one) >= _SHORTEST_SECRET), key=len, reverse=True):
            text = text.replace(json.dumps(secret)[1:-1], LEFT_OUT)
        return text.encode()


def _listed(array: Any) -> tuple[str, list[int], list[Any]]:
    flat = array.ravel()
    # JSON has no infinity.
    finite = array.dtype.kind != "f" or np.isfinite(array).all()
    return array.dtype.name, list(array.shape), (flat if finite else flat.astype(str)).tolist()


def _without_secrets(value: Any, secrets: set[str], is_secret: bool = False) -> Any:
    """Return a setting without secrets, which are added to `secrets`; all strings of a secret one are secrets."""
    if isinstance(value, dict):
        return {
            key: _without_secrets(one, secrets, is_secret or _names_secret(f"{key}"))
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_without_secrets(one, secrets, is_secret) for one in value]
    if isinstance(value, str) and is_secret:
        secrets.add(value)
        return LEFT_OUT
    if isinstance(value, str):
        secrets.update(_IN_URL.findall(value))
    return value


def _names_secret(name: str) -> bool:
    return _SECRET.search(re.sub(r"([a-z])([A-Z])", r"\1_\2", name)) is not None


def _name_of(env: Any) -> str:
    if isinstance(env, str):
        return env
    module, name = getattr(env, "__module__", ""), getattr(env, "__qualname__", type(env).__qualname__)
    if module == "__main__":
        module = getattr(sys.modules[module], "__file__", None) or module
    return f"{module}:{name}"


def _versions(env: Any) -> dict[str, str]:
    found = {"python": platform.python_version(), "menv": menv.__version__}
    with suppress(Exception):
        # Looking for an unknown name may raise anything that a module raises.
        env = named_creator(env) if isinstance(env, str) else env
    entry = gym.registry[env.args[0]].entry_point if getattr(env, "args", ()) else env
    module = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
    for package in ("gymnasium", "numpy", module.partition(".")[0]):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
