"""QMIX as a whole: groups of agents, alone and beside PPO on one sampler, and what it refuses."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import PPO, QMIX, QMIXConfig
from menv.envs import TwoStepGame
from menv.errors import ConfigError
from tests.algorithms_e2e.test_policies_on_the_fly import weights_of
from tests.worlds import Several

GROUP = {"team": ["agent_1", "agent_2"]}
QUICK: dict[str, Any] = {
    "num_envs_per_worker": 8,
    "min_sample_timesteps_per_iteration": 512,
    "num_steps_sampled_before_learning_starts": 256,
    "seed": 1,
}


def two_steps(context: Any) -> Any:
    return TwoStepGame(context).with_agent_groups(GROUP)


SEEN = gym.spaces.Dict({
    "obs": gym.spaces.Box(0, 1, (4,)), "state": gym.spaces.MultiBinary(4), "action_mask": gym.spaces.MultiBinary(4),
})  # fmt: skip


class Crew(Several):
    """Three agents in two rooms; "ann" and "bob" are paid for showing the same of what both may, "cat" for showing 0.

    They are shown masks, their own numbers and the state of the whole, which is what both may show.
    """

    possible_agents, length, illegal = ("ann", "bob", "cat"), 10, 0
    observation_spaces = {"ann": SEEN, "bob": SEEN, "cat": gym.spaces.Box(0, 1, (4,))}  # noqa: RUF012
    action_space = gym.spaces.Discrete(4)

    def observe(self) -> Any:
        common = int(self.rng.integers(4))
        self.masks = (self.rng.random((2, 4)) < 0.5).astype(np.int8)
        self.masks[:, common] = 1
        both = self.masks[0] * self.masks[1]
        shown = both.astype(np.float32)
        pairs = zip(("ann", "bob"), self.masks, strict=True)
        return {agent: {"obs": shown, "state": both, "action_mask": mask} for agent, mask in pairs} | {
            "cat": shown
        }

    def pay(self, actions: Any) -> Any:
        ann, bob = actions["ann"], actions["bob"]
        self.illegal += 2 - int(self.masks[0, ann]) - int(self.masks[1, bob])
        agreed = float(ann == bob)
        return {"ann": agreed / 2, "bob": agreed / 2, "cat": float(actions["cat"] == 0)}


def crews(envs: list[Crew]) -> Any:
    def make(context: Any) -> Any:
        envs.append(Crew())
        return envs[-1].with_agent_groups({"pair": ["ann", "bob"]})

    return make


def reached(seed: int, iterations: int = 20) -> float:
    """Return what the two-step game pays to greedy agents after some training."""
    config = {"num_envs_per_worker": 8, "seed": seed, "min_sample_timesteps_per_iteration": 512}
    evaluation = {"env_config": {"with_state": True}, "evaluation_config": {"explore": False}}
    with QMIX(env=two_steps, config={**config, **evaluation}) as algo:
        for _ in range(iterations):
            algo.train()
        assert algo.inference == {"default_policy": "onnx"}
        return float(algo.evaluate()["evaluation"]["episode_reward_mean"])


@pytest.mark.slow
def test_the_two_step_game_is_played_at_its_best() -> None:
    assert reached(seed=0) == 8.0


@pytest.mark.slow
def test_a_group_learns_next_to_a_ppo_policy_and_never_takes_a_masked_action() -> None:
    envs: list[Crew] = []
    policies = {
        "pair": PolicySpec(algorithm="QMIX", config={
            "exploration_config": {"epsilon_timesteps": 6_000, "final_epsilon": 0.0}, "gamma": 0.0, "lr": 3e-3,
        }),
        "cat": PolicySpec(config={"lr": 5e-3}),
    }  # fmt: skip
    multiagent = {"policies": policies, "policy_mapping_fn": lambda agent_id, **kw: agent_id}
    config = {"num_envs_per_worker": 16, "train_batch_size": 512, "seed": 0, "multiagent": multiagent}
    with PPO(env=crews(envs), config=config) as algo:
        batch = algo.sample()["pair"]
        assert batch["actions"].shape[1:] == (2,)
        assert batch["action_mask"].shape[1:] == (8,)
        before = weights_of(algo, "pair")
        first = algo.train()
        assert weights_of(algo, "pair") != before
        for _ in range(20):
            last = algo.train()
        both = {"obs": np.eye(4, dtype=np.float32)[2], "state": np.eye(4, dtype=np.int8)[2]}
        masks = (np.array([0, 1, 1, 0], np.int8), np.array([1, 0, 1, 0], np.int8))
        action = algo.compute_single_action(
            tuple({**both, "action_mask": mask} for mask in masks), "pair", explore=False
        )
        stats = last["info"]["pair"]
    assert [int(part) for part in action] == [2, 2]
    assert first["policy_reward_mean"]["pair"] < 6.0
    assert last["policy_reward_mean"]["pair"] > 9.0
    assert last["policy_reward_mean"]["cat"] > 8.0
    assert (stats["epsilon"], "kl" in last["info"]["cat"]) == (0.0, True)
    assert sum(env.illegal for env in envs) == 0


@pytest.mark.each_value
@pytest.mark.parametrize("inference", ["onnx", "torch"])
@pytest.mark.parametrize("mixer", ["qmix", "vdn", None])
def test_every_way_to_mix_trains_on_every_back_end(inference: str, mixer: Any) -> None:
    config = {"inference": inference, "mixer": mixer, "dueling": True, "n_step": 2, "double_q": False}
    with QMIX(env=crews([]), config={**QUICK, **config, "multiagent": {
        "policies": {"pair": PolicySpec(), "cat": PolicySpec(algorithm="DQN")},
        "policy_mapping_fn": lambda agent_id, **kw: agent_id,
    }}) as algo:  # fmt: skip
        assert algo.inference["pair"] == inference
        before = weights_of(algo, "pair")
        assert algo.train()["info"]["pair"]["updates"] > 0
        assert weights_of(algo, "pair") != before


class Unlike(TwoStepGame):
    """A game in which one agent may do more, or sees more, than the other."""

    def __init__(self, context: Any) -> None:
        super().__init__()
        choices, seen = context["choices"], context["seen"]
        self.action_spaces = {"agent_1": gym.spaces.Discrete(2), "agent_2": gym.spaces.Discrete(choices)}
        self.observation_spaces = {
            "agent_1": gym.spaces.Box(0.0, 1.0, (5,)),
            "agent_2": gym.spaces.Box(0.0, 1.0, (seen,)),
        }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"env": "CartPole-v1"}, "with_agent_groups"),
        (
            {"env": lambda context: Unlike({"choices": 3, "seen": 5}).with_agent_groups(GROUP)},
            r"Discrete\(2\).*Discrete\(3\)",
        ),
        (
            {"env": lambda context: Unlike({"choices": 2, "seen": 6}).with_agent_groups(GROUP)},
            r"\(5,\).*\(6,\)",
        ),
        ({"mixer": "mean"}, "mixer"),
        ({"mixer": ["qmix"]}, "mixer"),
        ({"mixing_embed_dim": 0}, "mixing_embed_dim"),
        ({"n_step": 0}, "n_step"),
        ({"lr": -1}, "lr"),
        ({"dueling": None}, "dueling"),
        ({"min_sample_timesteps_per_iteration": 0}, "min_sample_timesteps_per_iteration"),
        ({"mixing_embed": 8}, "mixing_embed"),
        ({"multiagent": {"policies": {"p": PolicySpec(algorithm="QMIXX")}}}, "'QMIXX'"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        QMIX(config={"env": two_steps, **QUICK, **config})
    assert "\n" not in str(caught.value)


def test_the_settings_are_the_classic_ones() -> None:
    config = QMIXConfig(env=two_steps)
    assert (config.mixer, config.mixing_embed_dim, config.double_q, config.n_step) == ("qmix", 32, True, 1)
