"""Checks of what environments return and of what `send_actions` gets; every adapter calls them.

They are written so that the usual, valid case costs as little as possible: whole dicts and columns are checked at once,
and single values only where that fails, to name the environment and the agent in the error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import ALL, COMMON, SINGLE_AGENT, AgentId, BaseEnv, EnvId, FloatArray, Ready
from menv.env_calls import as_flag, as_reward, how_many
from menv.errors import ContractError
from menv.registry import env_kind, wrapped_if_foreign
from menv.spaces import alike, has_order

if TYPE_CHECKING:
    from menv.adapters.agent_tracker import AgentTracker

RESERVED = frozenset((ALL, COMMON))
"""Names that no agent can have: of all agents, and of the infos of the whole environment."""

MAX_EMPTY_STEPS = 1000
"""More env steps in a row without a waiting agent are an error of the environment."""

Declared = Mapping[str, Any]
"""Spaces by the name of the attribute."""

_FLOAT64 = np.dtype(np.float64)
_NONE = np.zeros((0, 0))
_IMMUTABLE = frozenset((bool, int, float, np.bool_, np.int64, np.float32, np.float64))
_TAKEN = "off_policy_actions"
STEP_PARTS = ("obs", "rewards", "terminateds", "truncateds", "infos")


def validate_step(result: object, wrong: Callable[..., ContractError]) -> tuple[Any, Any, Any, Any, Any]:
    """Return the five dicts of `MultiAgentEnv.step`; `wrong(method, got, expected, fix)` makes the error."""
    if not isinstance(result, tuple | list) or len(result) != 5:
        raise wrong(
            "step", f"returned {how_many(result)}", "(obs, rewards, terminateds, truncateds, infos)",
            "return all five from step" if result is None else
            "split the old `dones` into terminateds and truncateds, or wrap the environment in "
            "menv.wrappers.LegacyGym", "ME020",
        )  # fmt: skip
    obs, rewards, terminateds, truncateds, infos = result
    # Cheaper than five isinstance calls in the usual case; subclasses of dict are valid too.
    if not type(obs) is type(rewards) is type(terminateds) is type(truncateds) is type(infos) is dict:
        for name, part in zip(STEP_PARTS, result, strict=True):
            if not isinstance(part, dict):
                got = f"{name} is {type(part).__name__}"
                raise wrong("step", got, "a dict keyed by agent id", finding="ME021")
    if ALL not in terminateds or ALL not in truncateds:
        name = "terminateds" if ALL not in terminateds else "truncateds"
        rule = f"{ALL!r}: True where the episode ends for everyone"
        raise wrong("step", f"{name} has no {ALL!r}", rule, finding="ME022")
    if not (RESERVED.isdisjoint(obs) and RESERVED.isdisjoint(rewards)):
        raise reserved_error("step", obs, rewards, wrong)
    return obs, rewards, terminateds, truncateds, infos


def validate_reset(obs: object, infos: object, wrong: Callable[..., ContractError]) -> None:
    """Check the two dicts of `MultiAgentEnv.reset`; `wrong` as in `validate_step`."""
    if not isinstance(obs, dict):
        got = f"observations are {type(obs).__name__}"
        raise wrong("reset", got, "a dict keyed by agent id", finding="ME012")
    if not RESERVED.isdisjoint(obs):
        raise reserved_error("reset", obs, (), wrong)
    if not isinstance(infos, dict):
        raise wrong("reset", f"infos are {type(infos).__name__}", "a dict keyed by agent id", finding="ME029")


def reserved_error(
    method: str, obs: Container[AgentId], rewards: Container[AgentId], wrong: Callable[..., ContractError]
) -> ContractError:
    """Return the error for an agent that has a reserved name."""
    name = ALL if ALL in obs or ALL in rewards else COMMON
    got, fix = f"{name!r} is among obs or rewards", "keep it to flags and infos, and call no agent so"
    return wrong(method, got, "agent ids only", fix, "ME021")


def validate_poll(result: object, wrong: Callable[..., ContractError]) -> tuple[Any, ...]:
    """Return the six nested dicts of `BaseEnv.poll`; `wrong` as in `validate_step`."""
    if isinstance(result, Ready):
        fix = "set returns_table = True on the class"
        raise wrong("poll", "returned a menv.Ready", "six nested dicts", fix)
    if not isinstance(result, tuple | list) or len(result) != 6:
        raise wrong(
            "poll", f"returned {how_many(result)}", f"six nested dicts ({', '.join((*STEP_PARTS, _TAKEN))})",
            "split the old `dones` into terminateds and truncateds", "ME020",
        )  # fmt: skip
    for name, part in zip((*STEP_PARTS, _TAKEN), result, strict=True):
        if not isinstance(part, Mapping) or not all(isinstance(one, Mapping) for one in part.values()):
            got = f"{name} is not a dict of dicts"
            fix = "key by sub-environment first, then by agent"
            raise wrong("poll", got, "{env_id: {agent_id: value}}", fix, "ME021")
    return tuple(result)


# In the next three functions `where(method)` makes the beginning of an error.


def flag_of(flags: Mapping[AgentId, Any], agent: AgentId, where: Callable[[str], str]) -> bool:
    """Return an agent's flag, False if it has none."""
    flag = flags.get(agent)
    if flag is None or flag is True or flag is False:
        return bool(flag)
    return as_flag(flag, f"{where('step')}: the flag of {agent!r}")


