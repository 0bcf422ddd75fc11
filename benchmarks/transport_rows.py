"""The rows of the table for transports: how much they add to the bare echo of the same kind."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks import processes
from benchmarks.echo_servers import serving
from benchmarks.rows import Effort, Finding, Row, alternate

MANY = 64
Place = tuple[str, int]


def load(kind: str, place: Place, effort: Effort, **options: object) -> dict[str, float]:
    """Return what clients in a process of their own found."""
    extra: list[object] = []
    for name, value in options.items():
        extra += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
    run = processes.run("-m", "benchmarks.load", kind, *place, "--seconds", effort.seconds, *extra)
    return run.result


@contextmanager
def both(kind: str) -> Iterator[tuple[Place, Place]]:
    """Run the bare echo and ours; yield where they listen."""
    with (
        serving("benchmarks.echo_servers", "bare", kind) as bare,
        serving("benchmarks.echo_servers", "ours", kind) as ours,
    ):
        yield bare, ours


def trips_a_second(kind: str, place: Place, effort: Effort, **options: object) -> float:
    """Return how many round trips of the median length one client makes in a second."""
    return 1e3 / load(kind, place, effort, **options)["p50_ms"]


def bodies_a_second(kind: str, place: Place, effort: Effort, **options: object) -> float:
    """Return how many bodies of 64 clients are answered in a second."""
    return load(kind, place, effort, clients=MANY, **options)["per_second"]


def above_bare(found: Finding, bare: str) -> Finding:
    """Return by how many ms our round trips are longer than bare ones, for rates that are one by them."""
    floor, ours = (1e3 / statistics.median(rates) for rates in (found.floors, found.rates))
    return Finding(
        value=ours - floor,
        floors=found.floors,
        rates=found.rates,
        note=f"p50 {ours:.3f} ms, {bare} {floor:.3f} ms",
    )


def added_beside(alone: Sequence[Mapping[str, float]], beside: Sequence[Mapping[str, float]]) -> Finding:
    """Return how much longer the 99th of 100 round trips takes beside others than alone."""
    usual = statistics.median(one["p99_ms"] for one in alone)
    added = [one["p99_ms"] - usual for one in beside]
    worst = max(one["longest_ms"] for one in beside)
    return Finding(value=statistics.median(added), rates=added, note=f"longest {worst:.1f} ms")


def round_trip(kind: str) -> Callable[[Effort], Finding]:
    """Compare the median round trips of one client; the rates of the finding are one by them."""

    def measure(effort: Effort) -> Finding:
        with both(kind) as places:
            floor, rate = (partial(trips_a_second, kind, place, effort) for place in places)
            return above_bare(alternate(floor, rate, effort.repeats), "bare")

    return measure


def many_clients(kind: str) -> Callable[[Effort], Finding]:
    """Compare bodies a second of 64 clients."""

    def measure(effort: Effort) -> Finding:
        with both(kind) as places:
            floor, rate = (partial(bodies_a_second, kind, place, effort) for place in places)
            return alternate(floor, rate, effort.repeats)

    return measure


@contextmanager
def bad_peers(kind: str, place: Place) -> Iterator[None]:
    """Have four clients send bodies of 4 MB, and four a thousand small ones at once, without a pause."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.load",
        kind,
        *map(str, place),
        "--seconds",
        "3600",
        "--clients",
        "4",
    ]
    crowd = [
        subprocess.Popen([*command, *more], cwd=processes.ROOT)
        for more in (("--body-bytes", "3900000"), ("--ahead", "1000"))
    ]
    try:
        yield
    finally:
        for one in crowd:
            one.kill()
            one.wait()


def beside_bad_peers(kind: str) -> Callable[[Effort], Finding]:
    """Return how much longer the 99th of 100 round trips of one client takes beside bad peers than alone."""

    def measure(effort: Effort) -> Finding:
        with serving("benchmarks.echo_servers", "ours", kind) as place:
            alone = [load(kind, place, effort) for _ in range(effort.repeats)]
            with bad_peers(kind, place):
                beside = [load(kind, place, effort) for _ in range(effort.repeats)]
        return added_beside(alone, beside)

    return measure


ROWS = tuple(
    row
    for kind in ("tcp", "http")
    for row in (
        Row(
            name=f"{kind}_round_trip",
            text=f"{kind}, one client, p50 of an echo above the bare one's",
            unit="ms",
            reach=0.10,
            aim=0.03,
            measure=round_trip(kind),
            at_most=True,
        ),
        Row(
            name=f"{kind}_64_clients",
            text=f"{kind}, 64 clients, echoes a second",
            unit="x bare",
            reach=0.6,
            aim=0.8,
            measure=many_clients(kind),
        ),
        Row(
            name=f"{kind}_beside_bad_peers",
            text=f"{kind}, added by 8 bad peers, 99th of 100 echoes",
            unit="ms",
            reach=50.0,
            aim=20.0,
            measure=beside_bad_peers(kind),
            at_most=True,
        ),
    )
)
