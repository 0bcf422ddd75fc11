"""The rows of the table about workers: what a second one gains, what one costs, how long it takes to be there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import floors, processes
from benchmarks.rows import Effort, Finding, Row, alternate
from benchmarks.sampling import two_policies
from menv.algorithms import PPO
from menv.envs import make_multi_agent
from menv.workers.engine import EngineName, RemoteActor
from menv.workers.process_engine import ProcessEngine

LENGTH = 128
ENGINES: Sequence[EngineName] = ("process", "ray")
Settings = dict[str, Any]


class BareLoop:
    """The bare loops of both CartPoles, to be run in a process of its own."""

    def gym(self, steps: int) -> float:
        """Return env steps per second of 64 CartPoles."""
        return floors.bare_gym("CartPole-v1", 64, steps)

    def agents(self, steps: int) -> float:
        """Return agent steps per second of 16 environments of 4 CartPoles."""
        cartpoles = make_multi_agent("CartPole-v1")
        return floors.bare_multi_agent(lambda _: cartpoles({"num_agents": 4}), 16, steps).agent_steps


Loop = Callable[[BareLoop, int], float]


def cartpole() -> tuple[Loop, int, Settings]:
    """Return the bare loop's method, its rough rate, and our settings of the same."""
    return BareLoop.gym, 200_000, {"env": "CartPole-v1", "num_envs_per_worker": 64}


def cartpoles() -> tuple[Loop, int, Settings]:
    """Return the same for 16 environments of 4 agents, 2 policies."""
    settings: Settings = {
        "env": make_multi_agent("CartPole-v1"), "num_envs_per_worker": 16, "env_config": {"num_agents": 4},
        "multiagent": two_policies(lambda agent: agent % 2),
    }  # fmt: skip
    return BareLoop.agents, 80_000, settings


def make_room(engine: EngineName) -> None:
    """Start Ray, if it is meant, with room for all workers of a row."""
    if engine == "ray":
        import ray

        ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            ignore_reinit_error=True,
        )


class Sampling:
    """An algorithm that samples and does not learn.

    Args:
        workers: How many, 0 for this process.
        engine: What they run on.
        settings: Of the algorithm, for each worker.
    """

    def __init__(self, workers: int, engine: EngineName, settings: Settings) -> None:
        each = settings["num_envs_per_worker"] * LENGTH
        self.algo = PPO(
            config={
                **settings, "num_workers": workers, "engine": engine, "rollout_fragment_length": LENGTH,
                "train_batch_size": each * max(1, workers),
            }
        )  # fmt: skip
        for _ in range(3):
            self.algo.sample()

    def rate(self, steps: int) -> float:
        """Return agent steps per second."""
        done, start = 0, time.perf_counter()
        while done < steps:
            done += self.algo.sample().agent_steps()
        return done / (time.perf_counter() - start)


def second_worker(
    engine: EngineName, what: Callable[[], tuple[Loop, int, Settings]]
) -> Callable[[Effort], Finding]:
    """Return what measures how much a second worker gains, as a share of what a second bare loop does."""

    def measure(effort: Effort) -> Finding:
        make_room(engine)
        loop, expected, settings = what()
        steps = effort.steps(expected)
        bare, ours = _bare_loops(), [Sampling(count, engine, settings) for count in (1, 2)]
        gains, shares, notes = [], [], []
        try:
            for _ in range(effort.repeats):
                alone = _together(bare[:1], loop, steps)
                one = ours[0].rate(steps)
                both = _together(bare, loop, steps)
                two = ours[1].rate(2 * steps)
                gains.append(both / alone)
                shares.append((two / one) / (both / alone))
                notes.append(two / one)
        finally:
            for sampling in ours:
                sampling.algo.stop()
            for peer in bare:
                peer.kill()
        note = f"bare gains {statistics.median(gains):.2f}, ours {statistics.median(notes):.2f}"
        return Finding(value=statistics.median(shares), rates=shares, note=note)

    return measure


def one_worker(engine: EngineName) -> Callable[[Effort], Finding]:
    """Return what compares one worker with sampling in this process."""

    def measure(effort: Effort) -> Finding:
        make_room(engine)
        _, expected, settings = cartpole()
        here, there = Sampling(0, engine, settings), Sampling(1, engine, settings)
        steps = effort.steps(expected)
        try:
            return alternate(lambda: here.rate(steps), lambda: there.rate(steps), effort.repeats)
        finally:
            here.algo.stop()
            there.algo.stop()

    return measure


