"""What `MultiAgentEnv.step` must return, looked at where it is not the usual thing; a tracker calls it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL, SINGLE_AGENT, AgentId, BaseEnv, EnvId, FloatArray
from menv.errors import ContractError
from menv.multi_agent_env import MultiAgentEnv
from menv.spaces import alike, as_flag, as_reward, how_many
from menv.vector_env import VectorEnv

if TYPE_CHECKING:
    from menv.adapters.agent_tracker import AgentTracker


_LASTING = frozenset((bool, int, float, np.bool_, np.int64, np.float32, np.float64))
_NAMES = ("obs", "rewards", "terminateds", "truncateds", "infos")


def validate_step(result: Any, wrong: Callable[..., ContractError]) -> tuple[Any, Any, Any, Any, Any]:
    """Return the five dicts of a step once they have the right shape.

    Args:
        result: What the step returned.
        wrong: Makes an error of a method's name, what came and what was expected.

    Raises:
        ContractError: They have another one.
    """
    if not isinstance(result, tuple | list) or len(result) != 5:
        raise wrong(
            "step", f"returned {how_many(result)}", "(obs, rewards, terminateds, truncateds, infos)",
            "return all five from step" if result is None else
            "split the old `dones` into terminateds and truncateds, or wrap the environment in "
            "menv.wrappers.LegacyGym",
        )  # fmt: skip
    obs, rewards, terminateds, truncateds, infos = result
    # Each is a dict, or a subclass of one: cheaper than asking five times in the usual case.
    if not type(obs) is type(rewards) is type(terminateds) is type(truncateds) is type(infos) is dict:
        for name, part in zip(_NAMES, result, strict=True):
            if not isinstance(part, dict):
                raise wrong("step", f"{name} is {type(part).__name__}", "a dict keyed by agent id")
    if ALL not in terminateds or ALL not in truncateds:
        name = "terminateds" if ALL not in terminateds else "truncateds"
        raise wrong("step", f"{name} has no {ALL!r}", f"{ALL!r}: True where the episode ends for everyone")
    if ALL in obs or ALL in rewards:
        raise wrong("step", f"{ALL!r} is among obs or rewards", "agent ids only")
    return obs, rewards, terminateds, truncateds, infos


def flag_of(flags: Mapping[AgentId, Any], agent: AgentId, where: Callable[[str], str]) -> bool:
    """Return whether an agent's flag is set, or that of all.

    Args:
        flags: One of the two dicts of flags.
        agent: Whose; without one it is not set.
        where: Makes the beginning of a message of the method's name.

    Raises:
        ContractError: It is no truth value.
    """
    flag = flags.get(agent)
    if flag is None or flag is True or flag is False:
        return bool(flag)
    return as_flag(flag, f"{where('step')}: the flag of {agent!r}")


def refuse_none(flags: Mapping[AgentId, Any], where: Callable[[str], str]) -> None:
    """Refuse a flag that is None, which a function without a `return` gives; arguments as for `any_set`."""
    for agent, flag in flags.items():
        if flag is None:
            as_flag(flag, f"{where('step')}: the flag of {agent!r}")


def lasting(values: Mapping[AgentId, Any]) -> dict[AgentId, Any] | None:
    """Return a copy of flags or rewards, None where the environment could still change what is in it.

    Views of an array and tensors of one element are such: what they hold by then is not what they held.
    """
    return dict(values) if _LASTING.issuperset(map(type, values.values())) else None


def any_set(flags: Mapping[AgentId, Any], where: Callable[[str], str]) -> bool:
    """Return whether a flag is set.

    Args:
        flags: One of the two dicts of flags.
        where: As for `flag_of`.

    Raises:
        ContractError: One is an array of several.
    """
    try:
        return any(flags.values())
    except (ValueError, RuntimeError):
        # An array or a tensor of several; the look at each of them names it.
        return any(flag_of(flags, agent, where) for agent in flags)


# SEAM menv.adapters.answers
# What `send_actions` is given, looked at before anybody acts on it, and what is said where it does not fit.
#
# Every adapter asks it, and those of remote environments. It knows neither who waits nor what an action is.


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


# SEAM menv.adapters.rewards
# Rewards as environments pay them, as the float64 that everybody reckons with.
#
# Every adapter asks it, for all rows of a poll at once. It knows no episodes.


_FLOAT64 = np.dtype(np.float64)
_NONE = np.zeros((0, 0))


def as_rewards(rewards: Any, whose: Callable[[], Iterable[str]], otherwise: str = "") -> FloatArray:
    """Return R rewards as [R] float64.

    Args:
        rewards: A list or an array.
        whose: Asked only if one needs a look of its own; gives what begins the message about each.
        otherwise: What may be done about one that is no number beside returning one.

    Raises:
        ContractError: One is not a finite number; it names whose.
    """
    try:
        # No dtype is asked for: texts would be read as numbers.
        numbers = np.asarray(rewards)
    except (TypeError, ValueError, RuntimeError):
        numbers = _NONE
    if numbers.dtype is not _FLOAT64 and numbers.dtype.kind in "fiub":
        numbers = numbers.astype(_FLOAT64)
    # The sum of their squares is finite only if each is: one product instead of a look at every reward.
    if numbers.ndim == 1 and numbers.dtype is _FLOAT64 and math.isfinite(numbers.dot(numbers)):
        return numbers
    return np.array([as_reward(*each, otherwise) for each in zip(rewards, whose(), strict=False)], np.float64)


def of_envs(where: str) -> Iterator[str]:
    """Yield what begins messages about rewards of sub-environments, as many as there may be.

    Args:
        where: The method that returned them.
    """
    return (f"{where}: the reward of env {index}" for index in itertools.count())


def reward_labels(trackers: Iterable[AgentTracker]) -> Iterator[str]:
    """Yield what begins the message about the reward of each row of some trackers."""
    for tracker in trackers:
        yield from map(tracker.reward_label, tracker.waiting.agents)


# SEAM menv.adapters.silence
# Env steps in which nobody waits for an action: how many in a row are too many.
#
# `multi_agent` and `custom` count them, and `menv.checking` looks as far.


MAX_EMPTY_STEPS = 1000
"""So many env steps in a row without a waiting agent are taken for a fault of the environment."""


def too_silent(where: str) -> ContractError:
    """Return the error for a sub-environment in which nobody has waited for longer than that.

    Args:
        where: Begins the message, such as "env 3 step".
    """
    return ContractError(
        f"{where}: nobody waited for an action in {MAX_EMPTY_STEPS} env steps in a row, expected an observation for "
        'an agent that acts next; end the episode with "__all__" once all agents are gone'
    )


# SEAM menv.adapters.possible_agents
# What an environment says of the agents that may ever appear in it.


def possible_agents(env: Any) -> frozenset[AgentId] | None:
    """Return the agents that may ever appear, None if the environment does not say.

    Raises:
        ContractError: It lists something else than agent ids.
    """
    listed = getattr(env, "possible_agents", None)
    if listed is None:
        return None
    # What may be meant by a number, a text or an array is not guessed.
    if not isinstance(listed, Collection) or isinstance(listed, str | np.ndarray):
        raise _wrong(env, f"{type(listed).__name__} {str(listed)[:40]!r}")
    for agent in listed:
        if not isinstance(agent, Hashable):
            raise _wrong(env, f"a collection with a {type(agent).__name__}")
    return frozenset(listed) or None


def _wrong(env: Any, got: str) -> ContractError:
    return ContractError(
        f"{type(env).__name__}: possible_agents is {got}, expected a list of agent ids; set it to all that may "
        "ever appear, or leave it out"
    )


# SEAM menv.scale.same_spaces
# Copies of a single-agent environment that declare other spaces than the first: refused before anybody acts
# in them.
#
# `menv.workers.convert` looks at each copy where it is created, workers at the first one of theirs. Policies
# have the
# spaces of the first, so that actions would be chosen from another space. What agents of a `MultiAgentEnv`
# declare is not
# compared: copies may be other games, whose agents the mapping gives other policies.


Declared = Mapping[str, Any]
"""Spaces by the name of the attribute."""


def declared(env: Any) -> Declared:
    """Return what a single-agent environment declares, or one of those in a vectorised one; nothing of others."""
    vectorised = isinstance(env, gym.vector.VectorEnv)
    if isinstance(env, MultiAgentEnv) or not (vectorised or isinstance(env, gym.Env | VectorEnv)):
        return {}
    names = ("observation_space", "action_space")
    found = {name: getattr(env, f"single_{name}" if vectorised else name, None) for name in names}
    # One that is built in its first reset may have none yet.
    return {name: space for name, space in found.items() if isinstance(space, gym.Space)}


def check_spaces(whose: str, env: Any, first: Declared) -> None:
    """Refuse an environment whose spaces are of another kind or shape than those that the first declares.

    Raises:
        ContractError: They are.
    """
    for name, space in declared(env).items():
        if name in first and not alike(space, first[name]):
            raise ContractError(
                f"{whose}: its {name} is {space!s:.160}, expected one like that of the first environment, "
                f"{first[name]!s:.160}; declare the same in every copy, whatever its worker_index and vector_index"
            )


def check_worker(whose: str, base_env: BaseEnv, first: Any, like: Declared, num_envs: int = 0) -> None:
    """Refuse the environments of a worker that are not like those of the driver, and close them.

    Args:
        whose: What messages call the worker.
        base_env: They.
        first: The first of them.
        like: What that of the driver declares.
        num_envs: How many each worker has; 0 if that makes no difference.

    Raises:
        ContractError: They declare other spaces, or are more or fewer.
    """
    try:
        check_spaces(whose, first, like)
        if num_envs and base_env.num_envs not in (0, num_envs):
            raise ContractError(
                f"{whose}: {type(first).__name__} of {base_env.num_envs} sub-environments, expected {num_envs} as in "
                "the driver; create the same number of them whatever the worker_index"
            )
    except ContractError:
        base_env.stop()
        raise


def same_spaces(make_env: Callable[[int], Any], first: Any) -> Callable[[int], Any]:
    """Return `make_env` with a check that each copy declares the spaces of `first`."""
    like = declared(first)

    def make(vector_index: int) -> Any:
        env = make_env(vector_index)
        check_spaces(f"env {vector_index}", env, like)
        return env

    return make
