"""What `send_actions` is given, looked at before anybody acts on it, and what is said where it does not fit.

Every adapter asks it, and those of remote environments. It knows neither who waits nor what an action is.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from menv.base_env import SINGLE_AGENT, AgentId, EnvId
from menv.errors import ContractError


def nested_answers(answers: Any) -> Mapping[EnvId, Mapping[AgentId, Any]]:
    """Return `answers` once they are a dict of dicts.

    Raises:
        ContractError: They are something else; it says where.
    """
    if not isinstance(answers, Mapping):
        raise ContractError(
            f"send_actions: got {type(answers).__name__} alone, expected {{env_id: {{agent_id: action}}}}; pass the "
            "nested dict, or slots and actions"
        )
    for env_id, by_agent in answers.items():
        if not isinstance(by_agent, Mapping):
            raise ContractError(
                f"send_actions: the actions of env {env_id!r} are {type(by_agent).__name__}, expected "
                "{agent_id: action}; key them by agent id"
            )
    return answers


def by_sub_environment(
    slots: Any, actions: Any, seats: Sequence[tuple[EnvId, AgentId]]
) -> dict[EnvId, dict[AgentId, Any]]:
    """Return the two arguments of `send_actions` as one nested dict of its own.

    Raises:
        ContractError: There are no actions beside the slots, and these are no nested dict.
    """
    if actions is None:
        return {env_id: dict(answers) for env_id, answers in nested_answers(slots).items()}
    by_env: dict[EnvId, dict[AgentId, Any]] = {}
    numbers = slots.tolist() if isinstance(slots, np.ndarray) else map(int, slots)
    for slot, action in zip(numbers, actions, strict=True):
        env_id, agent = seats[slot]
        if env_id in by_env:
            by_env[env_id][agent] = action
        else:
            by_env[env_id] = {agent: action}
    return by_env


def of_only_agents(answers: Any, index_of: Callable[[EnvId], int], waiting: Container[int]) -> dict[int, Any]:
    """Return the actions of a nested dict by index, for sub-environments of one agent each.

    Args:
        answers: What `send_actions` was given. No actions for a sub-environment that does not wait say nothing.
        index_of: Gives the index for an env id.
        waiting: Indices of the sub-environments that wait.

    Raises:
        ContractError: They are no nested dict, or name other agents.
    """
    actions: dict[int, Any] = {}
    for env_id, by_agent in nested_answers(answers).items():
        index = index_of(env_id)
        if not by_agent and index not in waiting:
            continue
        if set(by_agent) != {SINGLE_AGENT}:
            raise ContractError(
                f"send_actions: env {env_id} got actions for {sorted(map(repr, by_agent))}, expected {SINGLE_AGENT!r}; "
                "a single-agent environment has this one agent"
            )
        actions[index] = by_agent[SINGLE_AGENT]
    return actions


def check_answers(env_id: EnvId, agents: Sequence[AgentId], answers: Mapping[AgentId, Any]) -> None:
    """Raise if the answered agents are not exactly those who wait."""
    if list(answers) == agents:
        return
    missing = sorted(repr(agent) for agent in agents if agent not in answers)
    extra = sorted(repr(agent) for agent in answers if agent not in agents)
    if missing or extra:
        raise ContractError(
            f"send_actions: env {env_id} got actions for not waiting {extra[:8]} and none for waiting {missing[:8]}, "
            f"expected exactly {sorted(map(repr, agents))[:16]}; answer each row that poll returned once"
        )


def wrong_count(actions: int, rows: int) -> ContractError:
    """Return the error for another number of actions than rows."""
    return ContractError(
        f"send_actions: got {actions} actions for {rows} slots, expected one for each; "
        "keep them in the order of the slots"
    )


def stray_answers(indices: Sequence[int], waiting: Sequence[int]) -> ContractError:
    """Return the error for answers to sub-environments that do not wait, or that are answered twice."""
    return ContractError(
        f"send_actions: got an action for env {list(indices)[:16]}, expected each of the waiting "
        f"{list(waiting)[:16]} at most once; poll first, then answer the rows it returned"
    )
