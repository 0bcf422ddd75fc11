"""`VmasEnv`: a VMAS simulator, which steps many worlds as tensors, as a `VectorMultiAgentEnv`.

It does not import torch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import AgentId
from menv.errors import ConfigError
from menv.vector_env import VectorMultiAgentEnv
from menv.wrappers.legacy_gym import to_gymnasium

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]


class VmasEnv(VectorMultiAgentEnv):
    """All worlds of a VMAS environment, stepped together.

        register_env("balance", lambda context: VmasEnv("balance", num_envs=256, max_steps=100))

    - Sub-environments: the worlds, numbered from 0. Agents: VMAS's policy agents under their names. Scripted agents act
      inside the simulator.
    - Observations are float32. A scenario's Dict observation becomes one Box of its concatenated entries.
    - Actions: Box, Discrete or MultiDiscrete, depending on `continuous_actions` and `multidiscrete_actions`.
    - End: a world that is done is terminated, one that reaches `max_steps` is truncated. Each agent gets the last
      observation before the reset. Other worlds continue.
    - Agents with different spaces need different policies.
    - VMAS has one random state for all its environments in a process. Each `VmasEnv` keeps its own.

    Args:
        env: The name of a scenario, a scenario object, or a `vmas.simulator.environment.Environment`.
        seed: Seeds the worlds. None takes the seed of the first reset, which a run derives from its setting `seed`, or
            samples one from Python's `random`.
        settings: Arguments of `vmas.make_env` where `env` is a scenario, such as `num_envs` and `max_steps`. Actions
            are clamped to their range unless you pass `clamp_actions=False`.

    Raises:
        ConfigError: VMAS is not installed, or `env` is something else.

    Attributes:
        env: The environment of VMAS.
        infos: The infos of the last step, a dict of tensors [worlds, ...] for each agent.
    """

    _is_begun = False

    def __init__(self, env: Any, *, seed: int | None = None, **settings: Any) -> None:
        self.env = _make(env, settings)
        self.env.terminated_truncated = True
        self.num_envs = int(self.env.num_envs)
        self.possible_agents = [agent.name for agent in self.env.agents]
        self.observation_spaces = self._by_agent("observation_space", _flat)
        self.action_spaces = self._by_agent("action_space", lambda space: space)
        self.infos: Any = None
        self._seed = seed
        self._random = list(self.env.vmas_random_state)

    def reset(self, *, seed: int | None = None) -> tuple[Any, Mapping[str, Any]]:
        if not self._is_begun:
            seed = self._seed if self._seed is not None else random.getrandbits(31) if seed is None else seed
        self._is_begun = True
        return self._columns(self._call("reset", seed=seed)), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        told = [
            np.asarray(actions[agent], np.float32).reshape(self.num_envs, -1)
            for agent in self.possible_agents
        ]
        obs, rewards, over, cut, self.infos = self._call("step", told)
        columns, over, cut = self._columns(obs), _array(over), _array(cut)
        paid = dict(zip(self.possible_agents, map(_array, _listed(rewards)), strict=True))
        done = over | cut
        infos: dict[str, Any] = {}
        if done.any():
            infos = {"final_obs": columns, "_final_obs": done}
            columns = self._reset_done(columns, done)
        of_all = dict.fromkeys
        return columns, paid, of_all(columns, over), of_all(columns, cut & ~over), infos

    def render(self, index: int = 0) -> Any:
        """Return a picture of one world."""
        return self.env.render(mode="rgb_array", env_index=index)

    def _reset_done(self, columns: dict[AgentId, Array], done: Flags) -> dict[AgentId, Array]:
        """Reset the worlds that are done [W], and return the observations of all."""
        if done.all():
            return self._columns(self._call("reset"))
        # VMAS needs as much time for one world as for all: all are reset, and the others get their state back.
        state = VmasState.of(self.env, self.num_envs)
        if state is None:
            for world in np.flatnonzero(done).tolist():
                self._call("reset_at", world, return_observations=False)
        else:
            self._call("reset", return_observations=False)
            state.give_back(~done)
        (obs,) = self._call(
            "get_from_scenario", get_observations=True, get_rewards=False, get_infos=False, get_dones=False
        )
        fresh = self._columns(obs)
        columns = {agent: column.copy() for agent, column in columns.items()}
        for agent, column in columns.items():
            column[done] = fresh[agent][done]
        return columns

    def _columns(self, obs: object) -> dict[AgentId, Array]:
        """Return the observations [W, ...] of each agent."""
        return dict(zip(self.possible_agents, map(_column, _listed(obs)), strict=True))

    def _by_agent(self, name: str, of_one: Any) -> dict[AgentId, gym.Space[Any]]:
        spaces = getattr(self.env, name).spaces
        # A Dict of the old gym sorts its keys.
        keys = self.possible_agents if isinstance(spaces, Mapping) else range(len(spaces))
        each = [of_one(to_gymnasium(spaces[key], f"{name} of {key!r}")) for key in keys]
        return dict(zip(self.possible_agents, each, strict=True))

    def _call(self, method: str, *args: Any, **settings: Any) -> Any:
        """Call a method of VMAS in this environment's own random state."""
        shared = self.env.vmas_random_state
        before, shared[:] = list(shared), self._random
        try:
            return getattr(self.env, method)(*args, **settings)
        finally:
            self._random, shared[:] = list(shared), before


