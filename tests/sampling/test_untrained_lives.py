"""An environment says in an agent's infos whether a policy may learn from its trajectory."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import PPO, PPOPolicy
from tests.worlds import Several


class Quiet(Several):
    """Bob is not learned from in every other episode, and cyd, who comes later, never is."""

    possible_agents, length = ("ann", "bob", "cyd"), 5

    def shown(self) -> Any:
        return self.possible_agents[: 2 + (self.at > 1)]

    def infos(self) -> Any:
        told = {"ann": True, "bob": self.episode % 2 == 0, "cyd": False}
        # An info without the entry changes nothing.
        return {
            agent: {} if agent == "bob" and self.at else {"training_enabled": told[agent]}
            for agent in self.shown()
        }


@pytest.mark.usefixtures("sent_whole")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_lives_that_an_environment_excepts_are_played_and_not_learned_from(num_workers: int) -> None:
    policies = ["ann", "bob", "cyd"]
    config = {
        "num_workers": num_workers, "engine": "process", "rollout_fragment_length": 20, "train_batch_size": 20,
        "multiagent": {"policies": policies, "policy_mapping_fn": lambda agent_id, **kw: agent_id},
        "batch_mode": "complete_episodes",
    }  # fmt: skip
    with PPO(env=Quiet, config=config) as algo:
        batch = algo.sample()
        assert {name: part.count for name, part in batch.policy_batches.items()} == {"ann": 20, "bob": 10}
        result = algo.train()
    assert result["policy_reward_mean"] == {"ann": 5.0, "bob": 5.0, "cyd": 4.0}


class Watching(PPOPolicy):
    """Notes who was there beside each agent."""

    beside: ClassVar[set[Any]] = set()

    def postprocess_trajectory(
        self, sample_batch: Any, other_agent_batches: Any = None, episode: Any = None
    ) -> Any:
        self.beside.update(other_agent_batches)
        return sample_batch


def test_central_critics_and_hooks_see_them_as_they_see_others() -> None:
    config: dict[str, Any] = {
        "rollout_fragment_length": 20, "train_batch_size": 20, "critic_obs": "all_agents",
        "multiagent": {"policies": {"default_policy": PolicySpec(policy_class=Watching)}},
    }  # fmt: skip
    with PPO(env=Quiet, config=config) as algo:
        batch = algo.sample().policy_batches["default_policy"]
    # In odd episodes bob is learned from, in even ones he is not; ann sees him in all of them.
    ann = batch["critic_obs"][batch["agent_index"] == 0]
    assert ann.shape == (20, 5)
    np.testing.assert_array_equal(ann[:, 2], 1.0)
    np.testing.assert_array_equal(ann[:, 1], ann[:, 0])
    assert Watching.beside == {"ann", "bob", "cyd"}
