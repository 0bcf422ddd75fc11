"""The league of self-play: snapshots of the learner as opponents, matchmaking, scores and ratings.

A snapshot is a policy bundle on disk, in a folder named by the hash of its content, and never changes. `Algorithm`
reports each iteration's episodes; the league then takes a snapshot if one is due and chooses the next opponents. Those
are loaded into policies that do not learn, and only when no running episode plays against them any more.
`menv.algorithms.training.matches` draws the match of each episode.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from menv import rng
from menv.algorithms.config.algorithm_config import SelfPlayConfig
from menv.algorithms.training.matches import LEARNER, Matches, Table, points_of
from menv.algorithms.training.policy_set import PolicySet
from menv.base_env import AgentId
from menv.errors import ConfigError
from menv.inference.checkpoint_folder import LEVELS
from menv.inference.policy_bundle import (
    MANIFEST,
    ExportCache,
    copy_folder,
    load_into,
    parse_manifest,
    policy_files,
    read_folder,
    write_folder,
)
from menv.metrics import EpisodeSummary, Metrics, outcome, shares
from menv.plain_files import inside
from menv.policy import RandomPolicy
from menv.policy_map import PolicyMap
from menv.policy_spec import PolicySpec

_CURRENT, _LATEST, _UNIFORM, PRIORITIZED, _FIXED = "current", "latest", "uniform", "prioritized", "fixed"
_OLDER = "snapshots"
"""What results call all snapshots but the latest one."""

ANCHOR = 1200.0
"""The rating of fixed opponents."""
_KEPT = 0.99
"""Weight of earlier games, at each new game of the same players."""
PRIOR = 0.1
"""Games, half of them won, that are added to the others, so that no player is infinitely better."""


class Member(NamedTuple):
    """A snapshot: for each base policy of its role, the hash of its bundle, and the rating that the learner had."""

    role: str
    iteration: int
    bundles: Mapping[str, str]
    rating: float | None = None


@dataclass
class LeagueState:
    """What a league continues from, apart from the snapshots; see the attributes of `League`."""

    members: dict[str, Member]
    outcomes: dict[str, dict[str, list[float]]]
    fixed: list[str]
    slots: dict[str, str | None]
    recent: dict[str, list[float]]
    table: Table


class League:
    """The members, their results, and which of them play next.

    Players are known by name: learners by their role, snapshots as `snapshot_3` and fixed opponents as in the settings,
    the last two with the role in front if there are several.

    Args:
        settings: The `self_play` section.
        base_map: The policies that learn and their mapping; their spaces are known.
        owners: The base policy of each possible agent.
        seed: Key of the choice of opponents.

    Attributes:
        members: The snapshots by name, the oldest first.
        outcomes: Wins, draws and losses of each learner against each opponent, of which the latest 100 count most.
        slots: The snapshot in each seat in memory, None in an empty one.
        policy_map: The policies of the run: the learners, the fixed opponents and the snapshots in memory.
    """

    def __init__(
        self, settings: SelfPlayConfig, base_map: PolicyMap, owners: Mapping[AgentId, str], seed: int
    ) -> None:
        self._settings = settings
        self._seed = seed
        _check_learners(base_map)
        _check_names([*base_map.specs, *settings.opponents])
        self._matches = Matches(base_map, owners, settings.sides)
        prefixes = self._matches.prefixes
        self._fixed = {
            role: {f"{prefix}{name}": _fixed_spec(name, one) for name, one in settings.opponents.items()}
            for role, prefix in prefixes.items()
        }
        self._seats = {
            role: [f"{prefix}opponent_{number}" for number in range(settings.members_in_memory)]
            for role, prefix in prefixes.items()
        }
        self._anchors = [seat for own in self._fixed.values() for seat in own]
        self._shares = _shares(settings)
        if isinstance(settings.win_if, Mapping) and not settings.win_if.keys() <= self._matches.roles.keys():
            raise ConfigError(
                f"self_play: win_if is {settings.win_if!r:.100}, expected returns by side, of "
                f"{list(self._matches.roles)}; correct the names"
            )
        self.policy_map, self._players = self._policies(base_map)
        self.members: dict[str, Member] = {}
        self.outcomes: dict[str, dict[str, list[float]]] = {role: {} for role in prefixes}
        self.slots: dict[str, str | None] = {seat: None for own in self._seats.values() for seat in own}
        # Points and games of each learner since its last snapshot.
        self._recent: dict[str, list[float]] = {role: [0.0, 0.0] for role in prefixes}
        self._cache: ExportCache = {}
        # Snapshots whose files were unchanged at an earlier save.
        self._checked: set[str] = set()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def _policies(self, base_map: PolicyMap) -> tuple[PolicyMap, dict[str, tuple[str, str]]]:
        """Return the map of all policies, and the role and the seat of each policy."""
        specs = dict(base_map.specs)
        players: dict[str, tuple[str, str]] = {}
        for role in self._matches.prefixes:
            for base in role.split("+"):
                own = base_map.specs[base]
                players[base] = role, LEARNER
                for seat, fixed in self._fixed[role].items():
                    policy_id = self._matches.policy_id(role, seat, base)
                    specs[policy_id] = replace(fixed, inferred=own.inferred)
                    players[policy_id] = role, seat
                for seat in self._seats[role]:
                    policy_id = self._matches.policy_id(role, seat, base)
                    specs[policy_id] = own
                    players[policy_id] = role, seat
        return PolicyMap(specs, self._matches, list(base_map.specs)), players

    @property
    def policies_in_memory(self) -> set[str]:
        """The policies of the run into which snapshots are loaded."""
        return {name for name, (_, seat) in self._players.items() if seat in self.slots}

    def start(self, policy_set: PolicySet) -> None:
        """Take the first snapshots, of untrained policies, and choose the first opponents."""
        self._policy_set = policy_set
        if not self._settings.folder:
            self._temporary = tempfile.TemporaryDirectory(prefix="menv-league-")
        self._folder = Path(self._settings.folder or self._temporary.name)  # type: ignore[union-attr]
        try:
            for role in self._matches.prefixes:
                self._take_snapshot(role, 0)
            self._choose(0, set())
        except BaseException:
            self.stop()
            raise

    def summary(self, iteration: int, metrics: Metrics, playing: Callable[[], set[str]]) -> dict[str, Any]:
        """Count the episodes of an iteration, take snapshots, choose the next opponents and return `metrics.summary()`.

        The summary names the newest snapshot `latest` and the others together `snapshots` instead of the policies in
        memory, because each name becomes columns of trackers; `payoff_matrix` has all of them. `playing` returns the
        seats that play in running episodes.
        """
        for episode in metrics.finished():
            self._count(episode)
        newest = {member.role: name for name, member in self.members.items()}
        metrics.rename_policies(self._names(newest))
        # Before anything that may fail: no game counts twice.
        summary = metrics.summary() | self._results(newest)
        for role, (points, games) in self._recent.items():
            due = iteration % self._settings.snapshot_interval == 0
            needed = self._settings.snapshot_score
            if due and points >= needed * games and (games or not needed):
                self._take_snapshot(role, iteration, summary["league"]["rating"].get(role))
        self._choose(iteration, playing())
        opponents = {
            role: [self._player(role, seat) for seat, _ in own] for role, own in self._matches.table.items()
        }
        summary["league"] |= {"members": len(self.members), "opponents": opponents}
        return summary

    def _results(self, newest: Mapping[str, str]) -> dict[str, Any]:
        """Return the shares of wins and the ratings, in which snapshots have the names of `_shown`, and the matrix."""
        shown: dict[str, dict[str, list[float]]] = {}
        for learner, row in self.outcomes.items():
            counts = shown.setdefault(learner, {})
            for name, outcomes in row.items():
                sums = counts.setdefault(self._shown(name, newest), [0.0, 0.0, 0.0])
                sums[:] = map(add, sums, outcomes)
        matchups = {
            learner: {name: shares(counts) for name, counts in row.items()} for learner, row in shown.items()
        }
        matrix = [
            [learner, name, [*row[name]]]
            for learner, row in self.outcomes.items()
            for name in (*self._anchors, *self.members)
            if name in row
        ]
        league = {"rating": ratings_of(shown, self._anchors)}
        return {"matchups": matchups, "payoff_matrix": matrix, "league": league}

    def _shown(self, player: str, newest: Mapping[str, str]) -> str:
        """Return the name of a player in results, where each name is a column."""
        if player not in self.members:
            return player
        role = self.members[player].role
        return f"{self._matches.prefixes[role]}{_LATEST if player == newest[role] else _OLDER}"

    def _names(self, newest: Mapping[str, str]) -> dict[str, str]:
        """Return the name in results for each policy in memory; each policy of a team adds its base policy."""
        names = {}
        for policy_id, (role, seat) in self._players.items():
            if seat in self.slots:
                name = self._shown(self._player(role, seat), newest)
                names[policy_id] = name if "+" not in role else f"{name}_{self._base_of(policy_id)}"
        return names

    def _player(self, role: str, seat: str) -> str:
        return role if seat == LEARNER else self.slots.get(seat, seat) or seat

    def _count(self, episode: EpisodeSummary) -> None:
        """Count an episode as a game between its learning side and each other side."""
        returns: dict[str, float] = {}
        players: dict[str, tuple[str, str]] = {}
        for (agent, policy_id), reward in episode.rewards.items():
            if policy_id in self._players:
                side = self._matches.side_of(agent, self._base_of(policy_id))
                returns[side] = returns.get(side, 0.0) + reward
                players[side] = self._players[policy_id]
        points = points_of(returns, self._settings.win_if)
        for side, (role, seat) in players.items():
            for other, (its_role, its_seat) in players.items():
                if seat == LEARNER != its_seat:
                    self._add_game(role, self._player(its_role, its_seat), points[side], points[other])

    def _base_of(self, policy_id: str) -> str:
        role, seat = self._players[policy_id]
        bases = role.split("+")
        return next(base for base in bases if self._matches.policy_id(role, seat, base) == policy_id)

    def _add_game(self, learner: str, opponent: str, mine: float, theirs: float) -> None:
        kind = outcome(mine, theirs)
        counts = self.outcomes[learner].setdefault(opponent, [0.0, 0.0, 0.0])
        # The learner changes, so its old games count less and less.
        counts[:] = [_KEPT * number for number in counts]
        counts[kind] += 1.0
        recent = self._recent[learner]
        recent[:] = recent[0] + 1.0 - kind / 2, recent[1] + 1.0

    def _take_snapshot(self, role: str, iteration: int, rating: float | None = None) -> None:
        prefix = self._matches.prefixes[role]
        name = f"{prefix}snapshot_{sum(one.role == role for one in self.members.values())}"
        bundles = {}
        for base in role.split("+"):
            policy = self._policy_set.network_policies[base]
            files = policy_files(policy, {"iterations": iteration}, self._cache)
            bundles[base] = parse_manifest(files[MANIFEST], name)["sha256"]
            if not (self._folder / bundles[base]).exists():
                write_folder(self._folder / bundles[base], files)
        self.members[name] = Member(role, iteration, bundles, rating)
        self._recent[role] = [0.0, 0.0]

    def _choose(self, iteration: int, playing: set[str]) -> None:
        """Choose the opponents of the episodes that begin from now on, and load them into memory."""
        chosen = rng.key(self._seed, rng.LEAGUE, iteration)
        draws = np.random.default_rng(chosen)
        # If loading is interrupted, no episode plays against half a snapshot.
        self._matches.table = {role: [(LEARNER, 1.0)] for role in self._matches.prefixes}
        table = {}
        for role in self._matches.prefixes:
            wanted = [
                (player, share / len(players))
                for kind, share in self._shares.items()
                if (players := self._opponents(kind, role, draws))
                for player in players
            ]
            table[role] = self._seated(role, wanted, playing)
        self._matches.table = table

    def _opponents(self, kind: str, role: str, draws: np.random.Generator) -> list[str]:
        """Return the players that one kind of matchmaking chooses, with repetitions."""
        snapshots = [name for name, member in self.members.items() if member.role == role]
        fixed = list(self._fixed[role])
        if kind == _CURRENT:
            return [LEARNER]
        if kind == _LATEST:
            return snapshots[-1:]
        if kind == _FIXED:
            return fixed
        if kind not in (_UNIFORM, PRIORITIZED):
            return [f"{self._matches.prefixes[role]}{kind}"]
        pool = [*fixed, *snapshots]
        chances = np.array([1.0 if kind == _UNIFORM else self.loss_rate(name) for name in pool])
        drawn = draws.choice(len(pool), self._settings.opponents_at_once, p=chances / chances.sum())
        return [pool[number] for number in drawn.tolist()]

    def loss_rate(self, name: str) -> float:
        """Return the share of points that learners lose against a member, as if one game more was a draw.

        With several roles, learners of the member's own role count only where these play against each other.
        """
        rows = [own[name] for own in self.outcomes.values() if name in own]
        lost = sum(draw / 2 + loss for _, draw, loss in rows)
        return (lost + 0.5) / (sum(map(sum, rows)) + 1.0)

    def _seated(
        self, role: str, wanted: Sequence[tuple[str, float]], playing: set[str]
    ) -> list[tuple[str, float]]:
        """Return the seats of players with their probabilities, after loading snapshots into free seats.

        A snapshot waits if all seats are occupied by other opponents and by running episodes.
        """
        names = {name for name, _ in wanted}
        free = [seat for seat in self._seats[role] if self.slots[seat] not in names and seat not in playing]
        # Empty seats first, then the seats of earlier snapshots.
        free.sort(key=lambda seat: self.slots[seat] is not None)
        found: dict[str, float] = {}
        for name, chance in wanted:
            seat: str | None = name
            if name in self.members:
                held = {own: seat for seat, own in self.slots.items()}
                seat = held.get(name) or (free.pop(0) if free else None)
                if seat is not None and self.slots[seat] != name:
                    self._load(seat, name)
            if seat is not None:
                found[seat] = found.get(seat, 0.0) + chance
        return list(found.items()) or [(LEARNER, 1.0)]

    def _load(self, seat: str, name: str) -> None:
        member = self.members[name]
        # If loading is interrupted, the seat is empty.
        self.slots[seat] = None
        for base, bundle in member.bundles.items():
            manifest, files = self._read(self._folder, bundle)
            policy_id = self._matches.policy_id(member.role, seat, base)
            load_into(self._policy_set.network_policies[policy_id], manifest, files)
        self.slots[seat] = name

    @staticmethod
    def _read(folder: Path, bundle: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        manifest, files = read_folder(inside(folder, bundle))
        if manifest["sha256"] != bundle:
            raise ConfigError(
                f"{folder / bundle}: holds the policy {manifest['sha256'][:16]}, expected the policy that the folder "
                "is named after; load another checkpoint"
            )
        return manifest, files

    def state(self) -> LeagueState:
        """Return everything but the snapshots."""
        return LeagueState(
            self.members, self.outcomes, self._anchors, self.slots, self._recent, self._matches.table
        )

    def by_name(self) -> dict[str, dict[str, str]]:
        """Return the bundles of snapshots and of `LEVELS` by base policy; learners at a level have none."""
        found = {name: dict(member.bundles) for name, member in self.members.items()}
        for level, share in LEVELS.items():
            players = [self._at(share, role) for role in self._matches.prefixes]
            found[level] = {base: own for name in players for base, own in found.get(name, {}).items()}
        return found

    def _at(self, share: float, role: str) -> str:
        """Return the learner or the snapshot of a role that is nearest to a share of the range of ratings."""
        players = {name: member.rating for name, member in self.members.items() if member.role == role}
        players[role] = ratings_of(self.outcomes, self._anchors).get(role)
        known = {name: rating for name, rating in players.items() if rating is not None}
        if role not in known:
            # Without fixed opponents, later snapshots are assumed to be better.
            known = {name: float(number) for number, name in enumerate(players)}
        low, high = min(known.values()), max(known.values())
        # Of equals the later one.
        return min(reversed(known), key=lambda name: abs(known[name] - low - share * (high - low)))

    def save(self, folder: Path) -> None:
        """Write the snapshots into a folder of a checkpoint, as links where the file system has them.

        From a folder of the user they are copied: its files may change.
        """
        bundles = {bundle for member in self.members.values() for bundle in member.bundles.values()}
        for bundle in bundles if self._settings.folder else bundles - self._checked:
            self._read(self._folder, bundle)
        self._checked = bundles
        self._copy(self._folder, folder)

    def check_state(self, state: LeagueState | None, folder: Path) -> None:
        """Refuse a state that `set_state` could not restore, or whose snapshots have changed; changes nothing.

        None is the state of a run without a league.
        """
        if state is None:
            raise ConfigError(
                "checkpoint: of a run without self_play, expected one with a league; leave self_play out, or begin a "
                "run with self_play and give it these weights by set_weights"
            )
        if state.slots.keys() != self.slots.keys() or state.table.keys() != self._matches.table.keys():
            raise ConfigError(
                f"checkpoint: a league with {len(state.slots)} seats in memory, expected {len(self.slots)}; leave "
                "members_in_memory and sides unchanged"
            )
        missing = sorted(set(state.fixed).difference(self._anchors))
        if missing:
            raise ConfigError(
                f"checkpoint: a league with {missing}, expected opponents of {self._anchors}; leave opponents "
                "unchanged, or add others to them"
            )
        for member in state.members.values():
            for bundle in member.bundles.values():
                self._read(folder, bundle)

    def set_state(self, state: LeagueState, folder: Path, seed: int) -> None:
        """Restore what `state` returned, with the snapshots in a folder; their policies have their weights."""
        self._seed = seed
        self.members = state.members
        self._copy(folder, self._folder)
        self.outcomes = {role: state.outcomes.get(role, {}) for role in self.outcomes}
        self.slots, self._recent = state.slots, state.recent
        self._matches.table = state.table

    def _copy(self, source: Path, target: Path) -> None:
        copy = shutil.copy2 if self._settings.folder else _link
        for member in self.members.values():
            for bundle in member.bundles.values():
                if not (target / bundle).exists():
                    copy_folder(source / bundle, target / bundle, copy)

    def stop(self) -> None:
        """Delete the temporary folder; may be called more than once."""
        if self._temporary is not None:
            self._temporary.cleanup()


def ratings_of(
    outcomes: Mapping[str, Mapping[str, Sequence[float]]], anchors: Sequence[str]
) -> dict[str, float]:
    """Return the ratings of a Bradley-Terry model, in which a draw is half a win; {} if no anchor was met.

    A learner is rated by its games against anchors alone: to beat its own snapshots is no progress. The other opponents
    are rated by their games against learners that have a rating.

    Args:
        outcomes: Wins, draws and losses of each learner against each opponent.
        anchors: Opponents whose rating is `ANCHOR`.
    """
    ratings = dict.fromkeys(anchors, ANCHOR)
    others: dict[str, list[tuple[float, Sequence[float]]]] = {}
    for learner, row in outcomes.items():
        if known := [row[name] for name in anchors if name in row]:
            ratings[learner] = ANCHOR + _lead(known)
            for name in row:
                others.setdefault(name, []).append((ratings[learner], row[name]))
    for name, met in others.items():
        if name not in anchors:
            level = sum(rating * sum(row) for rating, row in met) / sum(sum(row) for _, row in met)
            ratings[name] = level - _lead([row for _, row in met])
    return ratings if others else {}


def _lead(rows: Sequence[Sequence[float]]) -> float:
    """Return how much higher a player is rated than others with these outcomes."""
    won, lost = (PRIOR / 2 + sum(row[kind] + row[1] / 2 for row in rows) for kind in (0, 2))
    return 400.0 * math.log10(won / lost)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _check_learners(base_map: PolicyMap) -> None:
    for policy_id, spec in base_map.specs.items():
        if spec.answers_itself or base_map.is_frozen(policy_id):
            raise ConfigError(
                f"self_play: policy {policy_id!r} does not learn, expected a league of policies that do; move it to "
                "self_play={'opponents': ...}, or leave policies_to_train out"
            )


def _check_names(names: Sequence[str]) -> None:
    taken = {LEARNER, _CURRENT, _LATEST, _OLDER, _UNIFORM, PRIORITIZED, _FIXED}
    for number, name in enumerate(names):
        if name in taken or name in names[:number] or str(name).startswith(("snapshot_", "opponent_")):
            raise ConfigError(
                f"self_play: two players could be called {name!r}, expected names of policies and opponents that "
                f"differ from each other, from snapshot_*, opponent_* and {', '.join(sorted(taken))}; rename it"
            )


def _fixed_spec(name: str, given: object) -> PolicySpec:
    spec = PolicySpec.of(name, RandomPolicy if given == "random" else given)
    if not spec.answers_itself:
        raise ConfigError(
            f'self_play: opponents[{name!r}] is {given!r:.60}, expected "random" or a subclass of menv.Policy that '
            "chooses actions itself; the league takes snapshots of learners itself"
        )
    return spec


def _shares(settings: SelfPlayConfig) -> dict[str, float]:
    """Return the share of each kind of opponents."""
    given = settings.matchmaking
    shares: dict[str, float] = {given: 1.0} if isinstance(given, str) else dict(given)
    known = [_CURRENT, _LATEST, _UNIFORM, PRIORITIZED, _FIXED, *settings.opponents]
    numbers = all(isinstance(share, int | float) and 0 <= share < 1e9 for share in shares.values())
    if not shares.keys() <= set(known) or not numbers or not sum(shares.values()) > 0:
        raise ConfigError(
            f"self_play: matchmaking is {given!r:.100}, expected shares of {', '.join(known)}; write "
            '{"current": 0.5, "prioritized": 0.5}'
        )
    if settings.snapshot_score and not any(share for kind, share in shares.items() if kind != _CURRENT):
        raise ConfigError(
            f"self_play: snapshot_score is {settings.snapshot_score} with matchmaking of the current learner alone, "
            "expected games against other members, because only these count; add a share, or leave snapshot_score out"
        )
    # A checkpoint has them in another order.
    return {kind: shares[kind] for kind in known if kind in shares}


def make_league(
    settings: SelfPlayConfig,
    base_map: PolicyMap,
    resolve: Callable[[PolicyMap], Mapping[str, PolicySpec]],
    agents: Callable[[PolicyMap], Mapping[AgentId, str]],
    seed: int,
) -> League | None:
    """Return the league of a run, None without self-play; the arguments are as of `PolicySet`."""
    if not settings.enabled:
        return None
    base_map.keep_spaces(resolve(base_map))
    return League(settings, base_map, agents(base_map), seed)
