"""Environments and a policy of the golden runs. Workers import this module, so it does not import torch."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from menv import (
    BaseEnv,
    End,
    EpisodeEnd,
    ExternalEnv,
    ExternalMultiAgentEnv,
    Join,
    MultiAgentEnv,
    Policy,
    Ready,
    VectorEnv,
)
from menv.envs import TwoStepGame

LENGTH = 9
NUMBERS = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
CHOICE = gym.spaces.Discrete(3)
OBSERVATIONS: dict[str, gym.Space[Any]] = {
    "numbers": NUMBERS,
    "image": gym.spaces.Box(0, 255, (12, 12, 1), np.uint8),
    "nested": gym.spaces.Dict({"at": NUMBERS, "kind": gym.spaces.Discrete(3)}),
}
ACTIONS: dict[str, gym.Space[Any]] = {
    "choice": CHOICE,
    "dict": gym.spaces.Dict({"x": gym.spaces.Discrete(2), "y": gym.spaces.MultiDiscrete([2, 2])}),
    "box": gym.spaces.Box(-2.0, 2.0, (2,), np.float32),
    "mixed": gym.spaces.Dict({"brake": gym.spaces.Discrete(3), "steer": gym.spaces.Box(-1.0, 1.0, (1,))}),
}


class Crowd(MultiAgentEnv):
    """Agents "a0", "a1", ... that die, pause and return at random, for `LENGTH` steps; rewards are random.

    Config: `obs` and `act` name spaces, `agents` counts, `mask` adds action masks, and with `steady` agents only die.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        config = config or {}
        self.possible_agents = [f"a{number}" for number in range(config.get("agents", 3))]
        self.shown, self.steady = OBSERVATIONS[config.get("obs", "numbers")], config.get("steady", False)
        self.masked = config.get("mask", False)
        space = self.shown
        if self.masked:
            space = gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(3), "obs": space})
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, ACTIONS[config.get("act", "choice")])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.at, self.alive = 0, set(self.possible_agents)
        return {agent: self.observe() for agent in self.possible_agents}, {}

    def observe(self) -> Any:
        seen: Any = self.rng.uniform(-1.0, 1.0, 4).astype(np.float32)
        if isinstance(self.shown, gym.spaces.Dict):
            seen = {"at": seen, "kind": int(self.rng.integers(3))}
        elif self.shown.dtype == np.uint8:
            seen = self.rng.integers(0, 256, self.shown.shape).astype(np.uint8)
        if not self.masked:
            return seen
        mask = (self.rng.random(3) < 0.5).astype(np.int8)
        mask[self.rng.integers(3)] = 1
        return {"action_mask": mask, "obs": seen}

    def step(self, action_dict: Any) -> Any:
        self.at += 1
        over = self.at == LENGTH
        rewards = {agent: float(self.rng.normal()) for agent in self.possible_agents if agent in self.alive}
        obs: dict[Any, Any] = {}
        dead: dict[Any, bool] = {}
        for agent in self.possible_agents:
            dies, pauses, returns = self.rng.random(3) < (0.15, 0.2, 0.3)
            if agent in self.alive and dies and not over and len(self.alive) > 1:
                self.alive.discard(agent)
                obs[agent], dead[agent] = self.observe(), True
            elif agent in self.alive and (over or self.steady or not pauses):
                obs[agent] = self.observe()
            elif agent not in self.alive and returns and not self.steady and not over:
                self.alive.add(agent)
                obs[agent] = self.observe()
        truncated = over and bool(self.rng.random() < 0.5)
        return obs, rewards, {**dead, "__all__": over and not truncated}, {"__all__": truncated}, {}


def teams(config: Any) -> Any:
    return Crowd(config).with_agent_groups({"team": ["a0", "a1"], "pair": ["a2", "a3"]})


def team_and_others(config: Any) -> Any:
    return Crowd(config).with_agent_groups({"team": ["a0", "a1"]})


def two_steps(config: Any) -> Any:
    return TwoStepGame({"with_state": True}).with_agent_groups({"team": ["agent_1", "agent_2"]})


