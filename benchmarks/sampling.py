"""Our own rates: fragments from `algo.sample()`, which are acting, connecting and batches ready to learn from.

Networks are PPO's defaults. Building the algorithm and its first fragments are not timed; everything that
happens after them is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.floors import Rate
from menv.algorithms import PPO

WARM_UP_FRAGMENTS = 3


def fragments(env: Any, envs: int, length: int, **config: Any) -> Callable[[int], Rate]:
    """Build a PPO and return the function that measures it.

    Args:
        env: As for `PPO`.
        envs: Sub-environments.
        length: Env steps of each in a fragment.
        **config: Further classic keys.

    Returns:
        A function of the env steps to sample, in whole fragments.
    """
    algo = PPO(
        env=env,
        config={
            "num_envs_per_worker": envs,
            "rollout_fragment_length": length,
            "train_batch_size": envs * length,
            "seed": None,
            **config,
        },
    )
    for _ in range(WARM_UP_FRAGMENTS):
        algo.sample()

    def measure(env_steps: int) -> Rate:
        sampled = acted = 0
        start = time.perf_counter()
        while sampled < env_steps:
            batch = algo.sample()
            sampled += batch.env_steps()
            acted += batch.agent_steps()
        seconds = time.perf_counter() - start
        return Rate(sampled / seconds, acted / seconds)

    return measure


def two_policies(seat_of: Callable[[Any], int]) -> dict[str, Any]:
    """Return the `multiagent` section for two policies of one kind, chosen by agent id."""
    return {
        "policies": ["policy_0", "policy_1"],
        "policy_mapping_fn": lambda agent_id, episode, worker, **kwargs: f"policy_{seat_of(agent_id)}",
    }
