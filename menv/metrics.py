"""`Metrics`: the episodes that ended, summarized for the result of one training iteration.

The sampler records, an algorithm asks for the summary; workers send a `MetricsSnapshot`. A window without an episode
gives None and a count of 0, never NaN. `Timers` measures the time of sampling.
"""

from __future__ import annotations

import heapq
import math
import warnings
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from fractions import Fraction
from itertools import compress, islice, permutations
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from menv.base_env import AgentId, Flags, FloatArray, IntArray
from menv.episode import Episode
from menv.errors import ContractError
from menv.serialization import is_plain

When: TypeAlias = tuple[int, int]
"""Env steps of an episode's sub-environment when it ended, and the sub-environment's number among all."""

AS_THEY_COME: When = (0, 0)

# Environments in which agents never return have no end of ids.
_MOST_AGENTS = 1_000
_MOST_PLAYERS = 8
"""Agents of a game whose results are compared in pairs."""


class EpisodeSummary(NamedTuple):
    """The record of an episode that ended.

    Attributes:
        total_reward: Of all agents, including unclaimed rewards.
        length: Env steps.
        rewards: The return of each agent and the policy that acted for it.
        others: Policies and returns of agents beyond `_MOST_AGENTS`.
        members: `Episode.member_rewards`.
        custom_metrics: `Episode.custom_metrics`.
        hist_data: `Episode.hist_data`.
        when: Sorts the episodes of an iteration, whichever worker sampled them.
    """

    total_reward: float
    length: int
    rewards: Mapping[tuple[AgentId, str], float]
    others: Sequence[tuple[str, float]]
    members: Mapping[AgentId, Mapping[AgentId, float]]
    custom_metrics: Mapping[str, float]
    hist_data: Mapping[str, list[float]]
    when: When = AS_THEY_COME


@dataclass
class MetricsState:
    """What the next summaries depend on, except `episode_media`; a sum of rewards is a numerator and a denominator."""

    window: list[EpisodeSummary]
    faulty_total: int
    first_fault: str | None
    unclaimed_rewards: tuple[int, int]
    episodes_total: int
    episodes_not_resumed: int
    decided: bool

    def __post_init__(self) -> None:
        # A denominator of 0 is refused before anything changes.
        Fraction(*self.unclaimed_rewards)


def _storable(record: EpisodeSummary) -> EpisodeSummary:
    """Return a record with Python's numbers, and without agent ids that are not plain values."""
    rewards, others = _floats(record.rewards), [(policy, float(reward)) for policy, reward in record.others]
    members = {group: _floats(by_member) for group, by_member in record.members.items()}
    if not is_plain([rewards, members]):
        others += [(policy, reward) for (_, policy), reward in rewards.items()]
        rewards, members = {}, {}
    total, length, custom = float(record.total_reward), int(record.length), dict(record.custom_metrics)
    return EpisodeSummary(
        total, length, rewards, others, members, custom, dict(record.hist_data), record.when
    )


def _floats(by_name: Mapping[Any, Any]) -> dict[Any, float]:
    return {name: float(value) for name, value in by_name.items()}


def _split_crowd(episode: Episode) -> tuple[dict[tuple[AgentId, str], float], list[tuple[str, float]]]:
    """Return the returns of the first agents by id, and the returns of the others without ids."""
    first = set(islice(episode.get_agents(), _MOST_AGENTS))
    rewards = {key: reward for key, reward in episode.agent_rewards.items() if key[0] in first}
    others = [
        (policy, reward) for (agent, policy), reward in episode.agent_rewards.items() if agent not in first
    ]
    return rewards, others


Returns: TypeAlias = dict[Any, list[float]]

_MOST_NEW, _MOST_FAULTS = 10_000, 64
_LONG = 10
"""Iterations without the end of an episode after which a warning says why there are no means."""
_NOTHING: Mapping[Any, Any] = {}


class MetricsSnapshot(NamedTuple):
    """The episodes recorded since the last snapshot, on their way to another process.

    Attributes:
        records: Fields of an `EpisodeSummary` each: a plain tuple is pickled ten times as fast.
        episodes: Number of episodes; the oldest of very many are counted only.
        faulty: Episodes that a fault ended.
        first_fault: The first fault, in one line.
        unclaimed: Sum of the unclaimed rewards of these episodes.
        media: Media of the episodes, and when they ended.
        faults: What crash capsules say about faults.
    """

    records: Sequence[tuple[Any, ...]]
    episodes: int
    faulty: int
    first_fault: str | None
    unclaimed: Fraction
    media: Sequence[tuple[When, Mapping[str, Any]]]
    faults: Sequence[dict[str, Any]] = ()


