"""The properties of the loop over many more schedules than the normal suite has time for."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from menv.algorithms import PPO
from menv.envs import MultiAgentTrafficEnv
from tests.contract.scripted import Script
from tests.properties import test_crashes as crashes
from tests.properties.schedules import check_memory, scripts
from tests.properties.test_schedules import FRAGMENTS, Run

pytestmark = pytest.mark.soak

many = settings(
    max_examples=1500,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)


@many
@given(
    scripts, st.sampled_from(FRAGMENTS), st.integers(1, 3), st.sampled_from(["networks", "recurrent", "own"])
)
def test_no_reward_is_lost_and_no_lives_are_mixed(
    script: Script, length: int, num_envs: int, kind: str
) -> None:
    run = Run(script, kind, length, num_envs)
    assert [game.complaints for game in run.games] == [[]] * num_envs
    run.check_rewards()
    run.check_trajectories()
    if kind == "recurrent":
        check_memory(run.batches)


@many
@given(
    scripts,
    st.sampled_from(FRAGMENTS),
    st.lists(crashes.dues, min_size=1, max_size=3),
    st.sampled_from(["networks", "recurrent", "own"]),
)
def test_the_same_holds_where_environments_crash(
    script: Script, length: int, due: list[crashes.Due], kind: str
) -> None:
    run = crashes.Run(script, kind, length, due)
    run.check()
    if kind == "recurrent":
        check_memory(run.batches)


def test_training_for_long_does_not_grow() -> None:
    """Cars come and go; after a warm-up, memory stays where it is."""

    def by_kind(agent_id: str) -> str:
        return "cars" if agent_id.startswith("car") else "lights"

    config: dict[str, Any] = {
        "env_config": {"num_cars": 6, "num_traffic_lights": 2, "max_cars": 12}, "num_envs_per_worker": 8,
        "train_batch_size": 1024, "sgd_minibatch_size": 512, "num_sgd_iter": 1, "model": {"use_lstm": True},
        "multiagent": {"policies": ["cars", "lights"], "policy_mapping_fn": by_kind},
    }  # fmt: skip
    with PPO(env=MultiAgentTrafficEnv, config=config) as algo:
        for _ in range(20):
            algo.train()
        gc.collect()
        tracemalloc.start()
        algo.train()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            algo.train()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert grown < 5_000_000
