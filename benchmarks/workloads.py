"""The table of workloads: what is measured, beside what, and which figure has to be reached.

Bare loops are those of `floors`, our rates those of `sampling`; the last rows start `processes`. The figures
of other libraries were measured on one machine with the same loops.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from benchmarks import floors, processes
from benchmarks.bundles import ROWS as BUNDLES
from benchmarks.connector_rows import ROWS as CONNECTORS
from benchmarks.null_env import NullEnv
from benchmarks.offline_rows import ROWS as OFFLINE
from benchmarks.other_kinds import ROWS as OTHER_KINDS
from benchmarks.policy_rows import ROWS as POLICIES
from benchmarks.remote_rows import ROWS as REMOTE
from benchmarks.replay_rows import ROWS as REPLAY
from benchmarks.rows import Effort, Finding, Row, alternate, median_seconds
from benchmarks.sampling import fragments, two_policies
from benchmarks.serving_rows import ROWS as SERVING
from benchmarks.transport_rows import ROWS as TRANSPORTS
from benchmarks.wire_rows import ROWS as WIRE
from benchmarks.worker_rows import ROWS as WORKERS
from menv.envs import TicTacToe, make_multi_agent
from menv.envs.tictactoe import PLAYERS

LENGTH = 128
"""Env steps of each sub-environment in a fragment."""
NULL_LENGTH = 64
"""The same for the null environment, whose fragments have many more rows."""


def gym_sampling(env_id: str, expected: float) -> Callable[[Effort], Finding]:
    """Compare 64 copies of a gymnasium environment; `expected` is roughly the bare loop's rate."""

    def measure(effort: Effort) -> Finding:
        ours = fragments(env_id, 64, LENGTH)
        steps = effort.steps(expected)
        return alternate(
            lambda: floors.bare_gym(env_id, 64, steps), lambda: ours(steps).env_steps, effort.repeats
        )

    return measure


def multi_agent_cartpole(effort: Effort) -> Finding:
    """Compare 16 environments of 4 CartPoles each, two policies, in agent steps."""
    cartpoles = make_multi_agent("CartPole-v1")
    ours = fragments(
        cartpoles, 16, LENGTH, env_config={"num_agents": 4}, multiagent=two_policies(lambda agent: agent % 2)
    )
    steps = effort.steps(80_000)
    return alternate(
        lambda: floors.bare_multi_agent(lambda _: cartpoles({"num_agents": 4}), 16, steps).agent_steps,
        lambda: ours(steps).agent_steps,
        effort.repeats,
    )


def null_env(effort: Effort) -> Finding:
    """Return microseconds per agent step of 4 null environments of 100 agents each."""
    ours = fragments(NullEnv, 4, NULL_LENGTH, env_config={"num_agents": 100})
    steps = effort.steps(10_000)
    found = alternate(
        lambda: floors.bare_multi_agent(lambda _: NullEnv({"num_agents": 100}), 4, steps).agent_steps,
        lambda: ours(steps).agent_steps,
        effort.repeats,
    )
    return Finding(value=1e6 / statistics.median(found.rates), floors=found.floors, rates=found.rates)


def null_env_of_10000(effort: Effort) -> Finding:
    """Return the cost of an agent step among 10,000 agents of one environment by that among 4 x 100."""
    few = fragments(NullEnv, 4, NULL_LENGTH, env_config={"num_agents": 100})
    many = fragments(NullEnv, 1, NULL_LENGTH, env_config={"num_agents": 10_000})
    found = alternate(
        lambda: few(effort.steps(10_000)).agent_steps,
        lambda: many(effort.steps(100)).agent_steps,
        effort.repeats,
    )
    return Finding(
        value=1.0 / found.value, floors=found.floors, rates=found.rates, note="its floor is ours with 4 x 100"
    )


def tictactoe(effort: Effort) -> Finding:
    """Compare 16 games at once, a policy for each seat, with random legal moves."""
    ours = fragments(TicTacToe, 16, LENGTH, multiagent=two_policies(lambda agent: int(agent == "player2")))
    steps = effort.steps(150_000)
    return alternate(
        lambda: floors.bare_turn_based(lambda _: TicTacToe(), 16, steps),
        lambda: ours(steps).env_steps,
        effort.repeats,
    )


def tictactoe_itself(effort: Effort) -> Finding:
    """Compare random play of menv's TicTacToe with random play of PettingZoo's."""
    games = max(1, effort.steps(500))
    return alternate(
        lambda: floors.bare_aec_tictactoe(games),
        lambda: floors.bare_turn_based(lambda _: TicTacToe(), 1, 8 * games),
        effort.repeats,
    )


def until_450(*command: object) -> Callable[[Effort], Finding]:
    """Time a process that learns CartPole, over three seeds."""

    def measure(effort: Effort) -> Finding:
        limit = ("--seconds", 1 if effort.quick else 60)
        runs = [processes.run(*command, "--seed", seed, *limit) for seed in effort.seeds(3)]
        return median_seconds([run.seconds if run.result["solved"] else math.inf for run in runs])

    return measure


