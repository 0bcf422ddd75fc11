"""An environment that counts, as every kind of base env, and how to look at its polls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from menv import BaseEnv, VectorEnv, to_base_env
from tests.worlds import Alone, Several

AGENT = "agent0"


class Counting(Alone):
    """Observes its index and its step; an episode has three steps."""

    observation_space, length = gym.spaces.Box(0, 100, (2,), np.float32), 3

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index, self.steps, self.closes = index, 0, 0

    def see(self) -> Any:
        return np.array([self.index, self.at], np.float32)

    def pay(self, action: Any) -> float:
        self.steps += 1
        return 1.0

    def close(self) -> None:
        self.closes += 1


class CountingAgent(Several):
    """The same with one agent that has a name."""

    possible_agents, observation_space, length = (AGENT,), Counting.observation_space, 3

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index, self.steps = index, 0

    def see(self, agent: Any) -> Any:
        return np.array([self.index, self.at], np.float32)

    def pay(self, actions: Any) -> Any:
        self.steps += 1
        return super().pay(actions)

    def infos(self) -> Any:
        return {AGENT: {}}


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
