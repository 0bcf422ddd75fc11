"""Where the time of a run went, in a line for its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

_SAMPLING = {"env_time_s": "environments", "act_time_s": "deciding", "complete_time_s": "completing batches"}


class Spent:
    """Adds up what results tell of times."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()
        self._workers = False

    def add(self, result: Mapping[str, Any]) -> None:
        """Take in the result of an iteration."""
        self._seconds.update(result["sampler_perf"])
        self._seconds["all"] += result["time_this_iter_s"]
        self._workers = "num_worker_restarts" in result

    @property
    def line(self) -> str:
        """Shares of the whole; of runs with workers those of the workers and of this process. Empty before a result."""
        seconds = self._seconds
        if not seconds["all"]:
            return ""
        sampling = {name: seconds[key] for key, name in _SAMPLING.items()}
        learning = {"learning": seconds["learn_time_s"]}
        if not self._workers:
            return "time: " + _shares({**sampling, **learning}, seconds["all"], "everything else")
        own = {"waiting for workers": seconds["sample_time_s"], **learning}
        return (
            f"time of workers: {_shares(sampling, sum(sampling.values()) or 1.0)}; "
            f"of this process: {_shares(own, seconds['all'], 'everything else')}"
        )


def _shares(seconds: Mapping[str, float], whole: float, rest: str = "") -> str:
    shares = {name: round(100 * part / whole) for name, part in seconds.items()}
    if rest:
        shares[rest] = max(0, 100 - sum(shares.values()))
    return ", ".join(f"{share} % {name}" for name, share in shares.items())
