"""What a server counts for Prometheus, and the text that `GET /metrics` returns."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_UPDATES = (0, 1, 2, 5, 10, 50)


class Histogram:
    """Counts values by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, values: Iterable[float]) -> None:
        for value in values:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return the cumulative count of each bound, as text, and the sum of all values."""
        names = [*map(str, self._bounds), "+Inf"]
        totals = [sum(self._counts[: index + 1]) for index in range(len(names))]
        return list(zip(names, totals, strict=True)), self._sum


class ServerMetrics:
    """The figures of one server.

    Attributes:
        latency: Seconds from receiving a request to sending its action.
        staleness: Updates by which the weights of received episodes were behind.
        refusals: Refused messages and connections by code.
    """

    def __init__(self, clients: Callable[[], int], open_episodes: Callable[[], int]) -> None:
        self._clients, self._open_episodes = clients, open_episodes
        self.latency = Histogram(_SECONDS)
        self.staleness = Histogram(_UPDATES)
        self.refusals: Counter[str] = Counter()

    def text(self) -> bytes:
        """Return all figures in Prometheus' text format. Needs the package prometheus_client."""
        from prometheus_client import CollectorRegistry, generate_latest

        # Not the global registry: a process may run several servers.
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Any]:
        """Yield the families of metrics; called by Prometheus' registry."""
        from prometheus_client import core

        yield core.GaugeMetricFamily("menv_clients", "Connected clients.", self._clients())
        yield core.GaugeMetricFamily("menv_open_episodes", "Open episodes.", self._open_episodes())
        buckets, total = self.latency.buckets()
        yield core.CounterMetricFamily("menv_actions", "Actions sent.", buckets[-1][1])
        yield core.HistogramMetricFamily(
            "menv_action_latency_seconds", "From receiving a request to sending its action.", buckets, total
        )
        buckets, total = self.staleness.buckets()
        yield core.HistogramMetricFamily(
            "menv_staleness_updates", "Updates by which the weights of episodes are behind.", buckets, total
        )
        refusals = core.CounterMetricFamily(
            "menv_refusals", "Refused messages and connections.", labels=["code"]
        )
        for code, count in sorted(self.refusals.items()):
            refusals.add_metric([code], count)
        yield refusals
