"""`play_match`: games of every player of a match against every other one, and the ratings that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from menv.algorithms.training.league import ANCHOR, PRIOR
from menv.algorithms.training.matches import Matches, points_of
from menv.base_env import AgentId
from menv.episode import Episode
from menv.errors import ConfigError
from menv.metrics import outcome
from menv.playing.game import Game
from menv.policy_map import PolicyMap


@dataclass(frozen=True, slots=True)
class Match:
    """The result of a match between P players.

    Attributes:
        players: Their names, the highest rating first.
        ratings: Of each player, on Elo's scale, 1200 in the mean.
        outcomes: Wins, draws and losses of each player against each other one, float64 [P, P, 3].
    """

    players: list[str]
    ratings: list[float]
    outcomes: npt.NDArray[np.float64]

    @property
    def points(self) -> npt.NDArray[np.float64]:
        """Points per game of each player against each other one, float64 [P, P]; NaN on the diagonal."""
        games = self.outcomes.sum(axis=2)
        np.fill_diagonal(games, np.nan)
        points: npt.NDArray[np.float64] = (self.outcomes[..., 0] + self.outcomes[..., 1] / 2.0) / games
        return points


def play_match(players: Mapping[str, Game], games: int) -> Match:
    """Let every player meet every other one in some games, in which they change sides.

    The first player's `self_play` says the sides and who wins, without `win_if` the highest return.

    Args:
        players: Their games by name. All are played in the environment of the first one, by the policies of each.
        games: Number of games of two players.

    Raises:
        ConfigError: There are fewer than two players or sides, or their agents or spaces differ.
    """
    seats = list(players.values())
    if len(seats) < 2:
        raise ConfigError(
            f"match: {len(seats)} player, expected two or more; write RUN RUN, or RUN:easy RUN:hard for snapshots of "
            "one run"
        )
    host = seats[0]
    spaces = [
        {one: (game.action_space(one), game.observation_space(one)) for one in game.agents} for game in seats
    ]
    if strange := [name for name, own in zip(players, spaces, strict=True) if own != spaces[0]]:
        raise ConfigError(
            f"match: {strange[0]} has other agents or other spaces than the first player, expected runs of one "
            "environment; leave it out"
        )
    sides = _sides(host)
    counts, rule = np.zeros((len(seats), len(seats), 3)), host.self_play.get("win_if") or "highest_return"
    for one, other in combinations(range(len(seats)), 2):
        for number in range(games):
            mine = list(sides)[number % len(sides)]
            host.seat(
                {agent: seats[one if side == mine else other].own for side in sides for agent in sides[side]}
            )
            host.start()
            paid = host.advance().returns
            returns = {side: sum(paid.get(agent, 0.0) for agent in own) for side, own in sides.items()}
            points = points_of(returns, rule)
            for side in sides.keys() - {mine}:
                kind = outcome(points[mine], points[side])
                counts[one, other, kind] += 1.0
                counts[other, one, 2 - kind] += 1.0
    ratings = ratings_between(counts)
    order = sorted(range(len(seats)), key=lambda number: -ratings[number])
    names = list(players)
    return Match([names[at] for at in order], [ratings[at] for at in order], counts[np.ix_(order, order)])


def _sides(host: Game) -> dict[str, list[AgentId]]:
    """Return the agents of each side."""
    episode = Episode(0, 0)
    owners = {agent: host.own.id_of(agent, episode) for agent in host.agents}
    matches = Matches(PolicyMap(dict.fromkeys(owners.values())), owners, host.self_play.get("sides"))
    sides: dict[str, list[AgentId]] = {}
    for agent, owner in owners.items():
        sides.setdefault(matches.side_of(agent, owner), []).append(agent)
    return sides


def ratings_between(outcomes: npt.NDArray[np.float64]) -> list[float]:
    """Return the ratings of a Bradley-Terry model, in which a draw is half a win.

    Args:
        outcomes: Wins, draws and losses of each player against each other one, [P, P, 3].
    """
    won = outcomes[..., 0] + (outcomes[..., 1] + PRIOR) / 2.0
    np.fill_diagonal(won, 0.0)
    games, strength = won + won.T, np.ones(len(won))
    for _ in range(_ROUNDS):
        strength = won.sum(axis=1) / (games / (strength[:, None] + strength)).sum(axis=1)
        strength /= np.exp(np.log(strength).mean())
    return [ANCHOR + 400.0 * float(np.log10(one)) for one in strength]


_ROUNDS = 1000
"""Iterations of Hunter's algorithm (2004), which converges in far fewer."""
