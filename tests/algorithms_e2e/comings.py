"""An environment whose agents die, pause and come back at random, over any kind of observation and action."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import ALL, AgentId
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

LENGTH = 9
OBSERVATIONS: dict[str, gym.Space[Any]] = {
    "numbers": gym.spaces.Box(-1.0, 1.0, (4,), np.float32),
    "choice": gym.spaces.Discrete(5),
    "image": gym.spaces.Box(0, 255, (24, 24, 1), np.uint8),
    "floats": gym.spaces.Box(0.0, 1.0, (24, 24, 1), np.float32),
}
ACTIONS: dict[str, gym.Space[Any]] = {
    "choice": gym.spaces.Discrete(3),
    "tuple": gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Discrete(3))),
    "dict": gym.spaces.Dict({"x": gym.spaces.Discrete(2), "y": gym.spaces.MultiDiscrete([2, 2])}),
    "box": gym.spaces.Box(-2.0, 2.0, (2,), np.float32),
    "boxes": gym.spaces.Tuple((gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Box(-1.0, 1.0, (1,)))),
}
SIZES = {"choice": (3,), "tuple": (2, 3), "dict": (2, 2, 2)}


class Comings(MultiAgentEnv):
    """Agents "a0", "a1", ... for `LENGTH` steps, terminated or truncated by chance; rewards are normal.

    Config: `obs` and `act` name spaces, `mask` puts masks beside the observations, `agents` counts, and `steady`
    agents only die, and neither pause nor come back. Actions that were not asked for, or not allowed, raise.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.sizes = SIZES[config.get("act", "choice")] if config.get("mask") else ()
        self.steady = config.get("steady", False)
        self.possible_agents = [f"a{number}" for number in range(config.get("agents", 3))]
        space = OBSERVATIONS[config.get("obs", "numbers")]
        self.shown = space
        if self.sizes:
            space = gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(sum(self.sizes)), "obs": space})
        self.act = ACTIONS[config.get("act", "choice")]
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, self.act)
        self.rng = np.random.default_rng(0)
        self.masks: dict[AgentId, npt.NDArray[np.int8]] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[AgentDict, AgentDict]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.at = 0
        self.alive, self.waiting = set(self.possible_agents), set(self.possible_agents)
        return {agent: self.observe(agent) for agent in self.possible_agents}, {}

    def observe(self, agent: AgentId) -> Any:
        obs: Any
        if isinstance(self.shown, gym.spaces.Discrete):
            obs = int(self.rng.integers(self.shown.n))
        elif self.shown.dtype == np.uint8:
            obs = self.rng.integers(0, 256, self.shown.shape).astype(np.uint8)
        else:
            obs = self.rng.uniform(0.0, 1.0, self.shown.shape).astype(np.float32)
        if not self.sizes:
            return obs
        flags = self.rng.random(sum(self.sizes)) < 0.5
        for number, size in enumerate(self.sizes):
            flags[sum(self.sizes[:number]) + self.rng.integers(size)] = True
        self.masks[agent] = flags.astype(np.int8)
        return {"action_mask": self.masks[agent], "obs": obs}

    def step(self, action_dict: AgentDict) -> StepDicts:
        assert set(action_dict) == self.waiting
        for agent, action in action_dict.items():
            self.check(agent, action)
        self.at += 1
        over = self.at == LENGTH
        rewards = {agent: float(self.rng.normal()) for agent in self.possible_agents if agent in self.alive}
        obs: AgentDict = {}
        dead: AgentDict = {}
        self.waiting = set()
        for agent in self.possible_agents:
            dies, pauses, returns = self.rng.random(3) < (0.15, 0.2, 0.3)
            if over and agent in self.alive:
                obs[agent] = self.observe(agent)
            elif agent in self.alive and dies and len(self.alive) > 1:
                self.alive.discard(agent)
                obs[agent], dead[agent] = self.observe(agent), True
            elif (agent in self.alive and (self.steady or not pauses)) or (
                agent not in self.alive and returns and not self.steady and not over
            ):
                self.alive.add(agent)
                self.waiting.add(agent)
                obs[agent] = self.observe(agent)
        truncated = over and bool(self.rng.random() < 0.5)
        return obs, rewards, {**dead, ALL: over and not truncated}, {ALL: truncated}, {}

    def check(self, agent: AgentId, action: Any) -> None:
        assert self.act.contains(action)
        if self.sizes:
            chosen = np.asarray(gym.spaces.flatten(self.act, action), np.bool_)
            assert self.masks[agent][chosen].all()
