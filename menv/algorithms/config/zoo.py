"""Settings for known environments: the files of `menv/zoo`, which `menv train` uses, and your own files.

A file names its environments by patterns, and has a table for each algorithm or variant of one:

    envs = ["CartPole-v1"]

    [PPO]
    env_steps = 100_000         # the bound of a run without --stop
    num_envs_per_worker = 8     # the rest are settings, as in a file of --config

    [MAPPO]
    base = "PPO"                # the settings of that table, and those below over them
    critic_obs = "all_agents"
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from menv.errors import ConfigError
from menv.plain_files import read_named

ZOO = Path(__file__).parents[2] / "zoo"


@dataclass(frozen=True)
class ZooSettings:
    """The settings of one table.

    Attributes:
        source: The file and the table, such as "CartPole-v1.toml [PPO]".
        algorithm: The algorithm that the table, or the last of its bases, is called after.
        env_steps: The bound of a run, None without one.
        settings: The items of `config`.
    """

    source: str
    algorithm: str
    env_steps: int | None
    settings: dict[str, Any]

    @property
    def hash(self) -> str:
        """A hash of everything that decides what a run does."""
        text = json.dumps([self.algorithm, self.env_steps, self.settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def zoo_settings(env: str, table: str) -> ZooSettings | None:
    """Return the settings that menv has for an environment; None if no file has that environment or the table."""
    for path in sorted(ZOO.glob("*.toml")):
        content = _tables_of(path)
        if table in content and _is_for(content, env):
            return _settings_of(path, content, table)
    return None


def required_zoo_settings(env: str, zoo: str, algorithm: str) -> ZooSettings:
    """Return the settings that `zoo` names for an environment.

    Args:
        env: The name of the environment.
        zoo: A table of menv's files, `my.toml`, or `my.toml:TABLE`.
        algorithm: The table where `zoo` names only a file.

    Raises:
        ConfigError: There are none, or the file cannot be read.
    """
    file, colon, table = zoo.partition(".toml")
    if not colon:
        found = zoo_settings(env, zoo)
        if found is None:
            raise ConfigError(
                f"zoo: {zoo}: no file of menv/zoo has this table for {env}, expected one; leave it out, or name a file "
                "of yours, my.toml"
            )
        return found
    path, table = Path(f"{file}.toml"), table.removeprefix(":") or algorithm
    content = _tables_of(path)
    if not _is_for(content, env) or table not in content:
        raise ConfigError(
            f"zoo: {path} has {list(content)} for {content.get('envs')}, expected the table {table} for {env}; add it "
            "to the file"
        )
    return _settings_of(path, content, table)


def _tables_of(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_named("zoo:", path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"zoo: {path}: {error}, expected TOML; correct the file") from None


def _is_for(content: dict[str, Any], env: str) -> bool:
    patterns = content.get("envs")
    return isinstance(patterns, list) and any(fnmatchcase(env, str(pattern)) for pattern in patterns)


def _settings_of(path: Path, content: dict[str, Any], table: str) -> ZooSettings:
    settings: dict[str, Any] = {"base": table}
    bases: list[str] = []
    while base := settings.pop("base", None):
        if base in bases or not isinstance(content.get(base), dict):
            raise ConfigError(
                f"zoo: {path}: the tables {[*bases, base]} follow each other by base, expected another table of the "
                "file each time; correct base"
            )
        bases.append(base)
        below = content[base]
        sections = {
            key: below[key] | own for key, own in settings.items() if isinstance(below.get(key), dict)
        }
        settings = below | settings | sections
    env_steps = settings.pop("env_steps", None)
    if not isinstance(env_steps, int | None):
        raise ConfigError(
            f"zoo: {path} [{table}]: env_steps is {env_steps!r}, expected an integer; correct it"
        )
    return ZooSettings(f"{path.name} [{table}]", bases[-1], env_steps, settings)
