"""A group of agents trained by one stock network: Tuple observations, Tuple actions, a mask for each member."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO, QMIX
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from tests.worlds import Several


class Agree(Several):
    """Two agents are paid for choosing the same of four numbers, of which each is shown which it may choose."""

    possible_agents, length, illegal = ("ann", "bob"), 10, 0
    observation_space = gym.spaces.Dict(
        {"observation": gym.spaces.Box(0, 1, (4,)), "action_mask": gym.spaces.MultiBinary(4)}
    )
    action_space = gym.spaces.Discrete(4)

    def observe(self) -> Any:
        self.masks = {}
        common = int(self.rng.integers(4))
        for agent in self.possible_agents:
            self.masks[agent] = (self.rng.random(4) < 0.5).astype(np.int8)
            self.masks[agent][common] = 1
        return {
            agent: {"observation": mask.astype(np.float32), "action_mask": mask}
            for agent, mask in self.masks.items()
        }

    def pay(self, actions: Any) -> Any:
        self.illegal += sum(not self.masks[agent][action] for agent, action in actions.items())
        return dict.fromkeys(actions, (actions["ann"] == actions["bob"]) / 2)


@pytest.mark.slow
def test_a_group_learns_to_agree_and_never_takes_a_masked_action() -> None:
    envs: list[Agree] = []

    def make(context: Any) -> Any:
        envs.append(Agree())
        return envs[-1].with_agent_groups({"both": ["ann", "bob"]})

    config = {"num_envs_per_worker": 16, "train_batch_size": 1024, "seed": 0, "lr": 5e-3}
    with PPO(env=make, config=config) as algo:
        batch = algo.sample()["default_policy"]
        assert batch["actions"].shape[1:] == (2,)
        assert batch["action_mask"].shape[1:] == (8,)
        first = algo.train()["episode_reward_mean"]
        for _ in range(14):
            last = algo.train()["episode_reward_mean"]
        action = algo.compute_single_action(
            ({"observation": np.eye(4, dtype=np.float32)[1], "action_mask": np.array([0, 1, 0, 0], np.int8)},)
            * 2
        )
    assert [int(part) for part in action] == [1, 1]
    assert sum(env.illegal for env in envs) == 0
    # By chance they agree about 5 times in 10; the network sees both masks, which is enough to agree always.
    assert first < 5.5
    assert last > 8.0


class Holder(MultiAgentEnv):
    """A classic environment that holds a group and hands on what that says."""

    def __init__(self, config: Any, spaces: Any) -> None:
        super().__init__()
        self.env = Agree(config).with_agent_groups({"team": ["ann", "bob"]}, *spaces)
        self._agent_ids = {"team"}
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[AgentDict, AgentDict]:
        return self.env.reset(seed=seed, options=options)

    def step(self, action_dict: AgentDict) -> StepDicts:
        return self.env.step(action_dict)


@pytest.mark.parametrize("given", [True, False], ids=["given", "of the members"])
def test_an_environment_that_holds_a_group_takes_its_spaces(given: bool) -> None:
    plain = Agree()
    pairs = [gym.spaces.Tuple([one, one]) for one in (plain.observation_space, plain.action_space) if one]
    config = {"min_sample_timesteps_per_iteration": 64, "num_steps_sampled_before_learning_starts": 32}
    with QMIX(env=lambda context: Holder(context, pairs if given else ()), config=config) as algo:
        assert algo.get_policy().observation_space == pairs[0]
        assert algo.get_policy().action_space == pairs[1]
        algo.train()
