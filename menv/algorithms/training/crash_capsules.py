"""Crash capsules: a small JSON file for each fault of an environment, from which `menv replay` repeats its episode.

The process of the algorithm writes them, for workers too, because only it knows the run folder. A capsule holds data
only. Secrets are left out: strings under a key such as `password` or `api_token`, wherever they appear.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.stored_config import NamedOnlyError, as_json, stored_setting
from menv.errors import WORKER, ConfigError, EnvFaultWarning, MenvError
from menv.plain_files import claimed, path_given, read
from menv.redaction import LEFT_OUT, hidden, without_secrets
from menv.registry import RegisteredEnv, is_known
from menv.serialization import Arrays, SpaceDecoder, from_plain, read_json, shell_line, to_plain

CRASHES = "crashes"
"""The folder of capsules in a run folder."""
_KIND, _VERSION = "menv crash capsule", 1
_MOST_OF_A_CAUSE = 5
_COSTS = (
    "its episode is lost and the environment was re-created, expected none to raise; fix it, or set "
    "restart_failed_sub_environments=False to stop there",
    "the episodes that ran in it are lost and another worker was started, expected none to end; look at what it wrote "
    "to stderr",
)


_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Capsule(msgspec.Struct, kw_only=True):
    """The content of a crash capsule.

    Attributes:
        env: The environment's name, or where its class is defined.
        env_config: As in the settings of a checkpoint.
        where: "reset" or "step".
        line: The fault in one line.
        origin: Type of the error, file and line that raised it.
        traceback: Its text, or what a lost process wrote last.
        seed: With `env_index` and `began` the path of the seed of the episode's reset; None resets without a seed.
        env_index: Index of the sub-environment among all.
        began: Env steps of the sub-environment at that reset.
        actions: Each agent's actions since then, in order, with the one that failed.
        arrays: The arrays in `actions`, by name: dtype, shape and numbers.
    """

    kind: Literal["menv crash capsule"]
    version: Literal[1]
    env: str
    env_config: dict[str, Any]
    where: str
    line: str
    origin: tuple[str, str, int]
    traceback: str
    worker_index: _Count
    vector_index: _Count
    num_workers: _Count
    seed: int | None
    env_index: _Count
    began: _Count
    actions: list[tuple[Any, Any]]
    arrays: dict[str, tuple[str, list[int], list[Any]]]

    def actions_by_agent(self) -> dict[Any, list[Any]]:
        """Return each agent's actions, in order."""
        decoder, arrays = SpaceDecoder(), {}
        for name, (dtype, shape, values) in self.arrays.items():
            kind = decoder.dtype(dtype)
            arrays[name] = np.array(from_plain(values, {})).astype(kind).reshape(decoder.shape(shape, kind))
        return {
            from_plain(agent, arrays): list(from_plain(actions, arrays)) for agent, actions in self.actions
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
                f"capsule: {', '.join(missing)} of env_config are missing, because capsules hold no secrets and no "
                "objects; add --env-config '{\"name\": value}'"
            )
        return {**stored, **given}


def read_capsule(path: str | os.PathLike[str]) -> Capsule:
    """Return the content of a crash capsule.

    Raises:
        ConfigError: It is not a capsule, damaged, or written by another version.
    """
    file = path_given("capsule", path)
    try:
        content = read_json(read(file))
        is_capsule = isinstance(content, dict) and content.get("kind") == _KIND
        if is_capsule and content.get("version") != _VERSION:
            raise ConfigError(
                f"{file}: a capsule of version {content.get('version')!r:.20}, expected {_VERSION}; replay it with the "
                "version of menv that wrote it"
            )
        capsule = msgspec.convert(content, Capsule)
        capsule.actions_by_agent()
        return capsule
    except ConfigError:
        raise
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
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

    def __init__(self, config: AlgorithmConfig) -> None:
        self._config = config
        self._causes: Counter[tuple[Any, ...]] = Counter()

    @contextmanager
    def written(self, take_faults: Callable[[], list[dict[str, Any]]]) -> Iterator[None]:
        """Write the faults that happen in the block: warn of each that cost an episode, and add to errors."""
        try:
            yield
        except MenvError as error:
            # The error says enough about what environments raised.
            self._report(take_faults(), (WORKER,))
            if error._capsule is not None:
                error.args = (f"{error}{self.write(error._capsule)}", *error.args[1:])
                error._capsule = None
            raise
        self._report(take_faults(), ("reset", "step", WORKER))

    def _report(self, records: Sequence[Mapping[str, Any]], warned_of: Collection[str]) -> None:
        for record in records:
            cause, of_worker = tuple(record["origin"]), record["where"] == WORKER
            self._causes[cause] += 1
            where = self.write(record) if self._causes[cause] <= _MOST_OF_A_CAUSE else ""
            if record["where"] in warned_of and (of_worker or self._causes[cause] == 1):
                warnings.warn(f"{record['line']}: {_COSTS[of_worker]}{where}", EnvFaultWarning, stacklevel=3)

    def write(self, record: Mapping[str, Any]) -> str:
        """Write a capsule; return the end of a message that names it, "" without known actions or room for it."""
        if record["actions"] is None:
            return ""
        config, secrets = self._config, set[str]()
        # The text of a traceback may show the secrets of other settings.
        env_config = without_secrets(as_json(config), secrets)["env_config"]
        content = {
            "env": _name_of(config.env), "env_config": env_config, "num_workers": config.num_workers, **record,
        }  # fmt: skip
        path = write_capsule(self.folder, content, secrets)
        if path is None:
            return ""
        self.folder = path.parent
        return f"; replay it with: {shell_line(['menv', 'replay', str(path), *_options_of(config.env)])}"


def _options_of(env: Any) -> list[str]:
    """Return the options with which another process finds an environment."""
    if isinstance(env, str) and is_known(env):
        creators = RegisteredEnv.of(env).creators
        return ["--import", _name_of(creators[env]).rpartition(":")[0]] if env in creators else []
    name = _name_of(env)
    return ["--env", "MODULE:CLASS" if "<" in name else name]


def _name_of(env: Any) -> str:
    if isinstance(env, str):
        return env
    module, name = getattr(env, "__module__", ""), getattr(env, "__qualname__", type(env).__qualname__)
    if module == "__main__":
        module = getattr(sys.modules[module], "__file__", None) or module
    return f"{module}:{name}"


def write_capsule(folder: Path | None, content: Mapping[str, Any], secrets: set[str]) -> Path | None:
    """Write a crash capsule without secrets into a folder, None for a new one; return its path, None if it cannot."""
    arrays: Arrays = {}
    with suppress(OSError, ConfigError):
        actions = to_plain(content["actions"], arrays)
        values = {name: to_plain(array.ravel().tolist(), {}) for name, array in arrays.items()}
        listed = {name: (array.dtype.name, array.shape, values[name]) for name, array in arrays.items()}
        written = {"kind": _KIND, "version": _VERSION, **content, "actions": actions, "arrays": listed}
        text = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in written.items())
        text = hidden(text, secrets)
        folder = folder or Path(tempfile.mkdtemp(prefix="menv-crashes-"))
        folder.mkdir(exist_ok=True)
        try:
            with claimed(folder / f"{number:03d}.json" for number in count(1)) as (path, draft):
                draft.write_bytes(f"{{\n{text}\n}}\n".encode())
            return path
        except OSError:
            # The folder stays if it has capsules.
            folder.rmdir()
    return None
