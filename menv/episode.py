"""One episode of one sub-environment, as mapping functions and callbacks see it.

`menv.sampling.sampler` creates and fills it. It knows ids, rewards and lengths, no observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np

from menv import rng
from menv.base_env import SINGLE_AGENT, AgentId, EnvId
from menv.errors import ConfigError, ContractError
from menv.migration_hints import hinted
from menv.serialization import is_plain

MEMBER_REWARDS = "__member_rewards__"
"""The key in the last info dict of a group's life, at which is what each of its members earned in that life."""

_NOTHING: Mapping[str, Any] = {}


def _kept(name: str) -> Any:
    """Return the property of an attribute that most episodes do not use."""
    return property(lambda self: self._extra(name), lambda self, value: self._set_extra(name, value))


class Episode:
    """What happened so far, and who answers for whom.

    Attributes:
        episode_id: An integer, random but repeatable under a seed.
        env_id: The sub-environment.
        length: Env steps; known when the episode has ended, to mapping functions, to an `observation_fn`, and where
            callbacks about episodes look on.
        begun_at: Env steps of the sub-environment, over all its episodes, when it began.
        agent_rewards: Return of each `(agent_id, policy_id)`; complete when the episode has ended, and up to their last
            observations where callbacks about episodes look on.
        unclaimed_rewards: Rewards that no action can own; they count in `total_reward`, and in the return of an agent
            that has acted.
        custom_metrics: Numbers of yours; they reach the results as `<name>_mean/min/max`.
        user_data: Anything of yours.
        hist_data: Lists of yours; they reach the results under `hist_stats`.
        media: Anything of yours to look at, such as videos; it reaches one result, under `episode_media`.
        member_rewards: Return of each member of each group of agents, by group; complete when the episode has ended.
    """

    __slots__ = (
        "_extras",
        "_last",
        "_lives",
        "_open",
        "_policies",
        "_rng",
        "_strays",
        "agent_rewards",
        "begun_at",
        "env_id",
        "episode_id",
        "length",
        "unclaimed_rewards",
    )

    if not TYPE_CHECKING:
        __getattr__ = hinted("Episode")

    def __init__(self, episode_id: int, env_id: EnvId) -> None:
        self.episode_id = episode_id
        self.env_id = env_id
        self.length = self.begun_at = 0
        self.agent_rewards: dict[tuple[AgentId, str], float] = {}
        self.unclaimed_rewards = 0.0
        # Those of them that were paid to agents that have not appeared, by agent.
        self._strays: dict[AgentId, float] = {}
        # Most episodes have none of these: they are made when they are asked for.
        self._extras: dict[str, Any] | None = None
        self._last: dict[AgentId, tuple[Any, Any]] | None = None
        self._lives: dict[AgentId, int] | None = None
        # What agents had earned before lives that are counted already; None before their first.
        self._open: dict[AgentId, float | None] = {}
        self._rng: np.random.Generator | None = None
        # The policy of each agent, and its number in order of appearance.
        self._policies: dict[AgentId, tuple[str, int]] = {}

    def _extra(self, name: str) -> Any:
        if self._extras is None:
            self._extras = {}
        return self._extras.setdefault(name, {})

    def _set_extra(self, name: str, value: Any) -> None:
        if name != "user_data" and not isinstance(value, Mapping):
            raise ContractError(
                f"episode.{name}: a {type(value).__name__}, expected a dict by name; put values into that "
                "which is there"
            )
        self._extra(name)
        assert self._extras is not None
        self._extras[name] = value

    custom_metrics: dict[str, float] = _kept("custom_metrics")
    user_data: dict[str, Any] = _kept("user_data")
    hist_data: dict[str, list[float]] = _kept("hist_data")
    media: dict[str, Any] = _kept("media")
    member_rewards: dict[AgentId, dict[AgentId, float]] = _kept("member_rewards")

    @property
    def extras(self) -> Mapping[str, Any]:
        """What there is of these five, by name."""
        return self._extras or _NOTHING

    @property
    def rng(self) -> np.random.Generator:
        """A generator for mappings that draw lots; it depends on the seed and the episode alone."""
        if self._rng is None:
            self._rng = np.random.default_rng(rng.key(self.episode_id, rng.MAPPING))
        return self._rng

    @property
    def total_reward(self) -> float:
        """Sum of the rewards of all agents."""
        return sum(self.agent_rewards.values()) + sum(self._strays.values())

    def get_agents(self) -> list[AgentId]:
        """Return the agents seen so far, in order of appearance."""
        return list(self._policies)

    def policy_for(self, agent_id: AgentId = SINGLE_AGENT) -> str:
        """Return the id of the policy that answers for an agent.

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

        Kept for callbacks about episodes only.
        """
        return (self._last or {}).get(agent_id, (None, {}))[0]

    def last_info_for(self, agent_id: AgentId = SINGLE_AGENT) -> Any:
        """Return the info dict that came with an agent's last observation, an empty one before the first.

        For `"__common__"` the last one that the sub-environment gave under this name.

        Kept for callbacks about episodes only.
        """
        return (self._last or {}).get(agent_id, (None, {}))[1]

    def look_at(self, agent_id: AgentId, obs: Any, info: Any) -> None:
        """Keep what an agent was shown last."""
        if self._last is None:
            self._last = {}
        self._last[agent_id] = (obs, info)

    def seat_of(self, agent_id: AgentId) -> tuple[str, int] | None:
        """Return the policy of an agent and its number, in order of appearance; None before it appears."""
        return self._policies.get(agent_id)

    def bind(self, agent_id: AgentId, policy_id: str) -> tuple[str, int]:
        """Bind an agent to a policy until the episode ends; return both and its number, as `seat_of` does.

        What it was paid before is part of its return.
        """
        seat = self._policies[agent_id] = (policy_id, len(self._policies))
        if agent_id in self._strays:
            self.agent_rewards[agent_id, policy_id] = self._strays.pop(agent_id)
        return seat

    def come_again(self, agent_id: AgentId) -> int:
        """Note that an agent that was here before begins another life; return how many it has had."""
        if self._lives is None:
            self._lives = {}
        self._lives[agent_id] = self._lives.get(agent_id, 0) + 1
        return self._lives[agent_id]

    def state(self) -> dict[str, Any]:
        """Return everything that is known of the episode, as a tree; plain if what users put into it is."""
        return {
            "episode_id": self.episode_id,
            "length": self.length,
            "agent_rewards": dict(self.agent_rewards),
            "unclaimed_rewards": self.unclaimed_rewards,
            "strays": dict(self._strays),
            "policies": dict(self._policies),
            "extras": self._extras,
            "last": self._last,
            "lives": self._lives,
            "open": dict(self._open),
            "rng": None if self._rng is None else dict(self._rng.bit_generator.state),
        }

    @classmethod
    def from_state(cls, env_id: EnvId, state: Mapping[str, Any]) -> Self:
        """Return the episode of which `state` returned this."""
        episode = cls(state["episode_id"], env_id)
        episode.length, episode.unclaimed_rewards = int(state["length"]), float(state["unclaimed_rewards"])
        episode.agent_rewards = {
            (agent, policy): float(reward) for (agent, policy), reward in state["agent_rewards"].items()
        }
        episode._strays = {agent: float(reward) for agent, reward in state["strays"].items()}
        episode._policies, episode._extras, episode._last = state["policies"], state["extras"], state["last"]
        episode._lives = state["lives"]
        episode._open = {
            agent: None if told is None else float(told) for agent, told in state["open"].items()
        }
        if state["rng"] is not None:
            episode.rng.bit_generator.state = state["rng"]
        return episode

    def seats(self) -> Mapping[AgentId, tuple[str, int]]:
        """Return the policy and the number of each agent, in order of appearance."""
        return self._policies

    def credit(self, agent_id: AgentId, reward: float) -> None:
        """Add what an agent earned in a life that ended."""
        key = (agent_id, self._policies[agent_id][0])
        if self._open and agent_id in self._open:
            # As if it had never been counted: neither sums nor the order of agents depend on who looks on.
            before = self._open.pop(agent_id)
            if before is None:
                del self.agent_rewards[key]
            else:
                # Of an earlier life: the agent keeps its place.
                self.agent_rewards[key] = before
        self.agent_rewards[key] = self.agent_rewards.get(key, 0.0) + reward

    def credit_unclaimed(self, agent_id: AgentId, reward: float) -> None:
        """Add a reward that no action can own."""
        self.unclaimed_rewards += reward
        if agent_id not in self._policies:
            self._strays[agent_id] = self._strays.get(agent_id, 0.0) + reward
            return
        key = (agent_id, self._policies[agent_id][0])
        self.agent_rewards[key] = self.agent_rewards.get(key, 0.0) + reward
        if agent_id in self._open:
            self._open[agent_id] = (self._open[agent_id] or 0.0) + reward

    def count_so_far(self, agent_id: AgentId, earned: float) -> None:
        """Count what an agent has earned so far in a life that goes on."""
        key = (agent_id, self._policies[agent_id][0])
        before = self._open.setdefault(agent_id, self.agent_rewards.get(key))
        self.agent_rewards[key] = (before or 0.0) + earned

    def credit_members(self, group_id: AgentId, rewards: Mapping[AgentId, float]) -> None:
        """Add what the members of a group earned in a life of the group that ended."""
        earned = self.member_rewards.setdefault(group_id, {})
        for member, reward in rewards.items():
            earned[member] = earned.get(member, 0.0) + reward


