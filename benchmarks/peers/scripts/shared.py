"""What the scripts of all libraries share: the environments, the sizes, the clock and the lines of JSON.

A script calls `main` with what its library can do. It runs in the interpreter of its library, which need not have menv.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium as gym
import torch
from pettingzoo import ParallelEnv

HIDDEN = [64, 64]
"""Layers of the policy network, and of the value network."""
TEAMS = 16
"""Copies of a multi-agent environment."""
LENGTH = 64
"""Env steps of each in a rollout."""
Sample = Callable[[], int]
"""Collects one rollout and returns its env steps."""
Make = Callable[[int, int], Sample]
SPREAD_STEPS = 2_000_000
"""Env steps of JaxMARL's `simple_spread` that a run trains for."""
SPREAD_GOAL = -72.0
"""Return of all agents together, the mean of `SMOOTHED` updates."""
SMOOTHED = 20
Told = Callable[[int, float], None]
"""Takes the env steps so far and the mean return, after an update."""
Train = Callable[[int, int, Told], None]
"""Trains with a seed for a number of env steps."""
Seen = Callable[[int, Iterable[float]], bool]
"""Takes the env steps so far and the returns of new episodes, and returns whether to stop."""


class CartPoles(ParallelEnv):  # type: ignore[misc]
    """Four CartPoles, an agent each. An agent leaves when its pole falls; the episode ends with the last one."""

    metadata = {"name": "cartpoles", "is_parallelizable": True, "render_modes": []}  # noqa: RUF012
    render_mode = None
    steps = 0
    """Env steps of all copies in this process."""

    def __init__(self) -> None:
        self.possible_agents = [f"agent_{number}" for number in range(4)]
        self.agents: list[str] = []
        self.envs = {agent: gym.make("CartPole-v1") for agent in self.possible_agents}

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return self.envs[agent].observation_space

    def action_space(self, agent: str) -> gym.Space[Any]:
        return self.envs[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = self.possible_agents[:]
        seeds = {agent: None if seed is None else seed + at for at, agent in enumerate(self.agents)}
        obs = {agent: self.envs[agent].reset(seed=seeds[agent])[0] for agent in self.agents}
        return obs, {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        CartPoles.steps += 1
        stepped = {agent: self.envs[agent].step(int(actions[agent])) for agent in self.agents}
        self.agents = [agent for agent, (_, _, fallen, over, _) in stepped.items() if not (fallen or over)]
        return tuple({agent: step[at] for agent, step in stepped.items()} for at in range(5))


def counted(collect: Sample | None) -> Sample | None:
    """Return a function that collects a rollout of `CartPoles` and counts their steps."""

    def sample() -> int:
        before = CartPoles.steps
        if collect:
            collect()
        return CartPoles.steps - before

    return collect and sample


def spread() -> Any:
    """Return `simple_spread`, three agents, from the package that has it."""
    try:
        from mpe2 import simple_spread_v3
    except ImportError:
        from pettingzoo.mpe import simple_spread_v3
    return simple_spread_v3.parallel_env()


class Clock:
    """Wall time, and CPU time of this process, since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {"wall_s": time.perf_counter() - self.wall, "cpu_s": time.process_time() - self.cpu}


def rate(sample: Sample, seconds: float) -> dict[str, float]:
    """Return env steps and their time, after one rollout that is not counted."""
    sample()
    steps, clock = 0, Clock()
    while clock.read()["cpu_s"] < seconds:
        steps += sample()
    return {"env_steps": steps, **clock.read()}


def time_to_450(learn: Callable[[int, Seen], None], seed: int, at_most: float) -> dict[str, float]:
    """Train until the mean return of the last 100 episodes is 450, and return the time and the env steps."""
    window: deque[float] = deque(maxlen=100)
    clock = Clock()
    found: dict[str, float] = {}

    def seen(env_steps: int, returns: Iterable[float]) -> bool:
        window.extend(returns)
        solved = bool(len(window) == 100 and sum(window) >= 450 * 100)
        found.update(env_steps=int(env_steps), solved=solved, **clock.read())
        return solved or found["cpu_s"] > at_most

    learn(seed, seen)
    return found


def spread_training(train: Train, seed: int, env_steps: int) -> dict[str, float]:
    """Train in `simple_spread` and return env steps and their time, without the first update, which compiles."""
    told: list[tuple[int, float, dict[str, float]]] = []
    clock = Clock()
    train(seed, env_steps, lambda so_far, mean: told.append((so_far, mean, clock.read())))
    first, last = told[0], told[-1]
    found = {"env_steps": last[0] - first[0], **{key: last[2][key] - first[2][key] for key in first[2]}}
    found |= {"final_return": last[1], "goal": SPREAD_GOAL}
    # In the first update JaxMARL counts worlds without an episode as 0.
    latest: deque[float] = deque(maxlen=SMOOTHED)
    for so_far, mean, times in told[1:]:
        latest.append(mean)
        if len(latest) == SMOOTHED and sum(latest) >= SPREAD_GOAL * SMOOTHED:
            found |= {f"goal_{key}": times[key] - first[2][key] for key in times} | {"goal_env_steps": so_far}
            break
    return found


def main(
    packages: str,
    cartpole: Make | None = None,
    team: Callable[[Callable[[], Any]], Sample | None] | None = None,
    balance: Make | None = None,
    learn: Callable[[int, Seen], None] | None = None,
    train: Train | None = None,
) -> None:
    """Run the tasks that the command line names and print a line of JSON for each, the versions of the packages first.

    Args:
        packages: Names with spaces.
        cartpole: Takes copies of CartPole and the steps of each in a rollout, and returns how to collect it.
        team: Takes what makes a PettingZoo environment of `TEAMS`, and returns how to collect a rollout; None if
            the library cannot.
        balance: Takes worlds of VMAS balance and the steps of each in a rollout, and returns how to collect it.
        learn: Trains on CartPole with a seed until the other says so.
        train: Trains in JaxMARL's `simple_spread` with a seed for a number of env steps, and tells of each update.
    """
    sampling: dict[str, Callable[[], Sample | None]] = {
        "cartpole_64": lambda: cartpole and cartpole(64, LENGTH),
        "cartpole_1": lambda: cartpole and cartpole(1, 1024),
        "cartpoles": lambda: counted(team and team(CartPoles)),
        "simple_spread": lambda: team and team(spread),
        "balance_64": lambda: balance and balance(64, 100),
        "balance_1024": lambda: balance and balance(1024, 20),
    }
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="*", default=[*sampling, "time_to_450", "spread_training"])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement of sampling")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-most", type=float, default=60.0, help="seconds after which learning gives up")
    parser.add_argument("--env-steps", type=int, default=SPREAD_STEPS, help="of spread_training")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    versions = {name: importlib.metadata.version(name) for name in ["torch", "gymnasium", *packages.split()]}
    print(json.dumps({"versions": versions}), flush=True)
    for task in args.tasks:
        if task in sampling and (sample := sampling[task]()):
            print(json.dumps({"task": task, **rate(sample, args.seconds)}), flush=True)
        elif task == "time_to_450" and learn:
            print(json.dumps({"task": task, **time_to_450(learn, args.seed, args.at_most)}), flush=True)
        elif task == "spread_training" and train:
            print(json.dumps({"task": task, **spread_training(train, args.seed, args.env_steps)}), flush=True)
