"""Environments of the learning benchmark that have no name of their own.

VMAS worlds, a larger field of Jumanji's foraging, a game whose agents get equal spaces for VDN and QMIX, connect four
against fixed opponents, and two environments of Gymnasium with a wider observation space.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.self_play import lookahead, random_move
from examples.connect_four import ConnectFour
from menv.base_env import ALL
from menv.env_context import EnvContext
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.registry import make_env
from menv.wrappers import JumanjiEnv, VmasEnv

Opponent = Callable[[Any, Any, np.random.Generator], int]
"""Returns a move for the mover's planes [2 * 42] and mask [7]."""


def worlds(scenario: str, context: EnvContext, continuous: bool = False) -> VmasEnv:
    """Return 64 worlds of a scenario of VMAS, with episodes of 100 steps."""
    return VmasEnv(scenario, num_envs=64, max_steps=100, continuous_actions=continuous)


def simple_speaker_listener(context: EnvContext) -> MultiAgentEnv:
    """Return the game with equal spaces for both agents, which one network needs."""
    return Padded(make_env("pettingzoo:mpe/simple_speaker_listener_v4", context))


class Padded(MultiAgentEnv):
    """An environment whose agents have one space each for observations and actions, the largest ones.

    Observations are filled up with zeros, and `action_mask` forbids the actions that an agent does not have.
    """

    def __init__(self, env: MultiAgentEnv) -> None:
        super().__init__()
        self.env = env
        self.possible_agents = env.possible_agents
        self._sizes: dict[Any, int] = {}
        self._choices: dict[Any, int] = {}
        for agent in self.possible_agents:
            seen: Any = env.get_observation_space(agent)
            moves: Any = env.get_action_space(agent)
            self._sizes[agent], self._choices[agent] = seen.shape[0], int(moves.n)
        most = max(self._choices.values())
        space = gym.spaces.Dict(
            {
                "observation": gym.spaces.Box(-np.inf, np.inf, (max(self._sizes.values()),), np.float32),
                "action_mask": gym.spaces.MultiBinary(most),
            }
        )
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(most))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start an episode."""
        obs, infos = self.env.reset(seed=seed, options=options)
        self.agents = self.env.agents
        return self._filled(obs), infos

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Step the environment."""
        obs, rewards, terminateds, truncateds, infos = self.env.step(action_dict)
        self.agents = self.env.agents
        return self._filled(obs), rewards, terminateds, truncateds, infos

    def _filled(self, obs: AgentDict) -> AgentDict:
        size, most = max(self._sizes.values()), max(self._choices.values())
        return {
            agent: {
                "observation": np.pad(seen, (0, size - self._sizes[agent])),
                "action_mask": np.arange(most) < self._choices[agent],
            }
            for agent, seen in obs.items()
        }


class Against(MultiAgentEnv):
    """Connect four: the policy has one seat, drawn for each game, and `opponent` plays the other one."""

    def __init__(self, opponent: Opponent, context: EnvContext) -> None:
        super().__init__()
        self.env, self._opponent = ConnectFour(), opponent
        self.possible_agents = self.env.possible_agents
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start a game, and let the opponent begin if it has the first seat."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._own = self.possible_agents[self._rng.integers(2)]
        self.agents = [self._own]
        obs, _ = self.env.reset(seed=seed, options=options)
        first = self._played(obs, {}, {ALL: False}, {ALL: False}, {})
        return first[0], {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Make the policy's move and the opponent's."""
        return self._played(*self.env.step(action_dict))

    def _played(self, *result: Any) -> StepDicts:
        earned = 0.0
        while True:
            obs, rewards, terminateds, truncateds, _ = result
            earned += rewards.get(self._own, 0.0)
            if self._own in obs:
                over = {ALL: terminateds[ALL]}, {ALL: truncateds[ALL]}
                return {self._own: obs[self._own]}, {self._own: earned}, *over, {}
            ((other, seen),) = obs.items()
            result = self.env.step(
                {other: self._opponent(seen["observations"], seen["action_mask"], self._rng)}
            )


class PgxAgainst(Against):
    """The same, with the observations of `pgx:connect_four`."""

    def __init__(self, opponent: Opponent, context: EnvContext) -> None:
        super().__init__(opponent, context)
        board, mask = gym.spaces.Box(-np.inf, np.inf, (6, 7, 2), np.float32), gym.spaces.MultiBinary(7)
        self.observation_space = gym.spaces.Dict({"observation": board, "action_mask": mask})

    def _played(self, *result: Any) -> StepDicts:
        obs, rewards, terminateds, truncateds, infos = super()._played(*result)
        ((own, seen),) = obs.items()
        board = seen["observations"].reshape(2, 6, 7).transpose(1, 2, 0)
        shown = {"observation": board, "action_mask": seen["action_mask"]}
        return {own: shown}, rewards, terminateds, truncateds, infos


def foraging_15x15(context: EnvContext) -> JumanjiEnv:
    """Return worlds of level-based foraging: 3 agents with 5 foods on a grid of 15 x 15 cells, 50 steps an episode."""
    from jumanji.environments import LevelBasedForaging
    from jumanji.environments.routing.lbf.generator import RandomGenerator

    generator = RandomGenerator(grid_size=15, fov=15, num_agents=3, num_food=5)
    return JumanjiEnv(LevelBasedForaging(generator=generator, time_limit=50), **context)


def unbounded(name: str, context: EnvContext) -> gym.Env[Any, Any]:
    """Return an environment of Gymnasium that makes observations outside its own space, with a space that has them."""
    env = gym.make(name)
    assert env.observation_space.shape is not None
    space = gym.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs, space)


lunar_lander, bipedal_walker = (partial(unbounded, name) for name in ("LunarLander-v3", "BipedalWalker-v3"))
balance, navigation = (partial(worlds, scenario) for scenario in ("balance", "navigation"))
navigation_continuous = partial(worlds, "navigation", continuous=True)
connect_four_against_random = partial(Against, random_move)
pgx_against_random, pgx_against_lookahead = (partial(PgxAgainst, one) for one in (random_move, lookahead))