class Metrics:
    """A window over the latest episodes: the last `window`, and at least all of this iteration.

    Attributes:
        by_episode: Whether `record` must see each episode, and `record_many` is not called.
        faults: What crash capsules say about faults, until they are written.
    """

    by_episode = False

    def __init__(self, window: int = 100, *, external: bool = False) -> None:
        self._window = window
        # Clients may be away, or play long episodes.
        self._is_external = external
        self._before: deque[EpisodeSummary] = deque(maxlen=window)
        # Of this iteration; bounded, because `summary` may never be called.
        self._new: deque[EpisodeSummary] = deque(maxlen=max(window, _MOST_NEW))
        # Of this iteration, too: the arguments of `record_many`, which are cheap until somebody reads them.
        self._unread: list[tuple[Any, ...]] = []
        self._new_count = self._silent = 0
        self._new_faulty = 0
        self._faulty_total = 0
        self._first_fault: str | None = None
        self.faults: deque[dict[str, Any]] = deque(maxlen=_MOST_FAULTS)
        # It may be large, so the summary drops it.
        self._media: deque[tuple[When, Mapping[str, Any]]] = deque(maxlen=_MOST_NEW)
        # Exact, so that it is the same in whatever order episodes come from workers.
        self._unclaimed = Fraction()
        self.episodes_total = 0
        self.episodes_not_resumed = 0
        # Without a single win, such as before the first reward, it may be no game at all.
        self._decided = False

    def record(self, episode: Episode, when: When = AS_THEY_COME) -> None:
        """Add an episode that ended; `when` is that of `EpisodeSummary`.

        Raises:
            ContractError: A custom metric is not a number or infinite, an entry of `hist_data` no list of finite ones,
                or a float64 cannot hold the episode's return.
        """
        rewards: Mapping[tuple[AgentId, str], float] = episode.agent_rewards
        if not math.isfinite(episode.total_reward):
            agents = [agent for (agent, _), earned in rewards.items() if not math.isfinite(earned)]
            raise _too_large(f"episode in env {episode.env_id}", agents)
        others: Sequence[tuple[str, float]] = ()
        if len(rewards) > _MOST_AGENTS:
            rewards, others = _split_crowd(episode)
        for field in ("custom_metrics", "hist_data", "media"):
            if not isinstance(value := getattr(episode, field), Mapping):
                raise ContractError(
                    f"episode.{field}: a {type(value).__name__}, expected a dict by name; assign to entries of the "
                    "existing dict"
                )
        custom = {
            name: _number(f"episode.custom_metrics[{name!r}]", value)
            for name, value in episode.custom_metrics.items()
        }
        # Their names are keys of a result, which is to be JSON.
        hist = {
            f"{name}": _numbers(f"episode.hist_data[{name!r}]", values)
            for name, values in episode.hist_data.items()
        }
        if episode.media:
            self._media.append((when, episode.media))
        self._records().append(
            EpisodeSummary(
                episode.total_reward, episode.length, rewards, others, episode.member_rewards, custom, hist, when
            )
        )  # fmt: skip
        self._new_count += 1
        self.episodes_total += 1
        self.add_unclaimed(episode.unclaimed_rewards)

    def rename_policies(self, names: Mapping[str, str]) -> None:
        """Change the ids of policies in the episodes of this iteration; others keep theirs."""
        for place, episode in enumerate(self._records()):
            rewards = {
                (agent, names.get(one, one)): earned for (agent, one), earned in episode.rewards.items()
            }
            others = [(names.get(one, one), earned) for one, earned in episode.others]
            self._new[place] = episode._replace(rewards=rewards, others=others)

    @property
    def unclaimed_rewards(self) -> float:
        """Sum of rewards that belong to no action."""
        return float(self._unclaimed)

    def add_unclaimed(self, reward: float) -> None:
        if reward:
            self._unclaimed += Fraction(float(reward))

    def record_many(
        self, pairs: Sequence[tuple[AgentId, str]], returns: FloatArray, paid: Flags | None, lengths: IntArray,
        when: Sequence[When] | None = None,
    ) -> None:  # fmt: skip
        """Add K episodes without further data.

        Args:
            pairs: A agents and their policies.
            returns: [K, A] the return of each agent.
            paid: [K, A] whether it has one; None if all have.
            lengths: [K] env steps.
            when: K times as in `EpisodeSummary`; None leaves the episodes in this order.

        Raises:
            ContractError: A float64 cannot hold the return of an episode.
        """
        if not np.isfinite(returns.sum()):
            self._refuse_infinite(pairs, returns)
        self._new_count += len(lengths)
        self.episodes_total += len(lengths)
        self._unread.append((pairs, returns, paid, lengths, when))
        while sum(len(columns[3]) for columns in self._unread[1:]) >= (self._new.maxlen or 0):
            # They would push the first ones out.
            self._unread.pop(0)

    def _records(self) -> deque[EpisodeSummary]:
        """Return the episodes of this iteration, those that came as columns too."""
        unread, self._unread = self._unread, []
        for columns in unread:
            self._new += _summaries(*columns)
        return self._new

    def _refuse_infinite(self, pairs: Sequence[tuple[AgentId, str]], returns: FloatArray) -> None:
        finite: Flags = np.isfinite(returns)
        if finite.all() and np.isfinite(returns.sum(axis=1)).all():
            return
        agents = [agent for (agent, _), good in zip(pairs, finite.T, strict=True) if not good.all()]
        raise _too_large("episode", agents)

    def record_faulty(self, line: str) -> None:
        """Count an episode that a fault ended, and keep the first fault's line; no mean includes the episode."""
        self._new_faulty += 1
        self._faulty_total += 1
        self._first_fault = self._first_fault or line

    def take_faults(self) -> list[dict[str, Any]]:
        """Return the faults since the last call."""
        taken = list(self.faults)
        self.faults.clear()
        return taken

    def take(self) -> MetricsSnapshot:
        """Return what was recorded since the last call, and forget it."""
        taken = MetricsSnapshot(
            [tuple(record) for record in self._records()], self._new_count, self._new_faulty,
            self._first_fault, self._unclaimed, list(self._media), self.take_faults(),
        )  # fmt: skip
        self._forget_new()
        self._first_fault, self._unclaimed = None, Fraction()
        return taken

    def absorb(self, taken: MetricsSnapshot) -> None:
        """Add the snapshot of another process."""
        self._records().extend(map(EpisodeSummary._make, taken.records))
        self._media.extend(taken.media)
        self.faults.extend(taken.faults)
        self._new_count += taken.episodes
        self.episodes_total += taken.episodes
        self._new_faulty += taken.faulty
        self._faulty_total += taken.faulty
        self._first_fault = self._first_fault or taken.first_fault
        self._unclaimed += taken.unclaimed

    def summary(self) -> dict[str, Any]:
        """Return RLlib's result keys and begin a new iteration."""
        new, count, faulty = self.finished(), self._new_count, self._new_faulty
        media = [shown for _, shown in sorted(self._media, key=itemgetter(0))]
        self._forget_new()
        self._silent += 1
        ended = self.episodes_total or self._faulty_total
        if self._silent == _LONG and not ended and not self._is_external:
            warnings.warn(
                f"train: no episode has ended in {_LONG} iterations, so episode_reward_mean and the other means are "
                "None, expected environments that end episodes; wrap yours in menv.wrappers.TimeLimit to truncate them",
                stacklevel=4,
            )
        missing = max(0, self._window - len(new))
        episodes = [*list(self._before)[len(self._before) - min(missing, len(self._before)) :], *new]
        self._before.extend(new)
        returns = [episode.total_reward for episode in episodes]
        lengths = [episode.length for episode in episodes]
        by_policy, by_agent, by_group = _apart(episodes)
        shown = _without_strangers(by_agent)
        omitted = _count(by_agent) - _count(shown) + sum(len(episode.others) for episode in episodes)
        return {
            "episode_reward_mean": _mean(returns),
            "episode_reward_min": min(returns, default=None),
            "episode_reward_max": max(returns, default=None),
            "episode_len_mean": _mean(lengths),
            "episodes_this_iter": count,
            "episodes_in_window": len(episodes),
            "episodes_total": self.episodes_total,
            **_mean_min_max("policy_reward", by_policy),
            **_mean_min_max("agent_reward", shown),
            **_mean_min_max("group_reward", by_group),
            "matchups": self._matchups(episodes),
            "agent_rewards_omitted": omitted,
            "unclaimed_rewards": self.unclaimed_rewards,
            "num_faulty_episodes": faulty,
            "faulty_episodes_total": self._faulty_total,
            "first_fault": self._first_fault,
            "num_episodes_not_resumed": self.episodes_not_resumed,
            "custom_metrics": _custom(episodes),
            "episode_media": _merged({name: [value] for name, value in shown.items()} for shown in media),
            "hist_stats": {
                "episode_reward": returns,
                "episode_lengths": lengths,
                **{f"policy_{policy}_reward": values for policy, values in by_policy.items()},
                **_merged(episode.hist_data for episode in episodes),
            },
        }

    def _matchups(self, episodes: Sequence[EpisodeSummary]) -> dict[Any, dict[Any, dict[str, float]]]:
        """Return the outcomes of each player against each other one, {} unless each episode is a zero-sum game.

        Players are policies, or agents in an episode in which one policy has all of them. Each pair of their agents is
        a game.
        """
        counts: dict[Any, dict[Any, list[int]]] = {}
        for episode in episodes:
            returns = list(episode.rewards.values())
            if not 2 <= len(returns) <= _MOST_PLAYERS or not is_zero_sum(returns):
                return {}
            self._decided = self._decided or any(returns)
            names = list(zip(*episode.rewards, strict=True))
            seats = zip(names[len(set(names[1])) > 1], returns, strict=True)
            for (one, mine), (other, theirs) in permutations(seats, 2):
                if one != other:
                    row = counts.setdefault(one, {}).setdefault(other, [0, 0, 0])
                    row[outcome(mine, theirs)] += 1
        if not self._decided or len(counts) > _MOST_AGENTS:
            return {}
        return {one: {other: shares(row) for other, row in rows.items()} for one, rows in counts.items()}

    def state(self) -> MetricsState:
        """Return what the next summaries depend on; episodes of an iteration under way are in its window."""
        episodes = [*self._before, *self.finished()]
        return MetricsState(
            list(map(_storable, episodes[max(0, len(episodes) - self._window) :])),
            self._faulty_total,
            self._first_fault,
            self._unclaimed.as_integer_ratio(),
            self.episodes_total,
            self.episodes_not_resumed,
            self._decided,
        )

    def set_state(self, state: MetricsState) -> None:
        """Restore what `state` returned."""
        self._forget_new()
        self._before.clear()
        self._before.extend(state.window)
        self._faulty_total, self._first_fault = state.faulty_total, state.first_fault
        self._unclaimed = Fraction(*state.unclaimed_rewards)
        self.episodes_total, self.episodes_not_resumed = state.episodes_total, state.episodes_not_resumed
        self._decided = state.decided

    def _forget_new(self) -> None:
        self._media.clear()
        self._new.clear()
        self._unread = []
        self._new_count = self._new_faulty = 0

    def finished(self) -> list[EpisodeSummary]:
        """Return the episodes of this iteration in the order in which they ended."""
        return sorted(self._records(), key=attrgetter("when"))


