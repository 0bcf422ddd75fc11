"""DQN as a whole, alone and beside PPO on one sampler."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import DQN, PPO
from menv.errors import ConfigError
from tests.algorithms_e2e.test_policies_on_the_fly import Duo, to, weights_of
from tests.algorithms_e2e.test_ppo_spaces import Spaces
from tests.inside import learner
from tests.worlds import Alone, like

QUICK: dict[str, Any] = {
    "num_envs_per_worker": 8,
    "min_sample_timesteps_per_iteration": 256,
    "num_steps_sampled_before_learning_starts": 128,
    "train_batch_size": 32,
    "seed": 1,
}


class Signal(Alone):
    """Pays for saying which of three numbers is shown; which may be said is masked, the shown one always may."""

    observation_space = gym.spaces.Dict(
        {"observation": gym.spaces.Discrete(3), "action_mask": gym.spaces.MultiBinary(3)}
    )
    action_space, length, illegal = gym.spaces.Discrete(3), 10, 0

    def see(self) -> Any:
        self.shown = int(self.np_random.integers(3))
        self.mask = (self.np_random.random(3) < 0.7).astype(np.int8)
        self.mask[self.shown] = 1
        return {"observation": np.int64(self.shown), "action_mask": self.mask}

    def pay(self, action: Any) -> float:
        self.illegal += not self.mask[action]
        return float(action == self.shown)


@pytest.mark.slow
def test_it_learns_and_never_does_what_is_masked() -> None:
    envs: list[Signal] = []

    def make(context: Any) -> Signal:
        envs.append(Signal())
        return envs[-1]

    exploration = {"initial_epsilon": 1.0, "final_epsilon": 0.0, "epsilon_timesteps": 1500}
    with DQN(env=make, config={**QUICK, "exploration_config": exploration}) as algo:
        results = [algo.train() for _ in range(12)]
        stats = results[-1]["info"]["default_policy"]
        action = algo.compute_single_action(
            {"observation": np.int64(2), "action_mask": np.ones(3, np.int8)}, explore=False
        )
    assert results[0]["episode_reward_mean"] < 7.0
    assert results[-1]["episode_reward_mean"] > 8.5
    assert action == 2
    assert stats["epsilon"] == 0.0
    assert stats["updates"] > 0
    assert {"loss", "mean_q", "mean_td_error", "cur_lr", "replay_rows"} <= stats.keys()
    assert sum(env.illegal for env in envs) == 0
    assert results[0]["num_env_steps_sampled"] == 256


def test_ppo_and_dqn_policies_train_side_by_side() -> None:
    policies = {
        "ppo": PolicySpec(config={"lr": 1e-3, "gamma": 0.9}),
        "dqn": PolicySpec(algorithm="DQN", config={"train_batch_size": 16, "n_step": 1}),
    }
    multiagent = {"policies": policies, "policy_mapping_fn": to(a="ppo", b="dqn")}
    small = {"train_batch_size": 512, "sgd_minibatch_size": 128, "num_sgd_iter": 2}
    config = {"num_envs_per_worker": 4, "seed": 1, **small, "multiagent": multiagent}
    with PPO(env=Duo, config=config) as algo:
        before = {policy_id: weights_of(algo, policy_id) for policy_id in policies}
        results = [algo.train() for _ in range(3)]
        for policy_id in policies:
            assert weights_of(algo, policy_id) != before[policy_id]
        info = results[-1]["info"]
        assert "kl" in info["ppo"]
        assert "mean_q" in info["dqn"]
        assert results[-1]["num_env_steps_sampled_this_iter"] == 512
        assert set(algo.sample()["dqn"]["actions"].tolist()) <= {0, 1, 2}
    ppo = PolicySpec(algorithm="PPO", config=small)
    swapped = {**multiagent, "policies": {"ppo": ppo, "dqn": PolicySpec()}}
    with DQN(env=Duo, config={**QUICK, "training_intensity": 4, "multiagent": swapped}) as algo:
        result = algo.train()
        assert {"ppo", "dqn"} <= set(result["info"])
        # PPO's batch decides how much is sampled before anybody learns.
        assert result["num_env_steps_sampled_this_iter"] == 512


# Its episodes never end.
Endless = like(Duo, length=0)


def rewards_a_target(algo: Any, policy_id: str) -> set[int]:
    """Return how many rewards the targets hold that have been kept, where gamma is 0.9."""
    kept = learner(algo, policy_id).replay.kept("discounts")
    return {round(float(steps)) for steps in np.log(kept[kept > 0]) / np.log(0.9)}


def test_fragments_are_as_long_as_the_steps_of_any_policys_targets() -> None:
    policies = {"far": PolicySpec(config={"n_step": 8}), "near": PolicySpec(config={"n_step": 2})}
    multiagent = {"policies": policies, "policy_mapping_fn": to(a="far", b="near")}
    settings = {
        **QUICK,
        "training_intensity": 4,
        "gamma": 0.9,
        "num_envs_per_worker": 64,
        "multiagent": multiagent,
    }
    with DQN(env=Endless, config=settings) as algo:
        algo.train()
        assert max(rewards_a_target(algo, "far")) == 8
        assert max(rewards_a_target(algo, "near")) == 2
        farther = PolicySpec(config={"n_step": 9})
        with pytest.raises(ConfigError, match="n_step"):
            algo.add_policy("c", farther)
        algo.add_policy("c", PolicySpec(config={"n_step": 8}))


def test_a_policys_own_steps_are_refused_where_fixed_fragments_cut_them() -> None:
    policies = {"far": PolicySpec(algorithm="DQN", config={"n_step": 8}), "near": None}
    multiagent = {"policies": policies, "policy_mapping_fn": to(a="far", b="near")}
    for settings in ({"rollout_fragment_length": 4}, {"num_envs_per_worker": 8, "train_batch_size": 32}):
        with pytest.raises(ConfigError, match="n_step"):
            PPO(env=Duo, config={**settings, "multiagent": multiagent})


def test_two_trainers_swap_weights() -> None:
    """The classic pattern: both know both policies, each trains its own and takes the other's weights."""
    mapping = to(a="ppo", b="dqn")
    both = {"ppo": PolicySpec(algorithm="PPO"), "dqn": PolicySpec(algorithm="DQN")}
    ppo = PPO(env=Duo, config={"train_batch_size": 128, "seed": 1, "multiagent": {
        "policies": both, "policy_mapping_fn": mapping, "policies_to_train": ["ppo"]}})  # fmt: skip
    dqn = DQN(env=Duo, config={**QUICK, "training_intensity": 4, "multiagent": {
        "policies": both, "policy_mapping_fn": mapping, "policies_to_train": ["dqn"]}})  # fmt: skip
    with ppo, dqn:
        for _ in range(2):
            untrained = weights_of(ppo, "dqn")
            assert "dqn" not in ppo.train()["info"]
            assert weights_of(ppo, "dqn") == untrained
            # The batch of a policy that never learns here is waited for by nobody.
            assert dqn.train()["num_env_steps_sampled_this_iter"] == 256
            ppo.set_weights(dqn.get_weights(["dqn"]))
            dqn.set_weights(ppo.get_weights(["ppo"]))
            assert all(weights_of(ppo, policy_id) == weights_of(dqn, policy_id) for policy_id in both)


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(-2.0, 2.0, (1,)),
        gym.spaces.MultiBinary(3),
        gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.MultiBinary(2)]),
        gym.spaces.MultiDiscrete(np.full((2, 2), 3)),
        gym.spaces.MultiDiscrete(np.arange(2, 60)),
    ],
)
def test_actions_that_dqn_does_not_choose_are_refused_in_a_line(space: gym.Space[Any]) -> None:
    with pytest.raises(ConfigError, match=f"DQN: .*{type(space).__name__}") as caught:
        DQN(env=lambda context: Spaces(gym.spaces.Discrete(2), space))
    assert "\n" not in str(caught.value)
