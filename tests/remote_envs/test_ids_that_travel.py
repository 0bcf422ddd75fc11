"""Agent ids that are objects, where environments live in other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from menv.algorithms import PPO
from menv.errors import ContractError
from tests.worlds import Several


class Anybody:
    """Equals nothing but itself."""

    def __init__(self, number: int) -> None:
        self.number = number


@dataclass(frozen=True)
class Somebody:
    """Equals its copies."""

    number: int


class Meeting(Several):
    """Everybody acts for five steps, and is paid 1 for each."""

    length = 5

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.possible_agents = [context["kind"](number) for number in range(2)]


CONFIG: dict[str, Any] = {"train_batch_size": 32, "sgd_minibatch_size": 16, "num_sgd_iter": 1, "seed": 0}
FAR = {"remote_worker_envs": True, "engine": "process", "num_envs_per_worker": 2}


def test_ids_that_are_others_elsewhere_are_refused_at_once() -> None:
    with pytest.raises(ContractError, match="remote_envs"):
        PPO(env=Meeting, config={**CONFIG, **FAR, "env_config": {"kind": Anybody}})
    # In one process they are who they are.
    with PPO(env=Meeting, config={**CONFIG, "env_config": {"kind": Anybody}}) as algo:
        assert algo.train()["episode_reward_mean"] == 10


def test_ids_that_equal_their_copies_play_elsewhere() -> None:
    with PPO(env=Meeting, config={**CONFIG, **FAR, "env_config": {"kind": Somebody}}) as algo:
        assert algo.train()["episode_reward_mean"] == 10
