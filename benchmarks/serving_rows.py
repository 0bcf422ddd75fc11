"""The rows of the table for servers: actions asked for over a socket, beside the bare echo of the same transport."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks import processes
from benchmarks.echo_servers import serving
from benchmarks.processes import ROOT
from benchmarks.rows import Effort, Finding, Row, alternate
from benchmarks.transport_rows import Place, above_bare, added_beside, bodies_a_second, load, trips_a_second


def actions_above_echo(kind: str) -> Callable[[Effort], Finding]:
    """Compare the median round trips of one client; the rates of the finding are one by them."""

    def measure(effort: Effort) -> Finding:
        with (
            serving("benchmarks.echo_servers", "bare", kind) as bare,
            serving("benchmarks.policy_servers", kind) as ours,
        ):
            floor = partial(trips_a_second, kind, bare, effort)
            found = alternate(floor, partial(trips_a_second, kind, ours, effort, play=True), effort.repeats)
        return above_bare(found, "bare echo")

    return measure


def many_actions(kind: str) -> Callable[[Effort], Finding]:
    """Compare actions a second of 64 clients with echoes a second."""

    def measure(effort: Effort) -> Finding:
        with (
            serving("benchmarks.echo_servers", "bare", kind) as bare,
            counting("benchmarks.policy_servers", kind) as (ours, counts),
        ):
            floor = partial(bodies_a_second, kind, bare, effort)
            found = alternate(floor, partial(bodies_a_second, kind, ours, effort, play=True), effort.repeats)
        rows = counts["actions"] / max(1, counts["calls"])
        return Finding(
            value=found.value, floors=found.floors, rates=found.rates, note=f"{rows:.1f} actions a call"
        )

    return measure


@contextmanager
def heavy_peers(place: Place) -> Iterator[None]:
    """Have eight peers send the bodies that take longest to read."""
    command = [sys.executable, "-m", "benchmarks.heavy_peers", *map(str, place)]
    with subprocess.Popen(command, cwd=ROOT) as crowd:
        try:
            time.sleep(1.0)
            yield
        finally:
            crowd.kill()


def beside_heavy_bodies(effort: Effort) -> Finding:
    """Return how much longer the 99th of 100 actions takes that one client asks for."""
    with serving("benchmarks.policy_servers", "tcp") as place:
        alone = [load("tcp", place, effort, play=True) for _ in range(effort.repeats)]
        with heavy_peers(place):
            beside = [load("tcp", place, effort, play=True) for _ in range(effort.repeats)]
    return added_beside(alone, beside)


def client_side(effort: Effort) -> Finding:
    """Compare env steps a second of a client that holds the policy with those of sampling in process."""

    def played(*where: object) -> float:
        run = processes.run("-m", "benchmarks.local_player", *where, "--seconds", 2 * effort.seconds)
        return float(run.result["per_second"])

    with serving("benchmarks.policy_servers", "tcp") as (host, port):
        return alternate(partial(played, "here"), partial(played, "client", host, port), effort.repeats)


@contextmanager
def counting(*command: str) -> Iterator[tuple[Place, dict[str, int]]]:
    """Run a server like `serving`; yield where it listens, and a dict that is filled when it has ended."""
    with subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        counts: dict[str, int] = {}
        try:
            place = json.loads(process.stdout.readline())
            yield (place["host"], place["port"]), counts
        finally:
            process.stdin.close()
            counts.update(json.loads(process.stdout.readline() or "{}"))
            process.wait()


ROWS = (
    *(
        row
        for kind in ("tcp", "http")
        for row in (
            Row(
                name=f"{kind}_actions",
                text=f"{kind}, one client asks for actions, p50 above the bare echo's",
                unit="ms",
                reach=0.30,
                aim=0.12,
                measure=actions_above_echo(kind),
                peer=2.5,
                at_most=True,
            ),
            Row(
                name=f"{kind}_64_players",
                text=f"{kind}, 64 clients ask for actions, a second",
                unit="x bare echo",
                reach=0.5,
                aim=0.7,
                measure=many_actions(kind),
            ),
        )
    ),
    Row(
        name="client_side",
        text="CartPole by a client that holds the policy, episodes sent",
        unit="x one env here",
        reach=0.6,
        aim=0.9,
        measure=client_side,
    ),
    Row(
        name="beside_heavy_bodies",
        text="tcp, added by 8 peers with the worst bodies, 99th of 100 actions",
        unit="ms",
        reach=50.0,
        aim=20.0,
        measure=beside_heavy_bodies,
        at_most=True,
    ),
)