def _summaries(
    pairs: Sequence[tuple[AgentId, str]], returns: FloatArray, paid: Flags | None, lengths: IntArray,
    when: Sequence[When] | None,
) -> Iterator[EpisodeSummary]:  # fmt: skip
    """Yield the records of the episodes that `Metrics.record_many` was given."""
    first, beyond = pairs[:_MOST_AGENTS], [policy for _, policy in pairs[_MOST_AGENTS:]]
    when = [AS_THEY_COME] * len(lengths) if when is None else when
    for place, (earned, length, at) in enumerate(zip(returns.tolist(), lengths.tolist(), when, strict=True)):
        rewards = dict(zip(first, earned, strict=False))
        others = list(zip(beyond, earned[_MOST_AGENTS:], strict=True)) if beyond else ()
        if paid is not None:
            has = paid[place].tolist()
            rewards = dict(compress(rewards.items(), has))
            others = list(compress(others, has[_MOST_AGENTS:]))
        yield EpisodeSummary(sum(earned), length, rewards, others, _NOTHING, _NOTHING, _NOTHING, at)


def _too_large(where: str, agents: Sequence[AgentId]) -> ContractError:
    whose = f" of agent {agents[0]!r}" if agents else ""
    return ContractError(f"{where}: the rewards{whose} overflow a float64; scale the rewards")


