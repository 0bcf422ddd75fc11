"""`LegacyGym`: environments of the old gym API, for one agent or several, with the present API.

In the old API `reset()` returns the observation alone, `step` returns `(obs, reward, done, info)`, and
`seed(number)` is a method.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL, COMMON
from menv.env_calls import as_flag, close_env, how_many
from menv.errors import ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.spaces import has_order


def to_gymnasium(space: object, where: str = "space") -> gym.Space[Any]:
    """Return a space of the old gym (any version), or a list of spaces, as a gymnasium space."""
    if isinstance(space, gym.Space):
        return space
    # Some environments of several agents have a list of spaces.
    parts = space if isinstance(space, list | tuple) else getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return gym.spaces.Dict({key: to_gymnasium(part, f"{where}[{key!r}]") for key, part in parts.items()})
    if isinstance(parts, tuple | list):
        return gym.spaces.Tuple([to_gymnasium(part, f"{where}[{i}]") for i, part in enumerate(parts)])
    if hasattr(space, "low") and hasattr(space, "high"):
        return _box(space)
    if hasattr(space, "nvec"):
        return gym.spaces.MultiDiscrete(np.array(space.nvec, np.int64))
    if hasattr(space, "n"):
        # Discrete and MultiBinary both have n; early versions gave neither a shape.
        if getattr(space, "shape", None) or type(space).__name__ == "MultiBinary":
            return gym.spaces.MultiBinary(space.n)
        return gym.spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    raise ConfigError(
        f"LegacyGym: the {where} is {type(space).__name__}, expected Box, Discrete, MultiDiscrete, MultiBinary, Dict "
        "or Tuple of the old gym or of gymnasium; set observation_space and action_space in the environment's __init__"
    )


def _box(space: Any) -> gym.spaces.Box:
    dtype: Any = np.dtype(getattr(space, "dtype", None) or np.float32)
    # Bounds of a wider type than the elements are usual in old environments, and overflow to infinity.
    with np.errstate(over="ignore"):
        low, high = np.asarray(space.low).astype(dtype), np.asarray(space.high).astype(dtype)
    return gym.spaces.Box(low, high, dtype=dtype)


TRUNCATED_KEY = "TimeLimit.truncated"
"""In an info dict: whether a time limit ended the episode."""


class LegacyGym(gym.Env[Any, Any]):
    """An old environment as a `gymnasium.Env`; one of several agents becomes a `LegacyMultiAgent`.

        register_env("old", lambda context: LegacyGym(OldEnv(context)))

    - `done` is a truncation if `info["TimeLimit.truncated"]` is true, else a termination.
    - `reset(seed=...)` passes the seed to the environment's `reset` if that takes one, else to its
      `seed` method; an environment with neither keeps its own randomness.
    - Spaces of the old `gym` package become gymnasium spaces; the package need not be installed.
    - Values of the present API (an info from `reset`, five values from `step`) pass through.
    - Lists of one value for each agent stay lists, in spaces too: `MultiAgentGym(LegacyGym(env))` reads them.

    An environment has several agents if it is a `menv.MultiAgentEnv` or has one of the attributes `_agent_ids`,
    `get_agent_ids`, `possible_agents` and `with_agent_groups`.

    Attributes:
        env: The old environment.
    """

    def __new__(cls, env: Any, *, multi_agent: bool | None = None, render_mode: str | None = None) -> Any:
        """Return an instance, or a `LegacyMultiAgent` for an environment of many agents."""
        _check_steps(env)
        if _has_many_agents(env) if multi_agent is None else multi_agent:
            return LegacyMultiAgent(env, render_mode=render_mode)
        return super().__new__(cls)

    def __init__(self, env: Any, *, multi_agent: bool | None = None, render_mode: str | None = None) -> None:
        """Wrap `env`.

        Args:
            env: An environment of the old API.
            multi_agent: Whether its dicts are keyed by agent; None decides by its attributes.
            render_mode: Passed to its `render` as `mode`; None calls `render()`.

        Raises:
            ConfigError: `env` is not an environment, or has no spaces that gymnasium knows.
        """
        self.env = env
        self.observation_space = _space(env, "observation_space")
        self.action_space = _space(env, "action_space")
        self.metadata = _metadata(env)
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode and return `(obs, info)`; `options` reach a `reset` that takes them."""
        result = _reset(self.env, seed, options)
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return result if is_pair else (result, {})

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Take one step and return `(obs, reward, terminated, truncated, info)`.

        Raises:
            ContractError: The environment did not return four or five values.
        """
        result = _checked_step(self.env, self.env.step(action), "obs, reward, done, info")
        if len(result) == 5:
            present: tuple[Any, Any, Any, Any, Any] = result
            return present
        obs, reward, done, info = result
        truncated, whose = _is_truncated(info), f"{type(self.env).__name__}.step: done"
        several = has_order(done) and isinstance(self.action_space, gym.spaces.Tuple)
        dones = [as_flag(one, whose) for one in (done if several else [done])]
        flags = [one and not truncated for one in dones], [one and truncated for one in dones]
        return (obs, reward, *(flags if several else (flags[0][0], flags[1][0])), info)

    def render(self) -> Any:
        """Return what the environment renders."""
        return _render(self.env, self.render_mode)

    def close(self) -> None:
        """Close the environment, if it can be."""
        close_env(self.env)


class LegacyMultiAgent(MultiAgentEnv):
    """An old environment of several agents as a `MultiAgentEnv`; `LegacyGym` creates it.

    An agent's `done` is a truncation if its own `info["TimeLimit.truncated"]` is true; `"__all__"` is one if any
    agent's is. Infos that name no agent become `infos["__common__"]`. `observation_spaces` and `action_spaces` may be
    methods that take an agent.
    """

    def __init__(self, env: Any, *, render_mode: str | None = None) -> None:
        super().__init__()
        _check_steps(env)
        self.env = env
        self.possible_agents = _listed_agents(env)
        for name in ("observation_space", "action_space"):
            by_agent = getattr(env, f"{name}s", None)
            if callable(by_agent):
                setattr(self, f"{name}s", _converted(by_agent))
                continue
            if getattr(env, name, None) is not None:
                setattr(self, name, _space(env, name))
            if by_agent is not None:
                spaces = {
                    agent: to_gymnasium(space, f"{name}s[{agent!r}]") for agent, space in by_agent.items()
                }
                setattr(self, f"{name}s", spaces)
        self.metadata = _metadata(env)  # type: ignore[misc]
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start a new episode and return `(obs, infos)`; `options` reach a `reset` that takes them."""
        result = _reset(self.env, seed, options)
        obs, infos = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        self.agents = list(obs) if isinstance(obs, dict) else []
        return obs, infos

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Take one step and return the five dicts.

        Raises:
            ContractError: The environment did not return four or five values, or dones are no dict.
        """
        result = _checked_step(self.env, self.env.step(action_dict), "obs, rewards, dones, infos")
        if len(result) == 5:
            present: StepDicts = result
            return present
        obs, rewards, dones, infos = result
        if not isinstance(dones, dict) or not isinstance(infos, dict):
            raise ContractError(
                f"{type(self.env).__name__}.step: dones are {type(dones).__name__} and infos {type(infos).__name__}, "
                "expected dicts keyed by agent id; use LegacyGym(env, multi_agent=False) if there is one agent only"
            )
        whose = f"{type(self.env).__name__}.step: dones"
        dones = {agent: as_flag(done, f"{whose}[{agent!r}]") for agent, done in dones.items()}
        if infos and not infos.keys() & {*obs, *dones, *self.agents, COMMON}:
            infos = {COMMON: infos}
        truncated = {agent: _is_truncated(infos.get(agent)) for agent in {*dones, *infos} - {ALL}}
        truncated[ALL] = any(truncated.values())
        terminateds = {agent: done and not truncated[agent] for agent, done in dones.items()}
        truncateds = {agent: done and truncated[agent] for agent, done in dones.items()}
        gone = {agent for agent, done in dones.items() if done}
        self.agents = [] if ALL in gone else [a for a in dict.fromkeys([*self.agents, *obs]) if a not in gone]
        return obs, rewards, terminateds, truncateds, infos

    def render(self) -> Any:
        return _render(self.env, self.render_mode)

    def close(self) -> None:
        close_env(self.env)


def _check_steps(env: object) -> None:
    is_env = callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None))
    if isinstance(env, type) or not is_env:
        raise ConfigError(
            f"LegacyGym: got {env!s:.80}, expected an environment with reset and step; write LegacyGym(YourEnv(...))"
        )


def _converted(spaces_of: Callable[[Any], Any]) -> Callable[[Any], gym.Space[Any]]:
    return lambda agent: to_gymnasium(spaces_of(agent), f"space of agent {agent!r}")


def _has_many_agents(env: object) -> bool:
    signs = ("_agent_ids", "get_agent_ids", "possible_agents", "with_agent_groups")
    return any(hasattr(env, sign) for sign in signs)


def _listed_agents(env: Any) -> list[Any]:
    for name in ("possible_agents", "_agent_ids", "agents"):
        listed = getattr(env, name, None)
        if listed:
            return list(listed) if isinstance(listed, list | tuple) else sorted(listed, key=repr)
    return sorted(env.get_agent_ids(), key=repr) if hasattr(env, "get_agent_ids") else []


def _space(env: object, name: str) -> gym.Space[Any]:
    return to_gymnasium(getattr(env, name, None), f"{type(env).__name__}.{name}")


def _metadata(env: object) -> dict[str, Any]:
    old: dict[str, Any] = dict(getattr(env, "metadata", None) or {})
    modes = old.pop("render.modes", [])
    return {**old, "render_modes": list(old.get("render_modes", modes))}


def _reset(env: Any, seed: int | None, options: dict[str, Any] | None) -> Any:
    given = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
    if not given:
        return env.reset()
    # Old wrappers take any keyword and pass it to an environment that may take none.
    resets = (env.reset, getattr(env, "unwrapped", env).reset)
    taken = {name: value for name, value in given.items() if all(_takes(reset, name) for reset in resets)}
    if seed is not None and "seed" not in taken and hasattr(env, "seed"):
        env.seed(seed)
    return env.reset(**taken)


def _takes(reset: Any, keyword: str) -> bool:
    try:
        parameters = inspect.signature(reset).parameters
    except (TypeError, ValueError):  # some built-in callables do not tell
        return False
    return keyword in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _checked_step(env: object, result: object, four: str) -> Any:
    if not isinstance(result, tuple | list) or len(result) not in (4, 5):
        raise ContractError(
            f"{type(env).__name__}.step: returned {how_many(result)}, expected the four values of the old API ({four}) "
            "or the five of the current one; fix its step"
        )
    return tuple(result)


def _is_truncated(info: object) -> bool:
    return isinstance(info, dict) and bool(info.get(TRUNCATED_KEY))


def _render(env: Any, mode: str | None) -> Any:
    return env.render() if mode is None else env.render(mode=mode)
