"""The rows of the table for environments of other kinds: vectorised, PettingZoo, very many agents."""

from __future__ import annotations

import runpy
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym

from benchmarks import floors
from benchmarks.null_env import NullEnv
from benchmarks.rows import Effort, Finding, Row, alternate
from benchmarks.sampling import fragments, two_policies
from menv.algorithms import PPO
from menv.env_context import EnvContext
from menv.inference.onnx_backend import OnnxBackend
from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv

LENGTH = 64
BARE = "x bare"


def vectorised_cartpole(num_envs: int, expected: float) -> Callable[[Effort], Finding]:
    """Compare gymnasium's own vectorised CartPole; `expected` is roughly the bare rate in steps of all."""

    def measure(effort: Effort) -> Finding:
        make = partial(gym.make_vec, "CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
        # PPO's defaults but for tanh, with which the figures of the table were stated.
        ours = fragments(lambda context: make(), num_envs, LENGTH, model={"fcnet_activation": "tanh"})
        rounds = effort.steps(expected)
        return alternate(
            lambda: floors.bare_vector(make, rounds),
            lambda: ours(rounds * num_envs // 4).env_steps,
            effort.repeats,
        )

    return measure


def simple_spread(effort: Effort) -> Finding:
    """Compare mpe2's simple_spread, three agents that act at once, one policy for all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mpe2 import simple_spread_v3
    make = simple_spread_v3.parallel_env
    ours = fragments(lambda context: ParallelPettingZooEnv(make()), 16, 2 * LENGTH)
    steps = effort.steps(5_000)
    return alternate(
        lambda: floors.bare_parallel(make, 16, steps), lambda: ours(steps).env_steps, effort.repeats
    )


def pettingzoo_tictactoe(effort: Effort) -> Finding:
    """Compare PettingZoo's tictactoe, a policy for each seat."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pettingzoo.classic import tictactoe_v3
    make = tictactoe_v3.env
    seats = two_policies(lambda agent: int(agent == "player_2"))
    ours = fragments(lambda context: PettingZooEnv(make()), 16, 2 * LENGTH, multiagent=seats)
    steps = effort.steps(22_000)
    return alternate(lambda: floors.bare_aec(make, 16, steps), lambda: ours(steps).env_steps, effort.repeats)


def tables_of_agents(effort: Effort) -> Finding:
    """Compare 1,600 agents of 16 worlds that are stepped as arrays, one policy for all."""
    shoal = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "shoal.py"))["Shoal"]
    ours = fragments(shoal, 16, LENGTH)
    rounds = effort.steps(4_000)
    return alternate(
        lambda: floors.bare_tables(partial(shoal, EnvContext()), rounds),
        lambda: ours(rounds * 16 // 4).agent_steps,
        effort.repeats,
    )


def passes_of_100_agents(effort: Effort) -> Finding:
    """Count the forward passes of one policy an env step, for 100 agents of one environment."""
    settings: dict[str, Any] = {"env_config": {"num_agents": 100}, "rollout_fragment_length": LENGTH}
    decide, passes = OnnxBackend.decide, 0

    def counted(*args: Any) -> Any:
        nonlocal passes
        passes += 1
        return decide(*args)

    with PPO(env=NullEnv, config=settings) as algo, mock.patch.object(OnnxBackend, "decide", counted):
        steps = algo.sample().env_steps()
    return Finding(value=passes / steps, rates=[passes / steps])


ROWS = (
    Row(
        name="vector_1024",
        text="CartPole vector_entry_point, 1024 envs",
        unit=BARE,
        reach=0.09,
        aim=0.16,
        measure=vectorised_cartpole(1024, 7_000),
    ),
    Row(
        name="vector_64",
        text="CartPole vector_entry_point, 64 envs",
        unit=BARE,
        reach=0.32,
        aim=0.45,
        measure=vectorised_cartpole(64, 16_000),
    ),
    Row(
        name="simple_spread",
        text="simple_spread_v3 (mpe2), 16 envs, 1 policy",
        unit=BARE,
        peer=0.81,
        reach=0.85,
        aim=0.95,
        measure=simple_spread,
    ),
    Row(
        name="pettingzoo_tictactoe",
        text="PettingZoo tictactoe_v3, 16 envs, 2 policies",
        unit=BARE,
        peer=0.20,
        reach=0.75,
        aim=0.9,
        measure=pettingzoo_tictactoe,
    ),
    Row(
        name="tables",
        text="1,600 agents in 16 worlds as arrays, 1 policy",
        unit=BARE,
        reach=0.1,
        aim=0.3,
        measure=tables_of_agents,
    ),
    Row(
        name="passes",
        text="100 agents of one policy, forward passes",
        unit="an env step",
        reach=1.0,
        aim=1.0,
        measure=passes_of_100_agents,
        at_most=True,
    ),
)