def refuse_none(flags: Mapping[AgentId, Any], where: Callable[[str], str]) -> None:
    """Raise if a flag is None, which a function without a `return` gives."""
    for agent, flag in flags.items():
        if flag is None:
            as_flag(flag, f"{where('step')}: the flag of {agent!r}")


def any_set(
    terminateds: Mapping[AgentId, Any], truncateds: Mapping[AgentId, Any], where: Callable[[str], str]
) -> bool:
    """Return whether a flag is set."""
    try:
        return any(terminateds.values()) or any(truncateds.values())
    except (ValueError, RuntimeError):
        # An array or a tensor of several elements; the error names the agent.
        return any(flag_of(flags, agent, where) for flags in (terminateds, truncateds) for agent in flags)


def lasting(values: Mapping[AgentId, Any]) -> dict[AgentId, Any] | None:
    """Return a copy of flags or rewards, None if the environment could still change them, as views of an array."""
    return dict(values) if _IMMUTABLE.issuperset(map(type, values.values())) else None


def check_counts(names: Sequence[str], parts: Iterable[Any], num_envs: int, where: str) -> None:
    """Raise if parts of a step are not one value for each of E sub-environments; only observations have more axes."""
    for name, values in zip(names, parts, strict=True):
        several = name != "obs" and getattr(values, "ndim", 1) > 1
        counted = has_order(values)
        if counted and len(values) == num_envs and not several:
            continue
        got = f"{len(values)} values" if counted else how_many(values)
        if several:
            got = f"an array of shape {values.shape}"
        raise ContractError(
            f"{where}: returned {got} as {name}, expected {num_envs}, one for each sub-environment; "
            "fix its return value",
            "ME097",
        )


def count_empty(steps: int, where: str, all_ended: bool) -> int:
    """Return the number of env steps in a row in which no agent waited, one more than `steps`.

    Raises:
        ContractError: There are too many; `where` begins its message.
    """
    if steps < MAX_EMPTY_STEPS:
        return steps + 1
    since = ", since all agents ended" if all_ended else ""
    raise ContractError(
        f"{where}: no agent waited for an action in {MAX_EMPTY_STEPS} env steps in a row{since}, expected an "
        'observation for an agent that acts next; end the episode with "__all__" once all agents are gone',
        "ME045",
    )


def nested_answers(answers: object) -> Mapping[EnvId, Mapping[AgentId, Any]]:
    """Return the one argument of `send_actions`, or raise if it is not a dict of dicts."""
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
    """Return both forms of the arguments of `send_actions` as a new nested dict."""
    if actions is None:
        return {env_id: dict(answers) for env_id, answers in nested_answers(slots).items()}
    by_env: dict[EnvId, dict[AgentId, Any]] = {}
    numbers = slots.tolist() if isinstance(slots, np.ndarray) else list(map(int, slots))
    if len(actions) != len(numbers):
        raise wrong_count(len(actions), len(numbers))
    if numbers and not 0 <= min(numbers) <= max(numbers) < len(seats):
        slot = next(slot for slot in numbers if not 0 <= slot < len(seats))
        raise ContractError(
            f"send_actions: no agent has slot {slot}, expected slots of the last poll; pass Ready.slots or a part"
        )
    for slot, action in zip(numbers, actions, strict=True):
        env_id, agent = seats[slot]
        if env_id in by_env:
            by_env[env_id][agent] = action
        else:
            by_env[env_id] = {agent: action}
    return by_env