class Walk(gym.Env[Any, Any]):
    """A random walk; `image` shows it as pixels, and the `crash_at`-th step of each copy raises."""

    action_space = CHOICE

    def __init__(self, config: Any = None) -> None:
        config = config or {}
        self.image, self.crash_at, self.steps = config.get("image"), config.get("crash_at", 0), 0
        self.observation_space = OBSERVATIONS["image" if self.image else "numbers"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.t = self.np_random.uniform(-0.5, 0.5, 4), 0
        return self.see(), {}

    def see(self) -> Any:
        if self.image:
            pixels = np.zeros((12, 12, 1), np.uint8)
            pixels[int(self.at[0] * 5 + 6), int(self.at[1] * 5 + 6)] = 255
            return pixels
        return self.at.astype(np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == self.crash_at:
            raise RuntimeError(f"step {self.steps}")
        self.t += 1
        move = self.np_random.normal(0.0, 0.1, 4) + 0.1 * (int(action) - 1)
        self.at = np.clip(self.at + move, -1.0, 1.0)
        return self.see(), float(-abs(self.at).sum()), abs(self.at[0]) >= 1.0, self.t == 15, {}


def sync_vector(config: Any) -> Any:
    return SyncVectorEnv([Walk] * 3, autoreset_mode=AutoresetMode.SAME_STEP)


def entry_point_vector(config: Any) -> Any:
    return gym.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")


def list_vector(config: Any) -> Any:
    return VectorEnv.vectorize_gym_envs(make_env=lambda index: Walk(), num_envs=3)


class SixDicts(BaseEnv):
    """A custom `BaseEnv` that returns nested dicts and hosts three `Crowd`s."""

    def __init__(self, context: Any) -> None:
        self.games = [Crowd(context) for _ in range(3)]
        self.possible_agents, self.num_envs = self.games[0].possible_agents, 3
        self.observation_space, self.action_space = NUMBERS, CHOICE
        self.out: dict[int, Any] = {}
        for number, game in enumerate(self.games):
            obs, infos = game.reset(seed=number)
            self.out[number] = (obs, {}, {"__all__": False}, {"__all__": False}, infos, {})

    def poll(self, timeout: float | None = None) -> Any:
        out, self.out = self.out, {}
        return tuple({number: parts[place] for number, parts in out.items()} for place in range(6))

    def send_actions(self, action_dict: Any) -> None:  # type: ignore[override]
        for number, actions in action_dict.items():
            self.out[number] = (*self.games[number].step(actions), {})

    def try_reset(self, env_id: Any = None, **kwargs: Any) -> Any:
        obs, infos = self.games[env_id].reset()
        return {env_id: obs}, {env_id: infos}


class Shoal(BaseEnv):
    """A custom `BaseEnv` that returns tables: 3 worlds of 4 agents that step together."""

    returns_table = lockstep = True
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = CHOICE

    def __init__(self, context: Any) -> None:
        self.num_envs, self.t, self.rng = 3, LENGTH, np.random.default_rng(context.worker_index)
        self.slots, self.seats = np.arange(12), [divmod(slot, 4) for slot in range(12)]
        self.at, self.paid, self.env_steps = np.zeros((3, 4, 2)), np.zeros(12), np.zeros(3, np.int64)

    def poll(self, timeout: float | None = None) -> Ready:
        if self.t < LENGTH:
            return Ready(self.slots, self.see(), self.paid, self.env_steps)
        over, last = self.env_steps[0] > 0, self.see()
        ended = [End(s, *a, self.paid[s], False, True, last[s], {}) for s, a in enumerate(self.seats) if over]
        episodes = [EpisodeEnd(world, False, True, LENGTH, world) for world in range(3) if over]
        joined = [Join(s, *a, a[0]) for s, a in enumerate(self.seats)]
        self.at, self.t = self.rng.normal(size=(3, 4, 2)), 0
        return Ready(self.slots, self.see(), np.zeros(12), self.env_steps, joined, ended, episodes)

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self.at, self.t = self.at + (np.asarray(actions).reshape(3, 4, 1) - 1) / 10, self.t + 1
        self.paid, self.env_steps = -np.linalg.norm(self.see(), axis=1), self.env_steps + 1

    def see(self) -> Any:
        return (self.at.mean(1, keepdims=True) - self.at).reshape(12, 2).astype(np.float32)


class Counter(ExternalEnv):
    """Counts up, one episode after the other; `LoggingCounter` logs one action of each."""

    logs = False

    def __init__(self, context: Any) -> None:
        super().__init__(action_space=gym.spaces.Discrete(2), observation_space=gym.spaces.Discrete(10))

    def run(self) -> None:
        for played in itertools.count():
            episode_id = self.start_episode(f"episode {played}")
            for number in range(9):
                if self.logs and number == 4:
                    action = played % 2
                    self.log_action(episode_id, number, action)
                else:
                    action = self.get_action(episode_id, number)
                self.log_returns(episode_id, float(action == (number % 2 == 0)))
            self.end_episode(episode_id, 9)


class LoggingCounter(Counter):
    logs = True


class TwoCounters(ExternalMultiAgentEnv):
    """The same for two agents."""

    def __init__(self, context: Any) -> None:
        super().__init__(action_space=gym.spaces.Discrete(2), observation_space=gym.spaces.Discrete(10))

    def run(self) -> None:
        for played in itertools.count():
            episode_id = self.start_episode(f"episode {played}")
            for number in range(9):
                actions = self.get_action(episode_id, {"even": number, "odd": number})
                self.log_returns(episode_id, {agent: float(said) for agent, said in actions.items()})
            self.end_episode(episode_id, {"even": 9, "odd": 9})


class Counting(Policy):
    """Acts by a count of its own actions, which is its state."""

    def get_initial_state(self) -> list[Any]:
        return [np.zeros(1)]

    def compute_actions(
        self, obs_batch: Any, state_batches: Any = None, *args: Any, **kwargs: Any
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        return [int(state[0]) % 3 for state in state_batches[0]], [state_batches[0] + 1], {}