def _apart(episodes: Sequence[EpisodeSummary]) -> tuple[Returns, Returns, Returns]:
    by_policy: Returns = {}
    by_agent: Returns = {}
    by_group: Returns = {}
    for episode in episodes:
        for (agent_id, policy_id), reward in episode.rewards.items():
            by_policy.setdefault(policy_id, []).append(reward)
            by_agent.setdefault(agent_id, []).append(reward)
            if agent_id in episode.members:
                by_group.setdefault(agent_id, []).append(reward)
        for policy_id, reward in episode.others:
            by_policy.setdefault(policy_id, []).append(reward)
        for members in episode.members.values():
            for agent_id, reward in members.items():
                by_agent.setdefault(agent_id, []).append(reward)
    return by_policy, by_agent, by_group


def is_zero_sum(returns: Collection[float]) -> bool:
    """Return whether the returns of an episode add up to zero, but for rounding."""
    return abs(math.fsum(returns)) <= 1e-6 * max(1.0, *map(abs, returns))


def outcome(mine: float, theirs: float) -> int:
    """Return 0 for a win, 1 for a draw, 2 for a loss."""
    return 1 if mine == theirs else 2 * (mine < theirs)


def shares(outcomes: Sequence[float]) -> dict[str, float]:
    """Return the shares of wins, draws and losses."""
    games = sum(outcomes)
    return {kind: number / games for kind, number in zip(("win", "draw", "loss"), outcomes, strict=True)}


