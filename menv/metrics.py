"""Episodes that ended, summed up for the result of one training iteration.

`menv.sampling.sampler` records, an algorithm asks for the summary. A window without an episode gives
None and a count of 0, never NaN.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from fractions import Fraction
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, Self, TypeAlias

from menv.base_env import SINGLE_AGENT, AgentId
from menv.episode import (
    AS_THEY_COME,
    MOST_AGENTS,
    Episode,
    EpisodeSummary,
    When,
    as_plain,
    cut_short,
    from_plain,
)
from menv.errors import ContractError

Returns: TypeAlias = dict[Any, list[float]]
Solos: TypeAlias = "tuple[tuple[AgentId, str], Sequence[float], Sequence[int], Sequence[When]]"
"""Episodes of one agent each: who it was and who answered for it, the returns, the env steps, when they ended."""

_MOST_NEW = 10_000
_NOTHING: Mapping[Any, Any] = {}


class MetricsSnapshot(NamedTuple):
    """What metrics have recorded since they were last asked, on its way to those of another process.

    Attributes:
        records: Episodes; the fields of a `EpisodeSummary` each, for a plain tuple is pickled ten times as fast.
        solos: Episodes of which there is no more to say.
        episodes: How many they all are; the oldest of very many are not among them.
        faulty: Episodes that a fault broke off.
        first_fault: The first of them in a line.
        unclaimed: The sum of rewards that no action could own, of these episodes.
        media: What they left to look at, and when they ended.
    """

    records: Sequence[tuple[Any, ...]]
    solos: Sequence[Solos]
    episodes: int
    faulty: int
    first_fault: str | None
    unclaimed: Fraction
    media: Sequence[tuple[When, Mapping[str, Any]]]


class Metrics:
    """A window over the latest episodes.

    Args:
        window: How many of the latest episodes are averaged, at least all of this iteration's.
    """

    def __init__(self, window: int = 100) -> None:
        self._window = window
        self._before: deque[EpisodeSummary] = deque(maxlen=window)
        # Of this iteration; bounded, because nobody may ever ask for a summary.
        self._new: deque[EpisodeSummary] = deque(maxlen=max(window, _MOST_NEW))
        # Episodes of one agent each, taken apart when they are summed up.
        self._solo: deque[Solos] = deque(maxlen=_MOST_NEW)
        self._new_count = 0
        self._new_faulty = 0
        self._faulty_total = 0
        self._first_fault: str | None = None
        # What episodes of this iteration left to look at; it may be large, so it is let go of with the summary.
        self._media: deque[tuple[When, Mapping[str, Any]]] = deque(maxlen=_MOST_NEW)
        # Exact, so that it is the same in whatever order episodes come from workers.
        self._unclaimed = Fraction()
        self.episodes_total = 0
        self.episodes_not_resumed = 0

    def record(self, episode: Episode, when: When = AS_THEY_COME) -> None:
        """Take in an episode that ended; see `EpisodeSummary.when`.

        Raises:
            ContractError: A custom metric is no number or infinite, an entry of `hist_data` no list of finite ones, or
                no float64 holds the episode's return.
        """
        rewards: Mapping[tuple[AgentId, str], float] = episode.agent_rewards
        if not math.isfinite(episode.total_reward):
            agents = [agent for (agent, _), earned in rewards.items() if not math.isfinite(earned)]
            whose = f" of agent {agents[0]!r}" if agents else ""
            raise ContractError(
                f"episode in env {episode.env_id}: the rewards{whose} add up to more than a float64 holds, expected "
                "smaller ones; scale the rewards"
            )
        others: Sequence[tuple[str, float]] = ()
        if len(rewards) > MOST_AGENTS:
            rewards, others = cut_short(episode)
        extras = episode.extras
        if extras:
            members = extras.get("member_rewards", _NOTHING)
            custom = {
                name: _number("custom_metrics", name, value)
                for name, value in extras.get("custom_metrics", _NOTHING).items()
            }
            # Their names are keys of a result, which is to be JSON.
            hist = {
                f"{name}": _numbers("hist_data", name, values)
                for name, values in extras.get("hist_data", _NOTHING).items()
            }
            if "media" in extras:
                self._media.append((when, extras["media"]))
        else:
            members, custom, hist = _NOTHING, {}, {}
        total, length = episode.total_reward, episode.length
        self._new.append(EpisodeSummary(total, length, rewards, others, members, custom, hist, when))
        self._new_count += 1
        self.episodes_total += 1
        self.add_unclaimed(episode.unclaimed_rewards)

    @property
    def unclaimed_rewards(self) -> float:
        """Sum of rewards that no action could own."""
        return float(self._unclaimed)

    def add_unclaimed(self, reward: float) -> None:
        """Count what an episode was paid that no action could own."""
        if reward:
            self._unclaimed += Fraction(float(reward))

    def record_many(
        self, policy_id: str, returns: Sequence[float], lengths: Sequence[int], when: Sequence[When] = ()
    ) -> None:
        """Take in episodes of one agent each that ended and of which there is no more to say."""
        self._solo.append(
            ((SINGLE_AGENT, policy_id), returns, lengths, when or [AS_THEY_COME] * len(returns))
        )
        self._new_count += len(returns)
        self.episodes_total += len(returns)

    def record_faulty(self, line: str) -> None:
        """Count an episode that a fault of its environment broke off; it is in no mean.

        Args:
            line: What happened; the first of a run is kept.
        """
        self._new_faulty += 1
        self._faulty_total += 1
        self._first_fault = self._first_fault or line

    def take(self) -> MetricsSnapshot:
        """Return what was recorded since the last time, and forget it."""
        taken = MetricsSnapshot(
            [tuple(record) for record in self._new], list(self._solo), self._new_count, self._new_faulty,
            self._first_fault, self._unclaimed, list(self._media),
        )  # fmt: skip
        self._forget_new()
        self._first_fault, self._unclaimed = None, Fraction()
        return taken

    def absorb(self, taken: MetricsSnapshot) -> None:
        """Record what another process took in."""
        self._new.extend(map(EpisodeSummary._make, taken.records))
        self._solo.extend(taken.solos)
        self._media.extend(taken.media)
        self._new_count += taken.episodes
        self.episodes_total += taken.episodes
        self._new_faulty += taken.faulty
        self._faulty_total += taken.faulty
        self._first_fault = self._first_fault or taken.first_fault
        self._unclaimed += taken.unclaimed

    def summary(self) -> dict[str, Any]:
        """Return the classic result keys and begin a new iteration."""
        new, count, faulty = self._in_order(), self._new_count, self._new_faulty
        media = [shown for _, shown in sorted(self._media, key=itemgetter(0))]
        self._forget_new()
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
            "agent_rewards_omitted": omitted,
            "unclaimed_rewards": self.unclaimed_rewards,
            "num_faulty_episodes": faulty,
            "faulty_episodes_total": self._faulty_total,
            "first_fault": self._first_fault,
            "num_episodes_not_resumed": self.episodes_not_resumed,
            "custom_metrics": _custom(episodes),
            "episode_media": _media(media),
            "hist_stats": {
                "episode_reward": returns,
                "episode_lengths": lengths,
                **{f"policy_{policy}_reward": values for policy, values in by_policy.items()},
                **_histograms(episodes),
            },
        }

    def state(self) -> dict[str, Any]:
        """Return what the next summaries depend on, but for `episode_media`, as a plain tree."""
        return {
            "before": [as_plain(record) for record in self._before],
            "new": [as_plain(record) for record in self._in_order()],
            "new_count": self._new_count,
            "new_faulty": self._new_faulty,
            "faulty_total": self._faulty_total,
            "first_fault": self._first_fault,
            "unclaimed_rewards": str(self._unclaimed),
            "episodes_total": self.episodes_total,
            "episodes_not_resumed": self.episodes_not_resumed,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        for window, records in ((self._before, state["before"]), (self._new, state["new"])):
            window.clear()
            window.extend(map(from_plain, records))
        self._solo.clear()
        self._media.clear()
        self._new_count, self._new_faulty = int(state["new_count"]), int(state["new_faulty"])
        self._faulty_total, self._first_fault = int(state["faulty_total"]), state["first_fault"]
        self._unclaimed, self.episodes_total = (
            _exact(state["unclaimed_rewards"]),
            int(state["episodes_total"]),
        )
        self.episodes_not_resumed = int(state["episodes_not_resumed"])

    def _forget_new(self) -> None:
        self._media.clear()
        self._new.clear()
        self._solo.clear()
        self._new_count = self._new_faulty = 0

    def _in_order(self) -> list[EpisodeSummary]:
        solos = [
            EpisodeSummary(reward, length, {key: reward}, (), _NOTHING, _NOTHING, _NOTHING, when)
            for key, *columns in self._solo
            for reward, length, when in zip(*columns, strict=True)
        ]
        return sorted([*self._new, *solos], key=attrgetter("when"))


def _exact(told: str) -> Fraction:
    """Return the sum that `state` wrote, such as "33/10"."""
    # Fraction itself would also read "1e999999999", which takes for ever.
    return Fraction(*map(int, told.split("/")))


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


def _without_strangers(by_agent: Returns) -> Returns:
    """Return the returns of the agents that lived in most of the episodes, `MOST_AGENTS` of them at most."""
    if len(by_agent) <= MOST_AGENTS:
        return by_agent
    kept = heapq.nlargest(MOST_AGENTS, by_agent, key=lambda agent_id: len(by_agent[agent_id]))
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


def _number(where: str, name: str, value: Any) -> float:
    """Return what a callback has put into an episode as a number, NaN where it has none."""
    try:
        number = float(value)
    except OverflowError:
        raise ContractError(
            f"episode.{where}[{name!r}]: more than a float64 holds, expected a smaller number; scale it"
        ) from None
    except (TypeError, ValueError):
        hint = "lists of numbers belong into hist_data, anything else into media"
        raise ContractError(
            f"episode.{where}[{name!r}]: {type(value).__name__}, expected a number; {hint}"
        ) from None
    if math.isinf(number):
        raise ContractError(
            f"episode.{where}[{name!r}]: {number}, expected a finite number, or NaN where there is none; leave it out "
            "of such an episode"
        )
    return number


def _numbers(where: str, name: str, values: Any) -> list[float]:
    """Return what a callback has put into an episode as a list of numbers; a NaN is none."""
    if not isinstance(values, Iterable) or isinstance(values, Mapping | str):
        raise ContractError(
            f"episode.{where}[{name!r}]: {type(values).__name__}, expected a list of numbers; append to a list, or put "
            "a single number into custom_metrics"
        )
    numbers = [_number(where, name, value) for value in values]
    return [number for number in numbers if not math.isnan(number)]


def _custom(episodes: Sequence[EpisodeSummary]) -> dict[str, float | None]:
    """Return mean, min and max of each custom metric; a NaN says that an episode has none."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.custom_metrics.items():
            told = found.setdefault(name, [])
            if not math.isnan(value):
                told.append(value)
    out: dict[str, float | None] = {}
    for name, values in found.items():
        out[f"{name}_mean"] = _mean(values)
        out[f"{name}_min"], out[f"{name}_max"] = min(values, default=None), max(values, default=None)
    return out


def _media(shown: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for media in shown:
        for name, value in media.items():
            out.setdefault(name, []).append(value)
    return out


def _histograms(episodes: Sequence[EpisodeSummary]) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {}
    for episode in episodes:
        for name, values in episode.hist_data.items():
            out.setdefault(name, []).extend(values)
    return out


@dataclass(slots=True)
class Timers:
    """Seconds since somebody took them.

    Attributes:
        env: In environments: their steps and resets, what turns their answers into rows, and waiting for those that are
            elsewhere or call.
        act: In deciding: networks, policies of one's own, draws, connectors of actions.
        complete: In what is added to a fragment before anybody learns: values, advantages, postprocessing.
    """

    env: float = 0.0
    act: float = 0.0
    complete: float = 0.0

    def add(self, other: Timers) -> None:
        """Add those of somebody else."""
        self.env += other.env
        self.act += other.act
        self.complete += other.complete

    def take(self) -> Self:
        """Return them, and begin anew."""
        taken = type(self)(*astuple(self))
        self.env = self.act = self.complete = 0.0
        return taken

    def as_seconds(self) -> dict[str, float]:
        """Return them under the names that results have."""
        return {f"{field.name}_time_s": getattr(self, field.name) for field in fields(self)}