def _make(env: object, settings: Mapping[str, Any]) -> Any:
    if not isinstance(env, str) and not hasattr(env, "make_world"):
        if settings or not hasattr(env, "vmas_random_state"):
            raise ConfigError(
                f"VmasEnv: got a {type(env).__name__} and the settings {sorted(settings)}, expected a scenario and "
                'arguments of vmas.make_env, or what it returned without a wrapper; write VmasEnv("balance")'
            )
        return env
    try:
        import vmas
    except ImportError as error:
        raise ConfigError("VmasEnv: vmas cannot be imported; run: pip install vmas") from error
    return vmas.make_env(env, **{"num_envs": 32, "clamp_actions": True, **settings})


def _flat(space: gym.Space[Any]) -> gym.Space[Any]:
    if not isinstance(space, gym.spaces.Dict):
        return space
    size = sum(gym.spaces.flatdim(part) for part in space.spaces.values())
    return gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _column(obs: object) -> Array:
    if not isinstance(obs, Mapping):
        return _array(obs).astype(np.float32, copy=False)
    parts = [_column(part) for part in obs.values()]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _listed(values: Any) -> list[Any]:
    """Return the values of all agents; VMAS has them in a list, or in a dict in the same order."""
    return list(values.values() if isinstance(values, Mapping) else values)


def _array(tensor: Any) -> Array:
    """Return a tensor as an array, without a copy where it is in this process's memory."""
    array: Array = tensor.numpy(force=True)
    return array


class VmasState:
    """The attributes and entries of a simulator and of all its objects, with copies of the tensors [W, ...]."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._entries: dict[int, tuple[Any, dict[Any, Any]]] = {}

    @classmethod
    def of(cls, env: Any, count: int) -> VmasState | None:
        """Return the state of W worlds; None if some of it may be no tensor [W, ...]."""
        state, left = cls(env), [env]
        while left:
            holder = left.pop()
            if id(holder) in state._entries:
                continue
            entries = dict(_entries_of(holder))
            state._entries[id(holder)] = holder, entries
            for name, part in entries.items():
                if shape := _shape_of(part):
                    is_state = shape[:1] == (count,) and hasattr(part, "clone")
                    if shape.count(count) != is_state:
                        return None
                    if is_state:
                        entries[name] = part.clone()
                elif (
                    isinstance(part, list | tuple)
                    and len(part) == count
                    and isinstance(part[0], int | float | None)
                ):
                    return None
                else:
                    left.append(part)
        return state

    def give_back(self, kept: Flags) -> None:
        """Give the worlds that are `kept` [W] their rows of the tensors, and all worlds what they share."""
        # Objects with the ones that they have replaced.
        left, known = [(self._env, self._env)], set[int]()
        while left:
            holder, old = left.pop()
            if id(holder) in known or id(old) not in self._entries:
                continue
            known.add(id(holder))
            _, before = self._entries[id(old)]
            for name, part in _entries_of(holder):
                if name not in before:
                    continue
                was = before[name]
                if _shape_of(part)[:1] == (len(kept),):
                    if part.stride(0):  # 0: one value for all worlds
                        part[kept] = was[kept]
                elif part is not was and not isinstance(holder, tuple) and self._is_shared(part):
                    (holder if isinstance(holder, dict | list) else vars(holder))[name] = was
                    left.append((was, was))
                else:
                    left.append((part, part if id(part) in self._entries else was))

    def _is_shared(self, part: Any) -> bool:
        """Return whether an object has no separate state or is not new."""
        return id(part) in self._entries or not _entries_of(part)


def _shape_of(part: Any) -> tuple[int, ...]:
    shape = getattr(part, "shape", None)
    return shape if isinstance(shape, tuple) else ()


def _entries_of(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, list | tuple):
        return list(enumerate(holder))
    if isinstance(holder, type) or callable(holder):
        return []
    parts = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
    return [(name, part) for name, part in parts.items() if name != "viewer"]
