"""Episodes that ended, summed up for the result of one training iteration.

`menv.loop.sampler` records, an algorithm asks for the summary. A window without an episode gives
None and a count of 0, never NaN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from menv.episode import Episode

_MOST_NEW = 10_000


class Metrics:
    """A window over the latest episodes.

    Args:
        window: How many of the latest episodes are averaged, at least all of this iteration's.
    """

    def __init__(self, window: int = 100) -> None:
        self._window = window
        self._before: deque[Episode] = deque(maxlen=window)
        # Of this iteration; bounded, because nobody may ever ask for a summary.
        self._new: deque[Episode] = deque(maxlen=max(window, _MOST_NEW))
        self._new_count = 0
        self._new_faulty = 0
        self.unclaimed_rewards = 0.0
        self.episodes_total = 0

    def record(self, episode: Episode) -> None:
        """Take in an episode that ended."""
        self._new.append(episode)
        self._new_count += 1
        self.episodes_total += 1
        self.unclaimed_rewards += episode.unclaimed_rewards

    def record_faulty(self) -> None:
        """Count an episode that a fault of its environment broke off; it is in no mean."""
        self._new_faulty += 1

    def summary(self) -> dict[str, Any]:
        """Return the classic result keys and begin a new iteration."""
        new, count, faulty = list(self._new), self._new_count, self._new_faulty
        self._new.clear()
        self._new_count = self._new_faulty = 0
        missing = max(0, self._window - len(new))
        episodes = [*list(self._before)[len(self._before) - min(missing, len(self._before)) :], *new]
        self._before.extend(new)
        returns = [episode.total_reward for episode in episodes]
        lengths = [episode.length for episode in episodes]
        by_policy: dict[str, list[float]] = {}
        for episode in episodes:
            for (_, policy_id), reward in episode.agent_rewards.items():
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
            "episode_media": _media(new),
            "hist_stats": {
                "episode_reward": returns,
                "episode_lengths": lengths,
                **{f"policy_{policy}_reward": values for policy, values in by_policy.items()},
                **_histograms(episodes),
            },
        }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _custom(episodes: Sequence[Episode]) -> dict[str, float]:
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


def _media(episodes: Sequence[Episode]) -> dict[str, list[Any]]:
    """Return what episodes left to look at under each name, and let go of it: it may be large."""
    out: dict[str, list[Any]] = {}
    for episode in episodes:
        for name, value in episode.media.items():
            out.setdefault(name, []).append(value)
        if episode.media:
            episode.media = {}
    return out


def _histograms(episodes: Sequence[Episode]) -> dict[str, list[float]]:
    """Return the lists that episodes gathered under each name."""
    out: dict[str, list[float]] = {}
    for episode in episodes:
        for name, values in episode.hist_data.items():
            out.setdefault(name, []).extend(values)
    return out