# SEAM menv.episode_record
# Record: what is kept of an episode that ended, for the results.
#
# `menv.metrics` makes one of each `Episode` and sums them up; workers send them, checkpoints hold them.


When: TypeAlias = tuple[int, int]
"""Env steps that an episode's sub-environment had taken when it ended, and the sub-environment's number among all."""

AS_THEY_COME: When = (0, 0)

# Environments whose agents never come again have no end of ids.
MOST_AGENTS = 1_000


class EpisodeSummary(NamedTuple):
    """What is kept of an episode.

    Attributes:
        total_reward: Of all agents, unclaimed rewards included.
        length: Env steps.
        rewards: The return of each agent and the policy that answered for it.
        others: Policies and returns of agents beyond `MOST_AGENTS`.
        members: See `Episode.member_rewards`.
        custom_metrics: See `Episode`.
        hist_data: See `Episode`.
        when: Episodes of an iteration are summed up in this order, whoever sampled them; equal ones as they came.
    """

    total_reward: float
    length: int
    rewards: Mapping[tuple[AgentId, str], float]
    others: Sequence[tuple[str, float]]
    members: Mapping[AgentId, Mapping[AgentId, float]]
    custom_metrics: Mapping[str, float]
    hist_data: Mapping[str, list[float]]
    when: When = AS_THEY_COME


