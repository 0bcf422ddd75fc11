"""`--policies` and `--policy` of `menv train`: which policies there are, and which agents each has.

They become the settings `multiagent.policies` and, as pairs of patterns and policy ids, `multiagent.policy_mapping_fn`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

import gymnasium as gym

from menv.base_env import SINGLE_AGENT
from menv.env_context import EnvContext
from menv.errors import ConfigError
from menv.policy_spec import PolicySpec
from menv.registry import describe_env, make_env
from menv.sampling.infer_policies import AgentSpaces
from menv.spaces import close_unused

ALGORITHMS = ("PPO", "DQN", "QMIX")
_NUMBER = re.compile(r"[\W_]*\d+$")

Choice = tuple[str, str, str | None]
"""A pattern, a policy id, and the algorithm of the policy; None for the one of the run."""


def take_policies(parser: argparse.ArgumentParser) -> None:
    """Add the options, stored as `policies` and `policy`."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--policies", metavar="{shared,per-agent,auto}", type=_kind,
        help="one policy for all agents, one for each of possible_agents, or one for all agents with equal spaces "
        "(shared)",
    )  # fmt: skip
    either.add_argument(
        "--policy", metavar="PATTERN=ID[:ALGORITHM]", type=_choice, action="append", default=[],
        help="the policy of the agents whose names match, such as 'car_*=cars' or 'light_*=lights:DQN'; may be "
        "repeated, the first pattern that matches counts",
    )  # fmt: skip


def _kind(text: str) -> str:
    if text not in ("shared", "per-agent", "auto"):
        raise argparse.ArgumentTypeError(
            f"{text!r}, expected shared, per-agent or auto; per-agent gives each agent its policy"
        )
    return text


def _choice(text: str) -> Choice:
    pattern, _, policy = text.rpartition("=")
    name, colon, algorithm = policy.partition(":")
    if not pattern or not name or (colon and algorithm not in ALGORITHMS):
        raise argparse.ArgumentTypeError(
            f"{text!r}, expected PATTERN=ID or PATTERN=ID:ALGORITHM, such as 'car_*=cars:DQN', with one of the "
            f"algorithms {', '.join(ALGORITHMS)}"
        )
    return pattern, name, algorithm or None


def chosen_policies(
    kind: str | None, choices: Sequence[Choice], env: Any, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings that the two options mean for an environment.

    Raises:
        ConfigError: A policy has two algorithms, or the environment does not list its agents or their spaces.
    """
    policies: dict[str, PolicySpec | None] = {}
    if kind == "per-agent":
        policies = dict.fromkeys(_spaces_by_agent(env, config, "--policies per-agent"))
        choices = [("*", "*", None)]
    elif kind == "auto":
        spaces = _spaces_by_agent(env, config, "--policies auto")
        choices = [] if [*spaces] == [SINGLE_AGENT] else _by_spaces(spaces)
    for _, policy, algorithm in choices if kind != "per-agent" else ():
        spec = None if algorithm is None else PolicySpec(algorithm=algorithm)
        if policies.setdefault(policy, spec) != spec:
            raise ConfigError(
                f"--policy: {policy} has two algorithms, expected one; give {policy} the same one each time"
            )
    if not policies:
        return {}
    mapping = [(pattern, policy) for pattern, policy, _ in choices]
    return {"multiagent": {"policies": policies, "policy_mapping_fn": mapping}}


def _spaces_by_agent(env: Any, config: Mapping[str, Any], option: str) -> dict[str, Any]:
    made = make_env(env, EnvContext(config.get("env_config", {})))
    try:
        single = [SINGLE_AGENT] if isinstance(made, gym.Env) else []
        agents = getattr(made, "possible_agents", None) or single
        kinds = [AgentSpaces(made, kind, config.get(f"{kind}_space")) for kind in ("observation", "action")]
        found = {str(agent): [kind.found(agent) for kind in kinds] for agent in agents}
    finally:
        close_unused(made)
    if not found:
        raise ConfigError(
            f"{option}: {describe_env(env)} lists no possible_agents, expected their ids; write --policy 'PATTERN=ID'"
        )
    return found


def _by_spaces(spaces: Mapping[str, Any]) -> list[Choice]:
    """Return one policy for all agents with equal spaces, called as they are without their numbers."""
    groups: list[tuple[Any, list[str]]] = []
    for agent, found in spaces.items():
        group = next((agents for known, agents in groups if known == found), None)
        if group is None:
            groups.append((found, [agent]))
        else:
            group.append(agent)
    choices: list[Choice] = []
    for _, agents in groups:
        stems = {_NUMBER.sub("", agent) for agent in agents}
        stem = stems.pop() if len(agents) > 1 and len(stems) == 1 else ""
        if not stem or stem in {*spaces, *(policy for _, policy, _ in choices)}:
            choices += [(escape(agent), agents[0], None) for agent in agents]
        elif sum(fnmatchcase(agent, f"{escape(stem)}*") for agent in spaces) == len(agents):
            choices.append((f"{escape(stem)}*", stem, None))
        else:
            choices += [(escape(agent), stem, None) for agent in agents]
    return choices