def first_fragment(engine: EngineName) -> Callable[[Effort], Finding]:
    """Return what times a worker from its request to its first fragment of a few rows."""

    def measure(effort: Effort) -> Finding:
        seconds = []
        make_room(engine)
        # The driver's own imports and networks are not the worker's.
        PPO(config={"env": "CartPole-v1", "num_envs_per_worker": 4}).stop()
        for _ in range(effort.repeats):
            start = time.perf_counter()
            algo = PPO(
                config={
                    "env": "CartPole-v1",
                    "num_workers": 1,
                    "engine": engine,
                    "rollout_fragment_length": 8,
                }
            )
            algo.sample()
            seconds.append(time.perf_counter() - start)
            algo.stop()
        return Finding(value=statistics.median(seconds), rates=seconds)

    return measure


def memory(effort: Effort) -> Finding:
    """Return the resident memory of a worker process that has sampled CartPole, in MB."""
    algo = PPO(
        config={"env": "CartPole-v1", "num_workers": 1, "engine": "process", "num_envs_per_worker": 64}
    )
    algo.sample()
    status = Path(f"/proc/{algo.worker_pids()[0]}/status").read_text()
    algo.stop()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    megabytes = int(resident.split()[1]) / 1024
    return Finding(value=megabytes, rates=[megabytes])


def overlapped(effort: Effort) -> Finding:
    """Compare the time to 450 with a worker that samples meanwhile with that of one process, over three seeds."""
    limit = ("--seconds", 1 if effort.quick else 60)
    command = ("-m", "benchmarks.time_to_450")
    shares, times = [], []
    for seed in effort.seeds(5):
        pair = [
            processes.run(*command, "--seed", seed, *limit, *more)
            for more in ((), ("--workers", 1, "--overlap"))
        ]
        done = all(run.result["solved"] for run in pair)
        times.append(f"{pair[1].seconds:.1f}/{pair[0].seconds:.1f} s")
        shares.append(pair[1].seconds / pair[0].seconds if done else float("inf"))
    return Finding(value=statistics.median(shares), rates=shares, note=", ".join(times))


def _bare_loops() -> list[RemoteActor]:
    engine = ProcessEngine()
    peers: list[RemoteActor] = [engine.start(BareLoop, label=f"bare loop {number}") for number in (1, 2)]
    for peer in peers:
        peer.answer()
    return peers


def _together(peers: Sequence[RemoteActor], loop: Loop, steps: int) -> float:
    """Return the sum of the rates of bare loops that run at once."""
    for peer in peers:
        peer.ask(loop, steps)
    rates: list[float] = [peer.answer() for peer in peers]
    return sum(rates)


_WORK = (
    ("cartpole", "CartPole-v1, 64 envs each", cartpole),
    ("cartpoles", "CartPole-v1, 16 envs x 4 each", cartpoles),
)
_SHARE = {"process": (0.87, 0.97), "ray": (0.82, 0.95)}
_SOON = {"process": (1.5, 0.6), "ray": (4.0, 2.0)}
ROWS = (
    *(
        Row(
            name=f"{name}_2_workers_{engine}", text=f"{text}: 2 workers against 1, {engine}", unit="x the bare gain",
            reach=_SHARE[engine][0], aim=_SHARE[engine][1], measure=second_worker(engine, what),
        )
        for engine in ENGINES
        for name, text, what in _WORK
    ),
    *(
        Row(
            name=f"one_worker_{engine}", text=f"CartPole-v1, 64 envs, one worker, {engine}", unit="x in this process",
            reach=0.9, aim=0.98, measure=one_worker(engine),
        )
        for engine in ENGINES
    ),
    *(
        Row(
            name=f"worker_start_{engine}", text=f"a worker's first fragment, {engine}", unit="s", at_most=True,
            reach=_SOON[engine][0], aim=_SOON[engine][1], measure=first_fragment(engine),
        )
        for engine in ENGINES
    ),
    Row(
        name="worker_memory", text="a worker's memory, CartPole, process", unit="MB", reach=120, aim=80,
        measure=memory, at_most=True,
    ),
    Row(
        name="overlap_450", text="CartPole-v1 to 450: 1 worker overlapped / in process", unit="x the time",
        reach=0.8, aim=0.6, measure=overlapped, at_most=True,
    ),
)  # fmt: skip
