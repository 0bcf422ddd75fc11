"""`Episode`: one episode of one sub-environment, as policy mapping functions and callbacks see it.

The sampler creates and fills it. It knows ids, rewards and lengths, and for callbacks the last observations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from menv import rng
from menv.base_env import SINGLE_AGENT, AgentId, EnvId
from menv.errors import ConfigError

MEMBER_REWARDS = "__member_rewards__"
"""Key in the last info dict of a group's trajectory: the return of each member in that trajectory."""

_NOTHING: Mapping[str, Any] = {}


class Episode:
    """The state of an episode so far, and the policy of each agent.

    Attributes:
        episode_id: A random integer, repeatable under a seed.
        env_id: The sub-environment.
        length: Env steps; known when the episode has ended, to mapping functions, to an `observation_fn`, and to
            callbacks about episodes.
        begun_at: Env steps of the sub-environment, over all its episodes, when it began.
        agent_rewards: Return of each `(agent_id, policy_id)`; complete when the episode has ended. Callbacks about
            episodes see it up to the agents' last observations. An agent of `possible_agents` that was paid and
            never acted has its policy and its return when the episode ends.
        unclaimed_rewards: Rewards that belong to no action; they count in `total_reward` and in the agent's return.
        custom_metrics: Your numbers; they are in the results as `<name>_mean/min/max`.
        user_data: Your data.
        match: With `self_play`, who plays each side, by side: `"learner"`, a fixed opponent or a place in memory.
        hist_data: Your lists of numbers; they are in the results under `hist_stats`.
        media: Your media, such as videos; they are in one result, under `episode_media`.
        member_rewards: Return of each member of each group of agents, by group; complete when the episode has ended.
    """

    __slots__ = (
        "_last", "_policies", "_reappeared", "_rng", "_running", "_unseen", "agent_rewards", "begun_at",
        "custom_metrics", "env_id", "episode_id", "hist_data", "length", "match", "media", "member_rewards",
        "unclaimed_rewards", "user_data",
    )  # fmt: skip

    def __init__(self, episode_id: int, env_id: EnvId) -> None:
        self.episode_id = episode_id
        self.env_id = env_id
        self.length = self.begun_at = 0
        self.agent_rewards: dict[tuple[AgentId, str], float] = {}
        self.unclaimed_rewards = 0.0
        self.match: Mapping[str, str] = _NOTHING
        # The unclaimed rewards of agents that have not appeared yet.
        self._unseen: dict[AgentId, float] = {}
        self.custom_metrics: dict[str, float] = {}
        self.user_data: dict[str, Any] = {}
        self.hist_data: dict[str, list[float]] = {}
        self.media: dict[str, Any] = {}
        self.member_rewards: dict[AgentId, dict[AgentId, float]] = {}
        self._last: dict[AgentId, tuple[Any, Any]] = {}
        self._reappeared: dict[AgentId, int] = {}
        # Returns of agents without the running trajectories that `count_so_far` added; None before their first one.
        self._running: dict[AgentId, float | None] = {}
        self._rng: np.random.Generator | None = None
        # The policy of each agent, and its number in order of appearance.
        self._policies: dict[AgentId, tuple[str, int]] = {}

    @property
    def rng(self) -> np.random.Generator:
        """A generator for random mappings; it depends on the seed and the episode alone."""
        if self._rng is None:
            self._rng = np.random.default_rng(rng.key(self.episode_id, rng.MAPPING))
        return self._rng

    @property
    def total_reward(self) -> float:
        """Sum of the rewards of all agents."""
        return sum(self.agent_rewards.values()) + sum(self._unseen.values())

    @property
    def unseen(self) -> list[AgentId]:
        """The agents that were paid and have not appeared."""
        return list(self._unseen)

    def get_agents(self) -> list[AgentId]:
        """Return the agents seen so far, in order of appearance."""
        return list(self._policies)

    def policy_for(self, agent_id: AgentId = SINGLE_AGENT) -> str:
        """Return the id of the policy that acts for an agent.

        Raises:
            ConfigError: The agent has not appeared in this episode.
        """
        if agent_id not in self._policies:
            raise ConfigError(
                f"episode {self.episode_id}: agent {agent_id!r} has not appeared, expected one of "
                f"{', '.join(sorted(map(repr, self._policies))[:16]) or 'none'}; ask after its first observation"
            )
        return self._policies[agent_id][0]

    def last_observation_for(self, agent_id: AgentId = SINGLE_AGENT) -> Any:
        """Return an agent's last observation as its environment gave it, None before the first.

        Stored for callbacks about episodes only.
        """
        return self._last.get(agent_id, (None, {}))[0]

    def last_info_for(self, agent_id: AgentId = SINGLE_AGENT) -> Any:
        """Return the info dict of an agent's last observation, an empty one before the first.

        For `"__common__"` it is the last one that the sub-environment gave under this name. Stored for callbacks about
        episodes only.
        """
        return self._last.get(agent_id, (None, {}))[1]

    def look_at(self, agent_id: AgentId, obs: Any, info: Any) -> None:
        """Store an agent's last observation and info."""
        self._last[agent_id] = (obs, info)

    def seat_of(self, agent_id: AgentId) -> tuple[str, int] | None:
        """Return an agent's policy and number, in order of appearance; None before it appears."""
        return self._policies.get(agent_id)

    def bind(self, agent_id: AgentId, policy_id: str) -> tuple[str, int]:
        """Bind an agent to a policy until the episode ends; return the policy and the agent's number.

        Rewards from before its appearance become part of its return.
        """
        seat = self._policies[agent_id] = (policy_id, len(self._policies))
        if agent_id in self._unseen:
            self.agent_rewards[agent_id, policy_id] = self._unseen.pop(agent_id)
        return seat

    def come_again(self, agent_id: AgentId) -> int:
        """Count that an agent returns; return how many times it has."""
        self._reappeared[agent_id] = self._reappeared.get(agent_id, 0) + 1
        return self._reappeared[agent_id]

    def seats(self) -> Mapping[AgentId, tuple[str, int]]:
        """Return the policy and the number of each agent, in order of appearance."""
        return self._policies

    def credit(self, agent_id: AgentId, reward: float) -> None:
        """Add the rewards of a trajectory that ended."""
        key = (agent_id, self._policies[agent_id][0])
        if self._running and agent_id in self._running:
            # Undo `count_so_far`: neither sums nor the order of agents depend on callbacks.
            before = self._running.pop(agent_id)
            if before is None:
                del self.agent_rewards[key]
            else:
                self.agent_rewards[key] = before
        self.agent_rewards[key] = self.agent_rewards.get(key, 0.0) + reward

    def credit_unclaimed(self, agent_id: AgentId, reward: float) -> None:
        """Add a reward that belongs to no action."""
        self.unclaimed_rewards += reward
        if agent_id not in self._policies:
            self._unseen[agent_id] = self._unseen.get(agent_id, 0.0) + reward
            return
        key = (agent_id, self._policies[agent_id][0])
        self.agent_rewards[key] = self.agent_rewards.get(key, 0.0) + reward
        if agent_id in self._running:
            self._running[agent_id] = (self._running[agent_id] or 0.0) + reward

    def count_so_far(self, agent_id: AgentId, earned: float) -> None:
        """Count the rewards so far of a trajectory that continues."""
        key = (agent_id, self._policies[agent_id][0])
        before = self._running.setdefault(agent_id, self.agent_rewards.get(key))
        self.agent_rewards[key] = (before or 0.0) + earned

    def credit_members(self, group_id: AgentId, rewards: Mapping[AgentId, float]) -> None:
        """Add the rewards of a group's members in a trajectory of the group that ended."""
        earned = self.member_rewards.setdefault(group_id, {})
        for member, reward in rewards.items():
            earned[member] = earned.get(member, 0.0) + reward
