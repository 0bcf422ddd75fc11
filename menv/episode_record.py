"""Record: what is kept of an episode that ended, for the results.

`menv.metrics` makes one of each `Episode` and sums them up; workers send them, checkpoints hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from menv.base_env import AgentId
from menv.episode import Episode
from menv.plain_data import is_plain

When: TypeAlias = tuple[int, int]
"""Env steps that an episode's sub-environment had taken when it ended, and the sub-environment's number among all."""

AS_THEY_COME: When = (0, 0)

# Environments whose agents never come again have no end of ids.
MOST_AGENTS = 1_000


class Record(NamedTuple):
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


def as_plain(record: Record) -> list[Any]:
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


def from_plain(fields: Sequence[Any]) -> Record:
    """Return the record of which `as_plain` made these; whatever is wrong with them is found here and not in a mean."""
    total, length, rewards, others, members, custom, hist, (steps, index) = fields
    return Record(
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
