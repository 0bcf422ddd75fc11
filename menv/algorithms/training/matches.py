"""Matches of self-play: which side of an episode learns, and which opponent plays each other side.

`Matches` is the mapping function of a run with `self_play`. A match depends on the episode and the table alone, so it
is the same in every process. `menv.algorithms.training.league` writes the table; workers receive it with the weights.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, TypeAlias

from menv import rng
from menv.base_env import AgentId
from menv.episode import Episode
from menv.errors import ConfigError
from menv.metrics import is_zero_sum
from menv.policy_map import PolicyMap

LEARNER = "learner"
"""The seat of policies that learn."""

Table: TypeAlias = Mapping[str, Sequence[tuple[str, float]]]
"""Seats and their probabilities, by the role of the side that they play."""


class Matches:
    """Maps agents to learning policies and to the policies of opponents.

    The agents of a side win together. A role is the set of base policies that a side needs: sides of one role are
    symmetric and share their opponents. A seat is what can play a side of its role: the learner, a place in memory for
    snapshots, or a fixed opponent.

    Args:
        base_map: The policies that learn, and the mapping of agents to them.
        owners: The base policy of each possible agent.
        sides: Patterns of agents by side; None makes a side of each agent, or of each policy if there are several.

    Attributes:
        roles: The role of each side, its base policies joined by `+`.
        table: The seats of the current opponents.
    """

    def __init__(
        self, base_map: PolicyMap, owners: Mapping[AgentId, str], sides: Mapping[str, Sequence[str]] | None
    ) -> None:
        self.base_map = base_map
        self._patterns, self._owners = sides, owners
        bases: dict[str, set[str]] = {}
        for agent, owner in owners.items():
            bases.setdefault(self.side_of(agent, owner), set()).add(owner)
        if len(bases) < 2:
            raise ConfigError(
                f"self_play: {len(bases)} side{'' if bases else 's'} among the possible agents {list(owners)[:8]}, "
                f"which have {sorted(set(owners.values()))[:8]}, expected two or more that play against each other, "
                "and for each agent the same policy in all episodes; name them with "
                'self_play={"sides": {"red": ["red_*"], "blue": ["blue_*"]}}'
            )
        self.roles = {side: "+".join(sorted(own)) for side, own in bases.items()}
        self.table: Table = {role: [(LEARNER, 1.0)] for role in self.roles.values()}

    def __call__(self, agent_id: AgentId, episode: Episode, worker: Any) -> str:
        base = self.base_map.only or self.base_map.policy_for(agent_id, episode, worker)
        if self._owners.get(agent_id, base) != base:
            raise ConfigError(
                f"self_play: agent {agent_id!r} has policy {self._owners[agent_id]!r} in one episode and {base!r} in "
                "another, expected the same one in each, because the league draws who plays against whom; give each "
                "agent one policy in policy_mapping_fn, and choose its opponents with self_play={'matchmaking': ...}"
            )
        if not episode.match:
            episode.match = self._draw(episode)
        side = self.side_of(agent_id, base)
        return self.policy_id(self.roles.get(side, base), episode.match.get(side, LEARNER), base)

    def side_of(self, agent_id: AgentId, base: str) -> str:
        """Return the side of an agent whose base policy is `base`."""
        if self._patterns is None:
            return str(agent_id) if len(self.base_map.specs) == 1 else base
        for side, patterns in self._patterns.items():
            if any(fnmatchcase(str(agent_id), pattern) for pattern in patterns):
                return side
        raise ConfigError(
            f"self_play: agent {agent_id!r} matches no pattern of sides {sorted(self._patterns)}, expected each agent "
            "on a side; add a pattern for it"
        )

    @property
    def prefixes(self) -> dict[str, str]:
        """What the names of seats and members begin with, by role."""
        roles = list(dict.fromkeys(self.roles.values()))
        return {role: "" if len(roles) == 1 else f"{role}_" for role in roles}

    @staticmethod
    def policy_id(role: str, seat: str, base: str) -> str:
        """Return the policy that plays for the agents of a base policy on a side."""
        if seat == LEARNER:
            return base
        return seat if role == base else f"{seat}_{base}"

    def _draw(self, episode: Episode) -> dict[str, str]:
        sides = list(self.roles)
        learning = rng.key(episode.episode_id, rng.LEAGUE) % len(sides)
        match = {side: self._opponent(side, number, episode) for number, side in enumerate(sides)}
        match[sides[learning]] = LEARNER
        return match

    def _opponent(self, side: str, number: int, episode: Episode) -> str:
        entries = self.table[self.roles[side]]
        ends = list(accumulate(chance for _, chance in entries))
        drawn = rng.key(episode.episode_id, rng.LEAGUE, number) / 2.0**64 * ends[-1]
        return entries[min(bisect(ends, drawn), len(entries) - 1)][0]


def seats_in(episodes: Iterable[Episode]) -> set[str]:
    """Return the seats that play in some episodes."""
    return {seat for episode in episodes for seat in episode.match.values()}


def points_of(returns: Mapping[str, float], rule: str | Mapping[str, float] | None) -> Mapping[str, float]:
    """Return numbers by side, of which the higher one wins; see `SelfPlayConfig.win_if`."""
    if isinstance(rule, Mapping):
        reached = {side: returns.get(side, -math.inf) >= least for side, least in rule.items()}
        return {side: float(reached.get(side, not any(reached.values()))) for side in returns}
    if rule is None and not is_zero_sum(returns.values()):
        raise ConfigError(
            f"self_play: the returns of an episode are {dict(returns)!r:.200}, expected returns that add up to 0, of "
            "which the highest wins; in other games define the winner: self_play={'win_if': 'highest_return'}, or by "
            f"the lowest winning return of a side, {{'win_if': {{{min(returns)!r}: 1.0}}}}"
        )
    return returns
