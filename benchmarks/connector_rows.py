"""The rows of the table for connectors: what a row costs on its way from an environment to a network and back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.rows import Effort, Finding, Row
from menv.connectors.action_output import ActionOutput
from menv.connectors.connector import ConnectorContext
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.pipeline import PolicyConnectors, action_pipeline, agent_pipeline
from menv.inference.connector_path import ConnectorPath

_ROWS = 64
_UNIT = "us/row"
_ACTIONS = gym.spaces.Discrete(2)


def _space() -> Any:
    return gym.make("CartPole-v1").observation_space


def _per_row(once: Callable[[], Any], effort: Effort) -> Finding:
    """Return the least microseconds a row of several measurements."""
    calls = effort.steps(20_000)
    found = []
    for _ in range(effort.repeats):
        start = time.perf_counter()
        for _ in range(calls):
            once()
        found.append((time.perf_counter() - start) / calls / _ROWS * 1e6)
    return Finding(value=min(found), rates=found)


def plain(effort: Effort) -> Finding:
    """Measure the default pipelines: 64 observations, as environments give them, to rows, and answers to actions."""
    preprocess, output = ObsPreprocessor(_space()), ActionOutput(_ACTIONS)
    obs = list(np.random.default_rng(0).uniform(-0.2, 0.2, (_ROWS, 4)).astype(np.float32))
    actions = np.zeros(_ROWS, np.int64)
    return _per_row(lambda: (preprocess(obs), output(actions)), effort)


def filtered(effort: Effort) -> Finding:
    """Measure the same with running means and standard deviations that grow."""
    space = _space()
    ctx = ConnectorContext(observation_space=space, action_space=_ACTIONS)
    own = PolicyConnectors(
        agent_pipeline(ctx, observation_filter="MeanStdFilter"),
        action_pipeline(ctx, normalize=True, clip=False),
    )
    path = ConnectorPath([own], _ACTIONS, *own.rows_of(space), learning=True)
    rows = np.random.default_rng(0).uniform(-0.2, 0.2, (_ROWS, 4)).astype(np.float32)
    obs, actions, rewards = list(rows), np.zeros(_ROWS, np.int64), np.zeros(_ROWS)
    slots, seats = np.arange(_ROWS), [(index, "agent0") for index in range(_ROWS)]

    def once() -> None:
        path.rows(0, obs, rewards, slots=slots, seats=seats)
        path.answers(0, actions, rows, None, None)

    return _per_row(once, effort)


ROWS = (
    Row(
        name="connectors",
        text=f"default connectors, {_ROWS} rows of CartPole, there and back",
        unit=_UNIT,
        reach=0.3,
        aim=0.1,
        measure=plain,
        at_most=True,
    ),
    Row(
        name="connectors_mean_std",
        text=f"the same with the MeanStd filter, {_ROWS} rows",
        unit=_UNIT,
        reach=0.6,
        aim=0.3,
        measure=filtered,
        at_most=True,
    ),
)