def of_only_agents(
    answers: object, index_of: Callable[[EnvId], int], waiting: Container[int]
) -> dict[int, Any]:
    """Return the actions of a nested dict by index, for sub-environments of one agent each.

    Empty answers to sub-environments that are not `waiting` are ignored.
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
    """Raise if the answered agents are not exactly the `agents` that wait."""
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


def as_rewards(rewards: Any, labels: Callable[[], Iterable[str]], hint: str = "") -> FloatArray:
    """Return R rewards as [R] float64.

    Args:
        rewards: A list or an array.
        labels: Called if a reward is invalid; gives the beginning of the error for each row.
        hint: What else can be done about an invalid reward.
    """
    try:
        # No dtype is given: texts would be parsed as numbers.
        numbers = np.asarray(rewards)
    except (TypeError, ValueError, RuntimeError):
        numbers = _NONE
    if numbers.dtype is not _FLOAT64 and numbers.dtype.kind in "fiub":
        numbers = numbers.astype(_FLOAT64)
    # The sum of squares is finite only if every reward is: one product instead of a check per reward.
    if numbers.ndim == 1 and numbers.dtype is _FLOAT64 and math.isfinite(numbers.dot(numbers)):
        return numbers
    return np.array([as_reward(*each, hint) for each in zip(rewards, labels(), strict=False)], np.float64)


def as_flags(flags: Any, where: str) -> npt.NDArray[Any]:
    """Return E flags as an array of numbers; `where` begins the error about one that is not a flag."""
    try:
        found = np.asarray(flags)
    except (TypeError, ValueError, RuntimeError):
        found = _NONE
    if found.ndim == 1 and found.dtype.kind in "biuf":
        return found
    return np.array([as_flag(flag, f"{where} of env {index}") for index, flag in enumerate(flags)], np.bool_)


def env_reward_labels(where: str) -> Iterator[str]:
    """Yield the beginning of errors about the rewards of all sub-environments."""
    return (f"{where}: the reward of env {index}" for index in itertools.count())


def reward_labels(trackers: Iterable[AgentTracker]) -> Iterator[str]:
    """Yield the beginning of an error about the reward of each row of some trackers."""
    for tracker in trackers:
        yield from map(tracker.reward_label, tracker.waiting.agents)


def possible_agents(env: object) -> frozenset[AgentId] | None:
    """Return the agents that may ever appear, None if the environment does not list them."""
    listed = getattr(env, "possible_agents", None)
    if listed is None:
        return None
    # A number, a text or an array is ambiguous.
    if not isinstance(listed, Collection) or isinstance(listed, str | np.ndarray):
        raise _wrong_agents(env, f"{type(listed).__name__} {str(listed)[:40]!r}")
    for agent in listed:
        if not isinstance(agent, Hashable):
            raise _wrong_agents(env, f"a collection with a {type(agent).__name__}")
    return frozenset(listed) or None


def _wrong_agents(env: object, got: str) -> ContractError:
    return ContractError(
        f"{type(env).__name__}: possible_agents is {got}, expected a list of agent ids; set it to all that may "
        "ever appear, or leave it out",
        "ME014",
    )


# Policies are built for the spaces of the first environment: a copy with other spaces would get invalid actions. The
# spaces of a `MultiAgentEnv` are not compared, because its copies may be different games with their own policies.


def declared(env: object) -> Declared:
    """Return the spaces of a single-agent environment, vectorised or not; {} for other environments."""
    kind = env_kind(env)
    if kind not in ("single_agent", "vector", "gym_vector"):
        return {}
    names = ("observation_space", "action_space")
    found = {name: getattr(env, f"single_{name}" if kind == "gym_vector" else name, None) for name in names}
    # An environment that is built in its first reset may have none yet.
    return {name: space for name, space in found.items() if isinstance(space, gym.Space)}


def check_spaces(label: str, env: object, first: Declared) -> None:
    """Raise if an environment's spaces have another kind or shape than `first`."""
    for name, space in declared(env).items():
        if name in first and not alike(space, first[name]):
            raise ContractError(
                f"{label}: its {name} is {space!s:.160}, expected one like that of the first environment, "
                f"{first[name]!s:.160}; declare the same in every copy, whatever its worker_index and vector_index"
            )


def check_worker(label: str, base_env: BaseEnv, first: object, like: Declared, num_envs: int = 0) -> None:
    """Raise if a worker's environments differ from the driver's environment, and close them.

    Args:
        label: The worker's name in errors.
        base_env: Its environments.
        first: The first of them.
        like: The spaces of the driver's environment.
        num_envs: How many each worker must have; 0 allows any number.
    """
    try:
        check_spaces(label, first, like)
        if num_envs and base_env.num_envs not in (0, num_envs):
            raise ContractError(
                f"{label}: {type(first).__name__} of {base_env.num_envs} sub-environments, expected {num_envs} as in "
                "the driver; create the same number of them whatever the worker_index"
            )
    except ContractError:
        base_env.stop()
        raise


def same_spaces(make_env: Callable[[int], Any], first: object) -> Callable[[int], Any]:
    """Return `make_env` with wrapped environments of PettingZoo, and a check that each has the spaces of `first`."""
    like = declared(first)

    def make(vector_index: int) -> Any:
        env = wrapped_if_foreign(make_env(vector_index))
        check_spaces(f"env {vector_index}", env, like)
        return env

    return make
