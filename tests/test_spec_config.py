"""What a policy reads in its `config`: its spec, and where an algorithm trains it, all of its settings."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import pytest

from menv import Policy, PolicySpec
from menv.algorithms import PPO, PPOPolicy, compute_advantages

SPACES = gym.spaces.Discrete(2), gym.spaces.Discrete(3)


class Classic(PPOPolicy):
    """Reads its settings as policies of the classic kind do."""

    read: dict[str, Any]

    def postprocess_trajectory(self, batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        batch["vf_preds"] = batch["rewards"] * 0.0
        Classic.read = {key: self.config[key] for key in ("gamma", "lambda", "train_batch_size", "mine")}
        Classic.read["clip"] = self.config.get("clip_param", 0.0)
        return compute_advantages(batch, 0.0, self.config["gamma"], self.config["lambda"])


def test_a_policy_that_ppo_trains_reads_its_settings_in_its_config_too() -> None:
    spec = PolicySpec(Classic, config={"lambda": 0.5})
    settings = {"gamma": 0.75, "clip_param": 0.125, "rollout_fragment_length": 8, "train_batch_size": 8}
    with PPO(
        env="CartPole-v1", config={**settings, "multiagent": {"policies": {"default_policy": spec}}}
    ) as algo:
        policy = algo.get_policy()
        policy.config["mine"] = 1
        algo.sample()
        assert Classic.read == {"gamma": 0.75, "lambda": 0.5, "train_batch_size": 8, "mine": 1, "clip": 0.125}
        assert "gamma" in policy.config
        assert "horizon" not in policy.config
        assert pickle.loads(pickle.dumps(policy)).config["gamma"] == 0.75
        with pytest.raises(KeyError, match=r"no setting 'horizon', expected an existing one"):
            _ = policy.config["horizon"]


def test_the_usual_policy_reads_its_settings_in_its_config_too() -> None:
    specs = {"policies": {"default_policy": PolicySpec(config={"gamma": 0.5})}}
    with PPO(env="CartPole-v1", config={"lr": 0.25, "multiagent": specs}) as algo:
        config = algo.get_policy().config
        assert (config["gamma"], config["lr"], "lambda" in config) == (0.5, 0.25, True)
        assert config == {"gamma": 0.5}
        assert pickle.loads(pickle.dumps(config)) == {"gamma": 0.5}


def test_a_policy_of_ones_own_is_told_where_other_settings_are() -> None:
    config = Policy(*SPACES, {"answer": 2}).config
    assert (config["answer"], config.get("gamma"), config) == (2, None, {"answer": 2})
    with pytest.raises(KeyError, match=r"no 'gamma', expected one of \['answer'\].*read algorithm\.config"):
        _ = config["gamma"]
