"""A hundred thousand agents that live for one step each leave nothing behind."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import RandomPolicy
from menv.algorithms import PPO
from menv.base_env import ALL
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

OBS = np.zeros(2, np.float32)
SWARM = 10
EPISODE = 25
MOST_BLOCKS_AN_AGENT = 1.0
MOST_MEGABYTES = 32.0


class Mayflies(MultiAgentEnv):
    """A queen that stays, and ten flies that live for one step; all with new ids, or two swarms in turn."""

    born = 0

    def __init__(self, context: Any) -> None:
        super().__init__()
        self.possible_agents = ["queen", "fly_0"]
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.new_ids: bool = context["new_ids"]
        self.flies: list[str] = []
        self.at = 0

    def reset(self, **kwargs: Any) -> tuple[AgentDict, AgentDict]:
        self.at = 0
        return {"queen": OBS, **self.hatch()}, {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        assert set(action_dict) == {"queen", *self.flies}
        self.at += 1
        over = self.at == EPISODE
        gone = dict.fromkeys(self.flies, True)
        rewards: AgentDict = {"queen": 1.0, **dict.fromkeys(self.flies, 2.0)}
        obs: AgentDict = {"queen": OBS} if over else {"queen": OBS, **self.hatch()}
        return obs, rewards, {**gone, ALL: over}, {ALL: False}, {}

    def hatch(self) -> AgentDict:
        first = Mayflies.born if self.new_ids else SWARM * (self.at % 2)
        Mayflies.born += SWARM
        self.flies = [f"fly_{first + number}" for number in range(SWARM)]
        return dict.fromkeys(self.flies, OBS)


def megabytes() -> float:
    """Return the resident memory of this process, 0 where the system does not tell."""
    counts = Path("/proc/self/statm")
    return int(counts.read_text(encoding="ascii").split()[1]) * 4096 / 1e6 if counts.exists() else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("new_ids", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_memory_stays_flat_over_a_hundred_thousand_lives(new_ids: bool) -> None:
    config = {
        "env_config": {"new_ids": new_ids},
        "multiagent": {
            "policies": {"queen": RandomPolicy, "fly": RandomPolicy},
            "policy_mapping_fn": lambda agent_id: agent_id.partition("_")[0],
        },
        "num_envs_per_worker": 4,
        "train_batch_size": 400,
        "seed": 0,
    }
    Mayflies.born = 0
    with PPO(env=Mayflies, config=config) as algo:
        while Mayflies.born < 20_000:
            algo.train()
        gc.collect()
        blocks, memory, born = sys.getallocatedblocks(), megabytes(), Mayflies.born
        while Mayflies.born < 100_000:
            result = algo.train()
        gc.collect()
        grown = (sys.getallocatedblocks() - blocks) / (Mayflies.born - born)
        seats = len(algo._base_env._allocator.seats)  # type: ignore[attr-defined]
        assert result["policy_reward_mean"] == {
            "queen": EPISODE,
            "fly": 2.0 if new_ids else pytest.approx(2.0 * EPISODE / 2),
        }
    assert grown < MOST_BLOCKS_AN_AGENT
    assert megabytes() - memory < MOST_MEGABYTES
    # Slots of agents that are gone are given to those that come.
    assert seats < 4 * 400