def first_result(effort: Effort) -> Finding:
    """Time a process up to the result of its first `train()`."""
    command = ("-m", "benchmarks.time_to_450", "--iterations", 1)
    return median_seconds([processes.run(*command, "--seed", seed).seconds for seed in effort.seeds(5)])


def tictactoe_losses(effort: Effort) -> Finding:
    """Return the greatest share of games lost to a random player, over seats and three seeds, in percent."""
    runs = _demo(effort, seconds=30, seeds=3)
    seats = [f"losses_vs_random_as_{player}" for player in PLAYERS]
    worst = [max(run.result[seat] for seat in seats) for run in runs]
    games = runs[0].result["games"] / 2
    return Finding(value=100 * max(worst) / games, rates=[100 * losses / games for losses in worst])


def tictactoe_unbeatable(effort: Effort) -> Finding:
    """Return the share of five seeds after which no opponent can win any more."""
    runs = _demo(effort, seconds=60, seeds=5)
    beatable = [run.result["losing_lines"] for run in runs]
    seconds = ", ".join(f"{run.result['seconds']:.0f} s" for run in runs)
    return Finding(
        value=beatable.count(0) / len(runs), rates=beatable, note=f"losing lines {beatable} after {seconds}"
    )


def _demo(effort: Effort, seconds: int, seeds: int) -> list[processes.Run]:
    limit = 2 if effort.quick else seconds
    command = ("examples/tictactoe.py", "--seconds", limit)
    return [processes.run(*command, "--seed", seed) for seed in effort.seeds(seeds)]


BARE = "x bare"
ROWS = (
    Row(
        name="cartpole",
        text="CartPole-v1, 64 envs, sampling",
        unit=BARE,
        peer=0.40,
        reach=0.70,
        aim=0.85,
        measure=gym_sampling("CartPole-v1", 200_000),
    ),
    Row(
        name="pendulum",
        text="Pendulum-v1, 64 envs, sampling",
        unit=BARE,
        peer=0.61,
        reach=0.80,
        aim=0.90,
        measure=gym_sampling("Pendulum-v1", 120_000),
    ),
    Row(
        name="multi_agent_cartpole",
        text="CartPole-v1, 16 envs x 4 agents, 2 policies",
        unit=BARE,
        peer=0.22,
        reach=0.58,
        aim=0.72,
        measure=multi_agent_cartpole,
    ),
    Row(
        name="null",
        text="null env, 4 envs x 100 agents",
        unit="us/agent-step",
        peer=3.4,
        reach=1.2,
        aim=0.7,
        measure=null_env,
        at_most=True,
    ),
    Row(
        name="null_10000",
        text="null env, 10,000 agents in one env, against 4 x 100",
        unit="x the cost",
        reach=1.2,
        aim=1.0,
        measure=null_env_of_10000,
        at_most=True,
    ),
    Row(
        name="tictactoe",
        text="TicTacToe, 16 envs, 2 policies",
        unit=BARE,
        peer=0.20,
        reach=0.5,
        aim=0.7,
        measure=tictactoe,
    ),
    Row(
        name="tictactoe_itself",
        text="TicTacToe itself, random play",
        unit="x PettingZoo",
        reach=3.0,
        aim=3.0,
        measure=tictactoe_itself,
    ),
    Row(
        name="cartpole_450",
        text="CartPole-v1 to 450, 64 envs, defaults",
        unit="s",
        peer=10.0,
        reach=7.0,
        aim=4.0,
        measure=until_450("-m", "benchmarks.time_to_450"),
        at_most=True,
    ),
    Row(
        name="cartpole_450_example",
        text="CartPole-v1 to 450, examples/cartpole.py",
        unit="s",
        peer=10.0,
        reach=4.5,
        aim=3.0,
        measure=until_450("examples/cartpole.py"),
        at_most=True,
    ),
    Row(
        name="cartpole_450_dqn",
        text="CartPole-v1 to 450, DQN, 16 envs, defaults",
        unit="s",
        reach=60.0,
        aim=25.0,
        measure=until_450("-m", "benchmarks.time_to_450", "--algorithm", "DQN"),
        at_most=True,
    ),
    Row(
        name="first_result",
        text="process start to first result, CartPole-v1",
        unit="s",
        peer=2.6,
        reach=2.3,
        aim=1.5,
        measure=first_result,
        at_most=True,
    ),
    Row(
        name="tictactoe_losses",
        text="TicTacToe, 30 s, lost to random, worst seat",
        unit="% of games",
        reach=1.0,
        aim=0.0,
        measure=tictactoe_losses,
        at_most=True,
    ),
    Row(
        name="tictactoe_unbeatable",
        text="TicTacToe, 60 s, no losing line left",
        unit="of seeds",
        reach=None,
        aim=1.0,
        measure=tictactoe_unbeatable,
    ),
    *OTHER_KINDS,
    *REPLAY,
    *OFFLINE,
    *POLICIES,
    *BUNDLES,
    *CONNECTORS,
    *WIRE,
    *WORKERS,
    *REMOTE,
    *TRANSPORTS,
    *SERVING,
)
