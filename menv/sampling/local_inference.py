"""Inference without a sampler: `menv.local_policy_inference` asks a policy for actions, one observation at a time.

It keeps the recurrent state and the stacked frames of each agent. `Policy.act` is the shorter way without them; both
call `Policy.compute_actions`, as training does.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

from menv.connectors.built_in import StateBufferConnector
from menv.connectors.connector import AgentConnectorDataType
from menv.connectors.pipeline import leaf_connectors
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
    rows = len(obs) if isinstance(obs, list) else 1
    observations = obs if isinstance(obs, list) else [obs]
    envs, agents, rewards, infos = (
        _spread(value, rows, name, isinstance(obs, list))
        for name, value in (("env_id", env_id), ("agent_id", agent_id), ("reward", reward), ("info", info))
    )
    ends = [
        _spread(value, rows, name, isinstance(obs, list))
        for name, value in (("terminated", terminated), ("truncated", truncated))
    ]
    keys = list(zip(envs, agents, strict=True))
    network = policy if isinstance(policy, NetworkPolicy) else None
    forgets = network is not None and not network.networks.state_sizes
    if network is not None and not (network.plain or (forgets and network.whole)):
        # Custom connectors see agents one by one, in time order.
        flagged = [[_is_over(flags[row]) for flags in ends] for row in range(rows)]
        agents_data = zip(keys, observations, rewards, infos, flagged, strict=True)
        done = (answer for one in agents_data for answer in network.answer_agents([_data(*one)], explore))
        return [(action, list(states), dict(fetches)) for action, states, fetches in done]
    memory = {} if forgets else _memory(policy, network)
    answers: list[Answer] = []
    for start, stop in _ranges(keys):
        histories = [memory.setdefault(key, AgentHistory()) for key in keys[start:stop]]
        for history, earned, about in zip(histories, rewards[start:stop], infos[start:stop], strict=True):
            history.reward, history.info = float(earned or 0.0) if history.acted else 0.0, about or {}
        over = [any(_is_over(flags[row]) for flags in ends) for row in range(start, stop)]
        shown = [_shown(network, *one) for one in zip(observations[start:stop], over, strict=True)]
        answers += _ask(policy, histories, shown, explore, timestep)
        for key, ended in zip(keys[start:stop], over, strict=True):
            if ended:
                memory.pop(key, None)
    return answers


def _memory(policy: Policy, network: NetworkPolicy | None) -> dict[Key, AgentHistory]:
    """Return the histories of agents.

    A policy with connectors keeps them where `agent_connectors.reset` clears them.
    """
    for leaf in () if network is None else leaf_connectors(network.agent_connectors):
        if isinstance(leaf, StateBufferConnector):
            return leaf.memory
    return _HISTORIES.setdefault(policy, {})


def _shown(network: NetworkPolicy | None, obs: object, over: bool) -> Any:
    """Return the observation for the policy; at the end of an episode the mask may allow no action."""
    preprocess = network.networks.preprocess if over and network is not None else None
    return obs if preprocess is None else preprocess.with_choices(obs)


def _data(key: Key, obs: object, reward: Any, info: object, over: Sequence[bool]) -> AgentConnectorDataType:
    data = {
        SampleBatch.NEXT_OBS: obs,
        SampleBatch.REWARDS: float(reward or 0.0),
        SampleBatch.INFOS: info or {},
    }
    flags = dict(zip((SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS), over, strict=True))
    return AgentConnectorDataType(*key, {**data, **flags})


def _ask(
    policy: Policy,
    histories: list[AgentHistory],
    obs: Sequence[Any],
    explore: bool | None,
    timestep: int | None,
) -> list[Answer]:
    """Return the answers for R different agents."""
    policy_id = str(getattr(policy, "policy_id", type(policy).__name__))
    actions, _, states, fetches = decide(policy, histories, obs, policy_id, None, explore, timestep)
    return [
        (
            policy.env_action(actions[row]),
            [part[row] for part in states],
            {name: value[row] for name, value in fetches.items()},
        )
        for row in range(len(histories))
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