def _without_strangers(by_agent: Returns) -> Returns:
    """Return the returns of the `_MOST_AGENTS` agents with the most episodes."""
    if len(by_agent) <= _MOST_AGENTS:
        return by_agent
    kept = heapq.nlargest(_MOST_AGENTS, by_agent, key=lambda agent_id: len(by_agent[agent_id]))
    return {agent_id: by_agent[agent_id] for agent_id in kept}


def _count(returns: Returns) -> int:
    return sum(map(len, returns.values()))


def _mean_min_max(name: str, returns: Returns) -> dict[str, dict[Any, float | None]]:
    return {
        f"{name}_mean": {key: _mean(values) for key, values in returns.items()},
        f"{name}_min": {key: min(values) for key, values in returns.items()},
        f"{name}_max": {key: max(values) for key, values in returns.items()},
    }


def _mean(values: Sequence[float]) -> float | None:
    if not values:
        return None
    total = sum(values)
    # A float64 holds each of them and not the sum.
    return total / len(values) if math.isfinite(total) else sum(value / len(values) for value in values)


def _number(where: str, value: Any) -> float:
    """Return a custom metric as a float; NaN means that the episode has none."""
    try:
        number = float(value)
        if not math.isinf(number):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    shown = value if isinstance(value, float) else type(value).__name__
    raise ContractError(
        f"{where}: {shown}, expected a finite number, or NaN where there is none; put lists of numbers into hist_data, "
        "anything else into media"
    )


def _numbers(where: str, values: Any) -> list[float]:
    """Return the entries of `hist_data` without NaN."""
    if not isinstance(values, Iterable) or isinstance(values, Mapping | str):
        raise ContractError(
            f"{where}: {type(values).__name__}, expected a list of numbers; put a single number into custom_metrics"
        )
    numbers = [_number(where, value) for value in values]
    return [number for number in numbers if not math.isnan(number)]


def _custom(episodes: Sequence[EpisodeSummary]) -> dict[str, float | None]:
    """Return mean, min and max of each custom metric."""
    out: dict[str, float | None] = {}
    for name, values in _merged(
        {name: [] if math.isnan(value) else [value] for name, value in episode.custom_metrics.items()}
        for episode in episodes
    ).items():
        out[f"{name}_mean"] = _mean(values)
        out[f"{name}_min"], out[f"{name}_max"] = min(values, default=None), max(values, default=None)
    return out


def _merged(parts: Iterable[Mapping[str, Iterable[Any]]]) -> dict[str, list[Any]]:
    """Return the values of each name in all parts, in order."""
    merged: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in part.items():
            merged.setdefault(name, []).extend(values)
    return merged


@dataclass(slots=True)
class Timers:
    """Seconds since the last `take`.

    Attributes:
        env: Environments: their steps and resets, converting their results, and waiting for remote ones.
        act: Choosing actions: networks, custom policies, random numbers, connectors of actions.
        complete: Completing fragments: values, advantages, postprocessing.
    """

    env: float = 0.0
    act: float = 0.0
    complete: float = 0.0

    def add(self, other: Timers) -> None:
        self.env += other.env
        self.act += other.act
        self.complete += other.complete

    def take(self) -> Self:
        """Return a copy and start again from 0."""
        taken = type(self)(*astuple(self))
        self.env = self.act = self.complete = 0.0
        return taken

    def as_seconds(self) -> dict[str, float]:
        """Return the seconds by their names in results."""
        return {f"{field.name}_time_s": getattr(self, field.name) for field in fields(self)}
