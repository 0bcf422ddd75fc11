"""Policies whose connectors are changed after training, or remember agents, asked by hand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import local_policy_inference
from menv.algorithms import PPO
from menv.errors import ContractError

SMALL: dict[str, Any] = {
    "num_envs_per_worker": 2, "train_batch_size": 200, "sgd_minibatch_size": 50, "seed": 1,
    "model": {"fcnet_hiddens": [8]}, "agent_connectors": [("FrameStackAgentConnector", {"num_frames": 3})],
}  # fmt: skip


def steps(count: int, seed: int) -> list[Any]:
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=seed)
    shown = [obs]
    for number in range(count - 1):
        shown.append(env.step(number % 2)[0])
    return shown


def test_stacked_frames_are_kept_for_each_agent_until_its_episode_ends() -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        algo.train()
        policy: Any = algo.get_policy()

        def ask(env_id: int, obs: Any, **more: Any) -> Any:
            [(action, _, fetches)] = local_policy_inference(policy, env_id, "a", obs, explore=False, **more)
            return action, float(np.asarray(fetches["action_logp"]))

        one, other = steps(5, seed=1), steps(5, seed=2)
        alone = [ask(0, obs) for obs in one]
        ask(0, one[-1], terminated=True)
        mixed = []
        for first, second in zip(one, other, strict=True):
            mixed.append(ask(0, first))
            ask(1, second)
        assert mixed == alone
        # Without an end in between the same observation is another step.
        assert ask(0, one[0]) != alone[0]
        with pytest.raises(ContractError, match="use local_policy_inference"):
            policy.act(one[0])
