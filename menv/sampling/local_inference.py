"""Inference without a sampler: `menv.local_policy_inference` asks a policy for actions, one observation at a time.

Connectors keep the recurrent state and the stacked frames of each agent; of policies without connectors, their history
is kept here. `Policy.act` is the shorter way without them.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, TypeAlias

from menv.connectors.connector import AgentConnectorDataType, is_final
from menv.env_calls import as_flag
from menv.errors import ContractError
from menv.inference.network_policy import NetworkPolicy
from menv.policy import Policy, check_one_policy
from menv.sample_batch import SampleBatch
from menv.sampling.custom_policies import AgentHistory, decide

Answer: TypeAlias = tuple[Any, list[Any], dict[str, Any]]
Key: TypeAlias = tuple[Hashable, Hashable]

# Of policies without connectors: the history of each (env, agent).
_HISTORIES: weakref.WeakKeyDictionary[Policy, dict[Key, AgentHistory]] = weakref.WeakKeyDictionary()


def local_policy_inference(
    policy: Policy,
    env_id: object,
    agent_id: object,
    obs: object,
    reward: object = None,
    terminated: object = None,
    truncated: object = None,
    info: object = None,
    explore: bool | None = None,
    timestep: int | None = None,
) -> list[Answer]:
    """Return the actions of a policy for one observation, or for several.

    Recurrent states and stacked frames are kept for each agent of each environment. They are reset after a call with
    `terminated` or `truncated`; the action for that final observation is not meant for the environment.
    `policy.agent_connectors.reset(env_id)` resets all agents of an environment, `forget(env_id, agent_id)` one agent.

    Args:
        policy: A policy of an algorithm, from `Policy.from_checkpoint`, or a custom one.
        env_id: Any hashable name of the environment.
        agent_id: Any hashable name of the agent.
        obs: An element of `policy.observation_space`, or a `list` of several. The other arguments are then lists of the
            same length, or one value for all; observations of one agent are processed in order.
        reward: The agent's reward since its last action, for custom policies.
        terminated: Whether its episode ended with this observation.
        truncated: Whether its episode was truncated.
        info: The dict that came with the observation.
        explore: Whether actions are sampled; None is the policy's default, False takes the most likely.
        timestep: Env steps so far, for custom policies.

    Returns:
        `(action, states, fetches)` for each observation: the env-ready action, the recurrent state after it, and other
        outputs by name, such as `action_logp`.

    Raises:
        ConfigError: `policy` is not one policy, but for example a dict of them.
        ContractError: An observation is outside the space, a list has not the length of the observations, or a flag is
            a string or an array.
    """
    check_one_policy("local_policy_inference", policy)
    several = isinstance(obs, list)
    observations: list[Any] = obs if isinstance(obs, list) else [obs]
    count = len(observations)
    envs, agents, rewards, infos, *flags = (
        _spread(value, count, name, several)
        for name, value in (
            ("env_id", env_id), ("agent_id", agent_id), ("reward", reward), ("info", info),
            ("terminated", terminated), ("truncated", truncated),
        )
    )  # fmt: skip
    keys = list(zip(envs, agents, strict=True))
    answers: list[Answer] = []
    for start, stop in _ranges(keys):
        shown = [
            AgentConnectorDataType(*keys[row], {
                SampleBatch.NEXT_OBS: observations[row],
                SampleBatch.REWARDS: float(rewards[row] or 0.0),
                SampleBatch.INFOS: infos[row] or {},
                SampleBatch.TERMINATEDS: _is_over(flags[0][row]),
                SampleBatch.TRUNCATEDS: _is_over(flags[1][row]),
            })
            for row in range(start, stop)
        ]  # fmt: skip
        if isinstance(policy, NetworkPolicy):
            found = policy.answer_agents(shown, explore)
            answers += [(action, list(states), dict(fetches)) for action, states, fetches in found]
        else:
            answers += _ask(policy, shown, explore, timestep)
    return answers


def _ask(
    policy: Policy, agents: list[AgentConnectorDataType], explore: bool | None, timestep: int | None
) -> list[Answer]:
    """Return the answers of a policy without connectors for R different agents."""
    policy_id = str(getattr(policy, "policy_id", type(policy).__name__))
    memory = _HISTORIES.setdefault(policy, {})
    histories = [memory.setdefault((agent.env_id, agent.agent_id), AgentHistory()) for agent in agents]
    for history, agent in zip(histories, agents, strict=True):
        history.reward = agent.data[SampleBatch.REWARDS] if history.acted else 0.0
        history.info = agent.data[SampleBatch.INFOS]
    obs = [agent.data[SampleBatch.NEXT_OBS] for agent in agents]
    actions, _, states, fetches = decide(policy, histories, obs, policy_id, None, explore, timestep)
    for agent in agents:
        if is_final(agent.data):
            del memory[agent.env_id, agent.agent_id]
    return [
        (
            actions[row],
            [part[row] for part in states],
            {name: value[row] for name, value in fetches.items()},
        )
        for row in range(len(agents))
    ]


def _is_over(flag: object) -> bool:
    return flag is not None and as_flag(flag, "local_policy_inference: a flag of terminated or truncated")


def _ranges(keys: list[Key]) -> list[tuple[int, int]]:
    """Return ranges of rows in which no agent occurs twice, so that each range is processed at once."""
    ranges, start, seen = [], 0, set[Key]()
    for row, key in enumerate(keys):
        if key in seen:
            ranges.append((start, row))
            start, seen = row, set()
        seen.add(key)
    return [*ranges, (start, len(keys))] if keys else []


def _spread(value: object, rows: int, name: str, several: bool) -> list[Any]:
    if not several or not isinstance(value, list):
        return [value] * rows
    if len(value) != rows:
        raise ContractError(
            f"local_policy_inference: {len(value)} values of {name} for {rows} observations, expected as many or one "
            "for all; pass lists of equal length"
        )
    return value
