"""Environments of the learning benchmark that have no name of their own.

VMAS worlds, a task of level-based foraging that its package does not register, teams for VDN and QMIX, games
against a player that moves at random, and two environments of Gymnasium with a wider observation space.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL
from menv.env_context import EnvContext
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.registry import make_env
from menv.wrappers import VmasEnv


def worlds(scenario: str, context: EnvContext) -> VmasEnv:
    """Return 64 worlds of a scenario of VMAS, with discrete actions and episodes of 100 steps."""
    return VmasEnv(scenario, num_envs=64, max_steps=100, continuous_actions=False)


def foraging(task: str, context: EnvContext, **kwargs: Any) -> MultiAgentEnv:
    """Return a task of level-based foraging; `kwargs` are arguments of its class."""
    settings = {"disable_env_checker": True, **kwargs}
    made: MultiAgentEnv = make_env(f"lbforaging:Foraging-{task}-v3", EnvContext(settings))
    return made


def team(name: str, context: EnvContext, **kwargs: Any) -> MultiAgentEnv:
    """Return an environment whose agents are one group; `kwargs` are arguments of its class."""
    env: MultiAgentEnv = make_env(name, EnvContext(kwargs))
    return env.with_agent_groups({"team": env.possible_agents})


class AgainstRandom(MultiAgentEnv):
    """A turn-based game: the policy has one seat, drawn for each episode, and the others move at random."""

    def __init__(self, name: str, context: EnvContext) -> None:
        super().__init__()
        self.env: MultiAgentEnv = make_env(name, context)
        self.possible_agents = self.env.possible_agents
        self.observation_spaces = {
            agent: self.env.get_observation_space(agent) for agent in self.possible_agents
        }
        self.action_spaces = {agent: self.env.get_action_space(agent) for agent in self.possible_agents}
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start a game, and let the others move until it is the policy's turn."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._own = self.possible_agents[self._rng.integers(len(self.possible_agents))]
        self.agents = [self._own]
        obs, _ = self.env.reset(seed=seed, options=options)
        first = self._played(obs, {}, {ALL: False}, {ALL: False}, {})
        return first[0], {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Make the policy's move, and let the others move until its next turn."""
        return self._played(*self.env.step(action_dict))

    def _played(self, *result: Any) -> StepDicts:
        earned = 0.0
        while True:
            obs, rewards, terminateds, truncateds, _ = result
            earned += rewards.get(self._own, 0.0)
            over = {ALL: terminateds[ALL]}, {ALL: truncateds[ALL]}
            if self._own in obs or terminateds[ALL] or truncateds[ALL]:
                return {self._own: obs[self._own]}, {self._own: earned}, *over, {}
            legal = {agent: np.flatnonzero(seen["action_mask"]) for agent, seen in obs.items()}
            result = self.env.step({agent: int(self._rng.choice(moves)) for agent, moves in legal.items()})


def unbounded(name: str, context: EnvContext) -> gym.Env[Any, Any]:
    """Return an environment of Gymnasium that makes observations outside its own space, with a space that has them."""
    env = gym.make(name)
    assert env.observation_space.shape is not None
    space = gym.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs, space)


lunar_lander, bipedal_walker = (partial(unbounded, name) for name in ("LunarLander-v3", "BipedalWalker-v3"))
foraging_15x15_3p_5f = partial(foraging, "15x15-3p-4f", max_num_food=5)
foraging_8x8_2p_2f_coop_team = partial(
    team, "lbforaging:Foraging-8x8-2p-2f-coop-v3", disable_env_checker=True
)
simple_spread_team = partial(team, "pettingzoo:mpe/simple_spread_v3")
balance, navigation = (partial(worlds, scenario) for scenario in ("balance", "navigation"))
leduc_against_random = partial(AgainstRandom, "openspiel:leduc_poker")
connect_four_against_random = partial(AgainstRandom, "connect_four")
