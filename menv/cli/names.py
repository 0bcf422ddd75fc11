"""Policies that are called as the agents are, for whom no mapping is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from menv.cli.arguments import put_over
from menv.env_context import EnvContext
from menv.errors import ConfigError
from menv.loop.checkpoint_folder import find_checkpoint, read_manifest
from menv.registry import make_env

_NAMED = "$named"


def own_name(agent_id: Any, *unused: Any, **more: Any) -> str:
    """Return the policy that is called as the agent is."""
    return str(agent_id)


def policies_by_name(env: Any, env_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with a policy for each agent that an environment lists.

    Raises:
        ConfigError: It lists none.
    """
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


def named_again(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for going on from a checkpoint, with `own_name` where that was its mapping.

    No function in a checkpoint is ever looked up; this one is known here.
    """
    stored = read_manifest(find_checkpoint(folder))["config"].get("multiagent", {}).get("policy_mapping_fn")
    if stored != {_NAMED: f"function {own_name.__module__}:{own_name.__qualname__}"}:
        return dict(config)
    return put_over({"multiagent": {"policy_mapping_fn": own_name}}, config)