def as_plain(record: EpisodeSummary) -> list[Any]:
    """Return a record's fields as plain values; returns of agents whose ids are none go without them."""
    rewards, others = dict(record.rewards), list(record.others)
    if not is_plain(rewards):
        others += [(policy, reward) for (_, policy), reward in rewards.items()]
        rewards = {}
    members = {group: dict(by_member) for group, by_member in record.members.items()}
    custom = floats(record.custom_metrics)
    hist = {name: [float(value) for value in values] for name, values in record.hist_data.items()}
    members = members if is_plain(members) else {}
    return [
        float(record.total_reward), int(record.length), rewards, others, members, custom, hist, list(record.when),
    ]  # fmt: skip


def from_plain(fields: Sequence[Any]) -> EpisodeSummary:
    """Return the record of which `as_plain` made these; whatever is wrong with them is found here and not in a mean."""
    total, length, rewards, others, members, custom, hist, (steps, index) = fields
    return EpisodeSummary(
        float(total),
        int(length),
        {(agent, policy): float(reward) for (agent, policy), reward in rewards.items()},
        [(policy, float(reward)) for policy, reward in others],
        {group: floats(by_member) for group, by_member in members.items()},
        floats(custom),
        {name: [float(value) for value in values] for name, values in hist.items()},
        (steps, index),
    )


def floats(by_name: Mapping[Any, Any]) -> dict[Any, float]:
    """Return numbers by name as floats."""
    return {name: float(value) for name, value in by_name.items()}


def cut_short(episode: Episode) -> tuple[dict[tuple[AgentId, str], float], list[tuple[str, float]]]:
    """Return the returns of the agents that appeared first in a crowd, and those of the others without their ids."""
    first = set(islice(episode.get_agents(), MOST_AGENTS))
    rewards = {key: reward for key, reward in episode.agent_rewards.items() if key[0] in first}
    others = [
        (policy, reward) for (agent, policy), reward in episode.agent_rewards.items() if agent not in first
    ]
    return rewards, others
