"""Policies that come and go again and again: what is left of them, and who answers in whose place."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import DQN, PPO, Algorithm
from tests.inside import policy_set
from tests.worlds import Several

LENGTH = 25


class Constant(Several):
    """Raises if "b", whose policies always do the same, does something else in an episode than at its beginning."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space, length, done = gym.spaces.Discrete(3), LENGTH, -1

    def see(self, agent: str) -> Any:
        return np.full(2, self.at / LENGTH, np.float32)

    def pay(self, actions: Any) -> Any:
        action = int(actions["b"])
        if self.at > 1 and self.done != action:
            raise RuntimeError(f"{action} after {self.done}")
        self.done = action
        return {"a": 1.0, "b": 2.0}


def to(policy_id: str) -> Any:
    return lambda agent_id, *args, **kwargs: "main" if agent_id == "a" else policy_id


def always(algo: Algorithm, policy_id: str, action: int) -> None:
    """Let a policy do the same whatever it sees."""
    weights = {name: np.zeros_like(own) for name, own in algo.get_weights(policy_id)[policy_id].items()}
    (bias,) = (name for name in weights if name.endswith("out.bias") and weights[name].shape == (3,))
    weights[bias][action] = 100.0
    algo.set_weights({policy_id: weights})


def config_of(**settings: Any) -> dict[str, Any]:
    multiagent = {"policies": ["main"], "policy_mapping_fn": to("main"), "policies_to_train": ["main"]}
    return {
        "env": Constant, "seed": 1, "engine": "process", "num_envs_per_worker": 2, "rollout_fragment_length": 10,
        "train_batch_size": 20, "multiagent": multiagent, "model": {"fcnet_hiddens": [8]}, **settings,
    }  # fmt: skip


def places(algo: Algorithm) -> int:
    return sum(built.networks.backend.policies for built in policy_set(algo).learners.nets)


SMALL = {"sgd_minibatch_size": 20, "num_sgd_iter": 1}


@pytest.mark.slow_unless("PPO-settings0", "PPO-settings2", "PPO-settings4", "DQN-settings5")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (PPO, SMALL),
        (PPO, {**SMALL, "num_workers": 2, "overlap": True}),
        (PPO, {**SMALL, "model": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4}}),
        (PPO, {**SMALL, "inference": "torch"}),
        (PPO, {**SMALL, "observation_filter": "MeanStdFilter", "num_workers": 1}),
        (DQN, {"explore": False}),
    ],
)  # fmt: skip
def test_slots_of_removed_policies_are_reused_without_affecting_old_episodes(
    kind: Any, settings: Any
) -> None:
    with kind(config=config_of(**settings)) as algo:
        always(algo, "main", 0)
        for number in range(7):
            new = f"version {number}"
            algo.add_policy(new, policy_mapping_fn=to(new), policies_to_train=["main"])
            always(algo, new, number % 3)
            if number >= 2:
                algo.remove_policy(f"version {number - 2}")
            batch = algo.sample()
            for policy_id in batch.policy_batches.keys() - {"main"}:
                assert set(batch[policy_id]["actions"]) == {int(policy_id.split()[1]) % 3}
        result = algo.train()
        assert result["faulty_episodes_total"] == 0, result["first_fault"]
        assert set(algo.get_weights()) == {"main", "version 5", "version 6"}
        # An episode takes two or three rounds.
        assert places(algo) <= 6
