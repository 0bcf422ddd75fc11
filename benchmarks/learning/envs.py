"""Environments of the learning benchmark that have no name of their own.

VMAS worlds, a task of level-based foraging that its package does not register, teams for VDN and QMIX, games
against a player that moves at random, and two environments of Gymnasium with a wider observation space.

A team is one agent to its policy: its observations and actions are the Tuples of the members', and it earns the sum
of their rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL
from menv.env_context import EnvContext
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.registry import make_env
from menv.vector_env import StepLists, VectorEnv
from menv.wrappers import VmasEnv

WORLDS: dict[str, Any] = {"num_envs": 64, "max_steps": 100, "continuous_actions": False}


def worlds(scenario: str, context: EnvContext) -> VmasEnv:
    """Return 64 worlds of a scenario of VMAS, with discrete actions and episodes of 100 steps."""
    return VmasEnv(scenario, **WORLDS)


class WorldsTeam(VectorEnv):
    """`worlds`, with the agents of each world as a team."""

    def __init__(self, scenario: str, context: EnvContext) -> None:
        import vmas

        self.env: Any = vmas.make_env(scenario, **WORLDS)
        self.env.terminated_truncated = True
        # The spaces are those of the older package gym.
        super().__init__(
            gym.spaces.Tuple(
                gym.spaces.Box(-np.inf, np.inf, seen.shape, np.float32) for seen in self.env.observation_space
            ),
            gym.spaces.Tuple(gym.spaces.Discrete(int(moves.n)) for moves in self.env.action_space),
            self.env.num_envs,
        )

    def vector_reset(
        self, *, seeds: Sequence[int | None] | None = None, options: Sequence[Any] | None = None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Reset all worlds; the first seed is the seed of VMAS's one random state."""
        return _by_world(self.env.reset(seed=seeds[0] if seeds else None)), [{}] * self.num_envs

    def reset_at(
        self, index: int | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Reset a world; VMAS returns the observations of all worlds."""
        world = index or 0
        return tuple(obs.numpy()[world].copy() for obs in self.env.reset_at(world)), {}

    def vector_step(self, actions: Sequence[Any]) -> StepLists:
        """Step all worlds with a tuple of actions each."""
        by_agent = np.asarray(actions, np.float32).T[..., None]
        obs, rewards, terminateds, truncateds, _ = self.env.step(list(by_agent))
        earned = sum(reward.numpy().astype(np.float64) for reward in rewards)
        return _by_world(obs), earned, terminateds.tolist(), truncateds.tolist(), [{}] * self.num_envs


def _by_world(obs: Sequence[Any]) -> list[Any]:
    return list(zip(*(column.numpy().copy() for column in obs), strict=True))


def foraging(task: str, context: EnvContext, **kwargs: Any) -> MultiAgentEnv:
    """Return a task of level-based foraging; `kwargs` are arguments of its class."""
    settings = {"disable_env_checker": True, **kwargs}
    made: MultiAgentEnv = make_env(f"lbforaging:Foraging-{task}-v3", EnvContext(settings))
    return made


def team(name: str, context: EnvContext, **kwargs: Any) -> MultiAgentEnv:
    """Return an environment with its agents as a team; `kwargs` are arguments of its class."""
    env: MultiAgentEnv = make_env(name, EnvContext(kwargs))
    if any(
        env.get_action_space(agent) != env.get_action_space(env.possible_agents[0])
        for agent in env.possible_agents
    ):
        env = Padded(env)
    return env.with_agent_groups({"team": env.possible_agents})


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
foraging_8x8_2p_2f_coop_team, foraging_2s_8x8_2p_2f_coop_team, foraging_10x10_3p_3f_team = (
    partial(team, f"lbforaging:Foraging-{task}-v3", disable_env_checker=True)
    for task in ("8x8-2p-2f-coop", "2s-8x8-2p-2f-coop", "10x10-3p-3f")
)
foraging_15x15_3p_5f_team = partial(
    team, "lbforaging:Foraging-15x15-3p-4f-v3", disable_env_checker=True, max_num_food=5
)
rware_tiny_2ag_team = partial(team, "rware:rware-tiny-2ag-v2", disable_env_checker=True)
simple_spread_team, simple_speaker_listener_team = (
    partial(team, f"pettingzoo:mpe/{game}") for game in ("simple_spread_v3", "simple_speaker_listener_v4")
)
balance, navigation = (partial(worlds, scenario) for scenario in ("balance", "navigation"))
balance_team, navigation_team = (partial(WorldsTeam, scenario) for scenario in ("balance", "navigation"))
leduc_against_random = partial(AgainstRandom, "openspiel:leduc_poker")
connect_four_against_random = partial(AgainstRandom, "examples/connect_four.py:ConnectFour")
