"""An environment that counts, as every kind of base env, and how to look at its polls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from menv import BaseEnv, MultiAgentEnv, VectorEnv, to_base_env
from menv.base_env import ALL


class Counting(gym.Env[Any, Any]):
    """Observes its index and its step; an episode has three steps."""

    observation_space = gym.spaces.Box(0, 100, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, index: int = 0) -> None:
        self.index, self.at, self.resets, self.steps, self.closes = index, 0, 0, 0, 0

    def observe(self) -> Any:
        return np.array([self.index, self.at], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.resets = 0, self.resets + 1
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.at, self.steps = self.at + 1, self.steps + 1
        return self.observe(), 1.0, self.at == 3, False, {}

    def close(self) -> None:
        self.closes += 1


class CountingAgent(MultiAgentEnv):
    """The same with one agent that has a name."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.possible_agents = [AGENT]
        self.observation_space: Any = Counting.observation_space
        self.action_space: Any = Counting.action_space
        self.inner = Counting(index)

    @property
    def steps(self) -> int:
        return self.inner.steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = self.inner.reset(seed=seed)
        return {"agent0": obs}, {"agent0": info}

    def step(self, action_dict: Any) -> Any:
        obs, reward, over, _, info = self.inner.step(action_dict["agent0"])
        return {"agent0": obs}, {"agent0": reward}, {ALL: over}, {ALL: False}, {"agent0": info}


def sync(mode: AutoresetMode) -> Callable[[], Any]:
    return lambda: SyncVectorEnv([partial(Counting, index) for index in range(2)], autoreset_mode=mode)


MAKERS: dict[str, Callable[[], BaseEnv]] = {
    "gym": lambda: to_base_env(Counting(0), Counting, 2),
    "multi_agent": lambda: to_base_env(CountingAgent(0), CountingAgent, 2),
    "VectorEnv": lambda: VectorEnv.vectorize_gym_envs(Counting, num_envs=2).to_base_env(),
    "vector_disabled": lambda: to_base_env(sync(AutoresetMode.DISABLED)()),
    "vector_same_step": lambda: to_base_env(sync(AutoresetMode.SAME_STEP)()),
    "vector_next_step": lambda: to_base_env(sync(AutoresetMode.NEXT_STEP)()),
}
ALONE = ("gym", "multi_agent")
RESTARTS = (*ALONE, "VectorEnv")
AGENT = "agent0"
BOTH = {0: {AGENT: 0}, 1: {AGENT: 0}}


def seen(obs: Any) -> dict[Any, list[float]]:
    """Return the observation of each sub-environment that has one."""
    return {env_id: agents[AGENT].tolist() for env_id, agents in obs.items() if agents}


def walked(kind: str, steps: int = 1) -> BaseEnv:
    """Return a base env that was polled and stepped, and waits for actions."""
    base = MAKERS[kind]()
    base.poll()
    for _ in range(steps):
        base.send_actions(BOTH)
        base.poll()
    return base


def steps_taken(base: BaseEnv) -> list[int]:
    """Return how many steps each sub-environment has taken."""
    envs: list[Any] = base.get_sub_environments()
    return [getattr(env, "unwrapped", env).steps for env in envs]
