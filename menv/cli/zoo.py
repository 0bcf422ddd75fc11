"""Settings for known environments: `menv/zoo/*.toml`, which `menv train` uses.

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

from menv.cli.arguments import merge
from menv.errors import ConfigError
from menv.plain_files import read

ZOO = Path(__file__).parent.parent / "zoo"


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
    """Return the settings of a table for an environment; None if no file has that environment or the table."""
    for path in sorted(ZOO.glob("*.toml")):
        content = tomllib.loads(read(path).decode())
        if table in content and any(fnmatchcase(env, pattern) for pattern in content["envs"]):
            settings: dict[str, Any] = {"base": table}
            algorithm = table
            while base := settings.pop("base", None):
                algorithm = base
                settings = merge(content[base], settings)
            return ZooSettings(f"{path.name} [{table}]", algorithm, settings.pop("env_steps", None), settings)
    return None


def required_zoo_settings(env: str, table: str) -> ZooSettings:
    """Return the settings of a table for an environment.

    Raises:
        ConfigError: There are none.
    """
    found = zoo_settings(env, table)
    if found is None:
        raise ConfigError(
            f"--zoo {table}: no file of menv/zoo has this table for {env}, expected one; leave --zoo out, or pass "
            "your own settings with --config"
        )
    return found
