"""A policy asked by hand, one observation at a time, by somebody who steps an environment without a sampler.

`menv.local_policy_inference` is the classic way; it remembers what each agent's policy wants to be shown again. The
short way is `Policy.act`. Both go through `Policy.compute_actions`, like training.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

from menv.connectors.agent_connector import AgentConnectorDataType
from menv.connectors.pipeline import leaf_connectors
from menv.connectors.view_requirement import StateBufferConnector
from menv.errors import ContractError
from menv.inference.network_policy import NetworkPolicy
from menv.policy import Policy, check_one_policy
from menv.sample_batch import SampleBatch
from menv.sampling.custom_policy_group import AgentHistory, decide
from menv.spaces import as_flag

Answer: TypeAlias = tuple[Any, list[Any], dict[str, Any]]
Key: TypeAlias = tuple[Hashable, Hashable]

# By policy without connectors, what each (env, agent) has done in its episode; gone with the policy.
_MEMORIES: weakref.WeakKeyDictionary[Policy, dict[Key, AgentHistory]] = weakref.WeakKeyDictionary()


def local_policy_inference(
    policy: Policy,
    env_id: Any,
    agent_id: Any,
    obs: Any,
    reward: Any = None,
    terminated: Any = None,
    truncated: Any = None,
    info: Any = None,
    explore: bool | None = None,
    timestep: int | None = None,
) -> list[Answer]:
    """Return what a policy does in answer to one observation, or to several.

    A policy with a memory is shown its own state again, agent by agent and environment by environment, and frames are
    stacked likewise. An agent's memory begins anew after a call with `terminated` or `truncated`; the answer of that
    call, to the last observation of the episode, is of no use to the environment. All agents of an environment are
    forgotten by `policy.agent_connectors.reset(env_id)`, one by `forget(env_id, agent_id)`.

    Args:
        policy: Of an algorithm, from `Policy.from_checkpoint`, or one of your own.
        env_id: Any hashable name of the environment.
        agent_id: Any hashable name of the agent.
        obs: An element of `policy.observation_space`, or a `list` of several. The arguments around it are then lists
            of the same length, or one value for all; observations of one agent are answered in their order.
        reward: What the agent earned since its last action; policies of your own are shown it.
        terminated: Whether its episode ended with this observation.
        truncated: Whether it was broken off.
        info: The dict that came with the observation.
        explore: Whether actions are drawn; None is the policy's default, False takes the most likely.
        timestep: Env steps so far, for policies of your own.

    Returns:
        `(action, states, fetches)` for each observation: the action as the environment takes it, the recurrent state
        after it, and anything else by name, such as `action_logp`.

    Raises:
        ConfigError: `policy` is something else, such as several by id.
        ContractError: An observation is outside the space, a list has another length than that of observations, or a
            flag is a text or an array of several.
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
    forgets = isinstance(policy, NetworkPolicy) and not policy.networks.state_sizes
    if isinstance(policy, NetworkPolicy) and not (policy.plain or (forgets and policy.whole)):
        # Connectors of one's own see agents one by one and remember them; they are asked in the order of time.
        flagged = [[_is_over(flags[row]) for flags in ends] for row in range(rows)]
        agents_data = zip(keys, observations, rewards, infos, flagged, strict=True)
        done = (answer for one in agents_data for answer in policy.answer_agents([_data(*one)], explore))
        return [(action, list(states), dict(fetches)) for action, states, fetches in done]
    memory = {} if forgets else _memory(policy)
    answers: list[Answer] = []
    for start, stop in _portions(keys):
        lives = [memory.setdefault(key, AgentHistory()) for key in keys[start:stop]]
        for life, earned, told in zip(lives, rewards[start:stop], infos[start:stop], strict=True):
            life.reward, life.info = float(earned or 0.0) if life.acted else 0.0, told or {}
        over = [any(_is_over(flags[row]) for flags in ends) for row in range(start, stop)]
        shown = [_shown(policy, *one) for one in zip(observations[start:stop], over, strict=True)]
        answers += _ask(policy, lives, shown, explore, timestep)
        for key, ended in zip(keys[start:stop], over, strict=True):
            if ended:
                memory.pop(key, None)
    return answers


def _memory(policy: Policy) -> dict[Key, AgentHistory]:
    """Return what is remembered of agents, where `agent_connectors.reset` forgets it if the policy has connectors."""
    leaves = leaf_connectors(policy.agent_connectors) if isinstance(policy, NetworkPolicy) else ()
    for leaf in leaves:
        if isinstance(leaf, StateBufferConnector):
            return leaf.memory
    return _MEMORIES.setdefault(policy, {})


def _shown(policy: Policy, obs: Any, over: bool) -> Any:
    """Return what a policy is shown of an observation: at the end of an episode masks may allow nothing any more."""
    preprocess = policy.networks.preprocess if over and isinstance(policy, NetworkPolicy) else None
    return obs if preprocess is None else preprocess.with_choices(obs)


def _data(key: Key, obs: Any, reward: Any, info: Any, over: Sequence[bool]) -> AgentConnectorDataType:
    data = {
        SampleBatch.NEXT_OBS: obs,
        SampleBatch.REWARDS: float(reward or 0.0),
        SampleBatch.INFOS: info or {},
    }
    flags = dict(zip((SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS), over, strict=True))
    return AgentConnectorDataType(*key, {**data, **flags})


def _ask(
    policy: Policy, lives: list[AgentHistory], obs: Sequence[Any], explore: bool | None, timestep: int | None
) -> list[Answer]:
    """Return the answers of R lives, no two of them the same."""
    policy_id = str(getattr(policy, "policy_id", type(policy).__name__))
    actions, _, states, fetches = decide(policy, lives, obs, policy_id, None, explore, timestep)
    return [
        (
            policy.env_action(actions[row]),
            [part[row] for part in states],
            {name: value[row] for name, value in fetches.items()},
        )
        for row in range(len(lives))
    ]


def _is_over(flag: Any) -> bool:
    return flag is not None and as_flag(flag, "local_policy_inference: a flag of terminated or truncated")


def _portions(keys: list[Key]) -> list[tuple[int, int]]:
    """Return from where to where rows can be answered at once: in none of them is an agent twice."""
    portions, start, seen = [], 0, set[Key]()
    for row, key in enumerate(keys):
        if key in seen:
            portions.append((start, row))
            start, seen = row, set()
        seen.add(key)
    return [*portions, (start, len(keys))] if keys else []


def _spread(value: Any, rows: int, name: str, several: bool) -> list[Any]:
    if not several or not isinstance(value, list):
        return [value] * rows
    if len(value) != rows:
        raise ContractError(
            f"local_policy_inference: {len(value)} values of {name} for {rows} observations, expected as many or one "
            "for all; pass lists of equal length"
        )
    return value
