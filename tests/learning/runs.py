"""Training until a bar is passed, for the tests of learning.

A run is bounded by env steps, not by time: the same seed gives the same answer on any machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from menv.algorithms.algorithm import Algorithm

SEEDS = range(3)


def best_mean(
    algorithm_class: type[Algorithm],
    env: Any,
    config: dict[str, Any],
    *,
    bar: float,
    env_steps: int,
    value: Callable[[Mapping[str, Any]], float] = lambda result: result["episode_reward_mean"],
) -> float:
    """Train until the mean over at least 100 episodes passes `bar` or the steps are used up; return the best mean."""
    best = float("-inf")
    with algorithm_class(env=env, config=config) as algorithm:
        taken = 0
        while taken < env_steps and best < bar:
            result = algorithm.train()
            taken = result["num_env_steps_sampled"]
            if result["episodes_in_window"] >= 100:
                best = max(best, value(result))
    return best


def median_of_best(
    algorithm_class: type[Algorithm],
    env: Any,
    config: dict[str, Any],
    *,
    bar: float,
    env_steps: int,
    value: Callable[[Mapping[str, Any]], float] = lambda result: result["episode_reward_mean"],
) -> float:
    """Return the median over three seeds of what `best_mean` returns."""
    return statistics.median(
        best_mean(algorithm_class, env, {**config, "seed": seed}, bar=bar, env_steps=env_steps, value=value)
        for seed in SEEDS
    )
