"""An environment may fork: its child ends where it exits or raises, and is no second worker."""

from __future__ import annotations

import pytest

from tests.workers.crews import running


@pytest.mark.slow_unless("0-0", "3-1")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_child_of_an_environment_ends_where_it_exits_or_raises(code: int, num_workers: int) -> None:
    forking = {"env": "tests.workers.crews:Forking", "env_config": {"code": code}, "num_envs_per_worker": 1}
    with running(num_workers, remote_worker_envs=not num_workers, env_timeout=20, **forking) as algo:
        result = algo.train()
    assert result["num_faulty_episodes"] == 0
    assert result["episode_reward_mean"] == 5.0
