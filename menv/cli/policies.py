"""Policies and checkpoints on the command line: one policy per agent, and resuming by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from menv.algorithms.algorithm import Algorithm
from menv.algorithms.config.stored_config import NamedOnlyError
from menv.cli.arguments import merge
from menv.env_context import EnvContext
from menv.errors import ConfigError
from menv.inference.checkpoint_folder import find_checkpoint, read_manifest
from menv.registry import is_known, make_env

_NAMED = "$named"
_DEEPEST = 2
"""Maximum number of keys in a path that `--config` can set."""


def own_name(agent_id: Any, *unused: Any, **more: Any) -> str:
    """Map an agent to the policy of the same name."""
    return str(agent_id)


def policies_by_name(env: Any, env_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with one policy for each of the environment's `possible_agents`."""
    made = make_env(env, EnvContext(env_config))
    agents = [str(agent) for agent in getattr(made, "possible_agents", None) or ()]
    if callable(close := getattr(made, "close", None)):
        close()
    if not agents:
        raise ConfigError(
            f"--policies each: {env} lists no possible_agents, expected their ids; write multiagent.policies and "
            "multiagent.policy_mapping_fn with --config"
        )
    return {"multiagent": {"policies": agents, "policy_mapping_fn": own_name}}


def from_checkpoint(
    kind: type[Algorithm], folder: str, config: Mapping[str, Any], env: str | None, env_option: str
) -> Algorithm:
    """Return an algorithm resumed from a checkpoint; the error lists objects to pass again as arguments."""
    try:
        return kind.from_checkpoint(folder, _with_own_name(Path(folder), config), env)
    except NamedOnlyError as error:
        missing = sorted(error.missing, key=lambda one: one[0] != ("env",))
        typed = (_as_argument(path, was.rpartition(" ")[2], env_option) for path, was in missing)
        raise ConfigError(f"{error.summary}; add {' '.join(dict.fromkeys(typed))}") from error


def _as_argument(path: tuple[Any, ...], was: str, env_option: str) -> str:
    whole = ":" in was and "<" not in was and not was.startswith("__main__:") and len(path) <= _DEEPEST
    name = was if whole else "module:name"
    if path != ("env",):
        return f"--config {'.'.join(map(str, path[:_DEEPEST]))}=@{name}"
    return f"{env_option}{name}" if ":" in was else f"--import and the module that registers {was!r}"


def known_env(folder: Path) -> str | None:
    """Return the name of a checkpoint's environment if it is registered here, else None."""
    env = _stored(folder).get("env")
    return env if isinstance(env, str) and is_known(env) else None


def _stored(folder: Path) -> Mapping[str, Any]:
    config = read_manifest(find_checkpoint(folder)).get("config")
    return config if isinstance(config, Mapping) else {}


def _with_own_name(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    multi = _stored(folder).get("multiagent")
    stored = multi.get("policy_mapping_fn") if isinstance(multi, Mapping) else None
    if stored != {_NAMED: f"function {own_name.__module__}:{own_name.__qualname__}"}:
        return dict(config)
    return merge({"multiagent": {"policy_mapping_fn": own_name}}, config)
