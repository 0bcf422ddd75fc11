"""Episodes that ended, summed up for the result of one training iteration.

`menv.loop.sampler` records, an algorithm asks for the summary. A window without an episode gives
None and a count of 0, never NaN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from menv.episode import Episode

_MOST_NEW = 10_000
_NOTHING: Mapping[str, Any] = {}


class Record(NamedTuple):
    """What is kept of an episode.

    Attributes:
        total_reward: Of all agents, unclaimed rewards included.
        length: Env steps.
        rewards: The return of each agent, with the policy that answered for it.
        custom_metrics: See `Episode`.
        hist_data: See `Episode`.
    """

    total_reward: float
    length: int
    rewards: Sequence[tuple[str, float]]
    custom_metrics: Mapping[str, float]
    hist_data: Mapping[str, list[float]]


class Metrics:
    """A window over the latest episodes.

    Args:
        window: How many of the latest episodes are averaged, at least all of this iteration's.
    """

    def __init__(self, window: int = 100) -> None:
        self._window = window
        self._before: deque[Record] = deque(maxlen=window)
        # Of this iteration; bounded, because nobody may ever ask for a summary.
        self._new: deque[Record] = deque(maxlen=max(window, _MOST_NEW))
        # Episodes of one agent each, taken apart when they are summed up.
        self._solo: deque[tuple[str, Sequence[float], Sequence[int]]] = deque(maxlen=_MOST_NEW)
        self._new_count = 0
        self._new_faulty = 0
        # What episodes of this iteration left to look at; it may be large, so it is let go of with the summary.
        self._media: deque[Mapping[str, Any]] = deque(maxlen=_MOST_NEW)
        self.unclaimed_rewards = 0.0
        self.episodes_total = 0

    def record(self, episode: Episode) -> None:
        """Take in an episode that ended."""
        rewards = [(policy_id, reward) for (_, policy_id), reward in episode.agent_rewards.items()]
        extras = episode.extras
        custom, hist = extras.get("custom_metrics", _NOTHING), extras.get("hist_data", _NOTHING)
        self._new.append(Record(episode.total_reward, episode.length, rewards, custom, hist))
        if "media" in extras:
            self._media.append(extras["media"])
        self._new_count += 1
        self.episodes_total += 1
        self.unclaimed_rewards += episode.unclaimed_rewards

    def record_many(self, policy_id: str, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Take in episodes of one agent each that ended and of which there is no more to say."""
        self._solo.append((policy_id, returns, lengths))
        self._new_count += len(returns)
        self.episodes_total += len(returns)

    def record_faulty(self) -> None:
        """Count an episode that a fault of its environment broke off; it is in no mean."""
        self._new_faulty += 1

    def summary(self) -> dict[str, Any]:
        """Return the classic result keys and begin a new iteration."""
        new, count, faulty = [*self._new, *self._solos()], self._new_count, self._new_faulty
        media = list(self._media)
        self._media.clear()
        self._new.clear()
        self._solo.clear()
        self._new_count = self._new_faulty = 0
        missing = max(0, self._window - len(new))
        episodes = [*list(self._before)[len(self._before) - min(missing, len(self._before)) :], *new]
        self._before.extend(new)
        returns = [episode.total_reward for episode in episodes]
        lengths = [episode.length for episode in episodes]
        by_policy: dict[str, list[float]] = {}
        for episode in episodes:
            for policy_id, reward in episode.rewards:
                by_policy.setdefault(policy_id, []).append(reward)
        return {
            "episode_reward_mean": _mean(returns),
            "episode_reward_min": min(returns, default=None),
            "episode_reward_max": max(returns, default=None),
            "episode_len_mean": _mean(lengths),
            "episodes_this_iter": count,
            "episodes_in_window": len(episodes),
            "episodes_total": self.episodes_total,
            "policy_reward_mean": {policy: _mean(values) for policy, values in by_policy.items()},
            "policy_reward_min": {policy: min(values) for policy, values in by_policy.items()},
            "policy_reward_max": {policy: max(values) for policy, values in by_policy.items()},
            "unclaimed_rewards": self.unclaimed_rewards,
            "num_faulty_episodes": faulty,
            "custom_metrics": _custom(episodes),
            "episode_media": _media(media),
            "hist_stats": {
                "episode_reward": returns,
                "episode_lengths": lengths,
                **{f"policy_{policy}_reward": values for policy, values in by_policy.items()},
                **_histograms(episodes),
            },
        }

    def _solos(self) -> list[Record]:
        """Return what is kept of the episodes of one agent each."""
        return [
            Record(reward, length, ((policy_id, reward),), _NOTHING, _NOTHING)
            for policy_id, returns, lengths in self._solo
            for reward, length in zip(returns, lengths, strict=True)
        ]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _custom(episodes: Sequence[Record]) -> dict[str, float]:
    """Return mean, min and max of each custom metric."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.custom_metrics.items():
            found.setdefault(name, []).append(float(value))
    out: dict[str, float] = {}
    for name, values in found.items():
        out[f"{name}_mean"] = sum(values) / len(values)
        out[f"{name}_min"], out[f"{name}_max"] = min(values), max(values)
    return out


def _media(shown: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return what episodes left to look at under each name."""
    out: dict[str, list[Any]] = {}
    for media in shown:
        for name, value in media.items():
            out.setdefault(name, []).append(value)
    return out


def _histograms(episodes: Sequence[Record]) -> dict[str, list[float]]:
    """Return the lists that episodes gathered under each name."""
    out: dict[str, list[float]] = {}
    for episode in episodes:
        for name, values in episode.hist_data.items():
            out.setdefault(name, []).extend(values)
    return out
