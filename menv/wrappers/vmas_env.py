"""`VmasEnv`: a VMAS simulator, which steps many worlds as tensors, as a `BaseEnv`.

Its tensors become the columns of a `Ready`: a step creates no Python object for each world. It does not import torch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import AgentId, BaseEnv, Columns, End, EnvId, EpisodeEnd, Join, Ready
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.wrappers.legacy_gym import to_gymnasium

Array = npt.NDArray[Any]


class VmasEnv(BaseEnv):
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
        seed: Seeds the worlds. None samples a seed from Python's `random`, so that workers differ and a run with the
            setting `seed` is reproducible.
        settings: Arguments of `vmas.make_env` where `env` is a scenario, such as `num_envs` and `max_steps`. Actions
            are clamped to their range unless you pass `clamp_actions=False`.

    Raises:
        ConfigError: VMAS is not installed, or `env` is something else.

    Attributes:
        env: The environment of VMAS.
        infos: The infos of the last step, a dict of tensors [worlds, ...] for each agent.
    """

    returns_table = lockstep = True

    def __init__(self, env: Any, *, seed: int | None = None, **settings: Any) -> None:
        self.env = _make(env, settings)
        self.env.terminated_truncated = True
        self.num_envs = int(self.env.num_envs)
        self.possible_agents = [agent.name for agent in self.env.agents]
        self.observation_space = self._by_agent("observation_space", _flat)
        self.action_space = self._by_agent("action_space", lambda space: space)
        self.infos: Any = None
        self._seed = random.getrandbits(31) if seed is None else seed
        self._random = list(self.env.vmas_random_state)
        # Rows: the first agent in all worlds, then the second one.
        self._slots = np.arange(len(self.possible_agents) * self.num_envs)
        self._env_steps = np.zeros(self.num_envs, np.int64)
        self._began = np.zeros(self.num_envs, np.int64)
        # The worlds' next table: None before the first step and while it waits for actions.
        self._ready: Ready | None = None
        self._started = False

    def poll(self, timeout: float | None = None) -> Ready:
        """Return the rows of all agents in all worlds."""
        if not self._started:
            self._started = True
            obs = _columns(self._call("reset", seed=self._seed))
            self._ready = self._table(obs, joined=self._joined(range(self.num_envs)))
        ready, self._ready = self._ready, None
        return ready or Ready(self._slots[:0], [], np.zeros(0), self._env_steps)

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Step all worlds with an action of each row.

        Raises:
            CallOrderError: No agent waits.
            ContractError: An action is missing.
        """
        if not self._started or self._ready is not None:
            raise CallOrderError("VmasEnv.send_actions: no agent waits, expected poll first; call poll")
        if len(slots) != len(self._slots):
            raise ContractError(
                f"VmasEnv.send_actions: {len(slots)} actions, expected {len(self._slots)}, one for each row, because "
                "all worlds step together; answer all rows of the last poll"
            )
        if not np.array_equal(slots, self._slots):
            places = np.argsort(slots)
            actions = actions[places] if isinstance(actions, np.ndarray) else [actions[at] for at in places]
        worlds = self.num_envs
        parts = [actions[first : first + worlds] for first in range(0, len(slots), worlds)]
        self._set_step(
            *self._call("step", [np.asarray(part, np.float32).reshape(worlds, -1) for part in parts])
        )

    def get_agent_ids(self) -> set[AgentId]:
        return set(self.possible_agents)

    def try_render(self, env_id: EnvId | None = None) -> Any:
        """Return a picture of one world, the first by default."""
        return self.env.render(mode="rgb_array", env_index=env_id or 0)

    def _set_step(self, obs: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any) -> None:
        self.infos = infos
        self._env_steps = self._env_steps + 1
        columns, rewards = _columns(obs), np.concatenate(list(map(_array, _listed(rewards))))
        over, cut = _array(terminated), _array(truncated)
        done = np.flatnonzero(over | cut)
        if not len(done):
            self._ready = self._table(columns, rewards)
            return
        lengths = self._env_steps - self._began
        flags = [(world, bool(over[world]), not over[world]) for world in done.tolist()]
        ended = [
            End(slot, world, agent, float(rewards[slot]), terminated, truncated, column[world].copy(), {})
            for place, (agent, column) in enumerate(zip(self.possible_agents, columns, strict=True))
            for world, terminated, truncated in flags
            for slot in [place * self.num_envs + world]
        ]
        episodes = [EpisodeEnd(*flag, int(lengths[flag[0]]), flag[0]) for flag in flags]
        self._began[done] = self._env_steps[done]
        columns = self._reset(columns, done)
        rewards = np.where(np.isin(self._slots % self.num_envs, done), 0.0, rewards)
        self._ready = self._table(columns, rewards, self._joined(done.tolist()), ended, episodes)

    def _reset(self, columns: list[Array], done: Array) -> list[Array]:
        if len(done) == self.num_envs:
            return _columns(self._call("reset"))
        for world in done.tolist():
            self._call("reset_at", world, return_observations=False)
        (obs,) = self._call(
            "get_from_scenario", get_observations=True, get_rewards=False, get_infos=False, get_dones=False
        )
        columns = [column.copy() for column in columns]
        for column, fresh in zip(columns, _columns(obs), strict=True):
            column[done] = fresh[done]
        return columns

    def _table(
        self, columns: list[Array], rewards: Array | None = None, joined: Any = (), *ends: Any
    ) -> Ready:
        rewards = np.zeros(len(self._slots)) if rewards is None else rewards
        same_shape = len({column.shape[1:] for column in columns}) == 1
        obs = np.concatenate(columns) if same_shape else Columns(columns)
        return Ready(self._slots, obs, rewards, self._env_steps, joined, *ends)

    def _joined(self, worlds: Sequence[int]) -> list[Join]:
        return [
            Join(place * self.num_envs + world, world, agent, world)
            for place, agent in enumerate(self.possible_agents)
            for world in worlds
        ]

    def _by_agent(self, name: str, of_one: Any) -> gym.spaces.Dict:
        spaces = getattr(self.env, name).spaces
        # A Dict of the old gym sorts its keys.
        keys = self.possible_agents if isinstance(spaces, Mapping) else range(len(spaces))
        each = [of_one(to_gymnasium(spaces[key], f"{name} of {key!r}")) for key in keys]
        return gym.spaces.Dict(list(zip(self.possible_agents, each, strict=True)))

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


def _columns(obs: object) -> list[Array]:
    return [_column(one) for one in _listed(obs)]


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
