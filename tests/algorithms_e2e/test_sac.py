"""SAC as a whole: one agent and many, beside DQN and PPO on one sampler, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import DQN, PPO, SAC, SACConfig
from menv.errors import ConfigError
from menv.offline import record
from tests.checkpoints.runs import REPLAYED, resumed_twice, trained, weights_of
from tests.worlds import Several

NUMBER, CHOICE = gym.spaces.Box(-2.0, 2.0, (1,)), gym.spaces.Discrete(2)
SEEN = gym.spaces.Box(-1.0, 1.0, (1,))
QUICK: dict[str, Any] = {**REPLAYED, "num_envs_per_worker": 4, "seed": 1}
EACH: dict[str, Any] = {"policies": ["ann", "bob"], "policy_mapping_fn": lambda agent_id, *_, **__: agent_id}
ONE: dict[str, Any] = {"policies": ["both"], "policy_mapping_fn": lambda *_, **__: "both"}


class Aims(Several):
    """Two agents see a number each, and are paid for the sum of both as their action, which lies between -2 and 2."""

    possible_agents: tuple[str, ...] = ("ann", "bob")
    length = 5
    observation_space, action_space = SEEN, NUMBER

    def observe(self) -> Any:
        self.numbers = self.rng.uniform(-1.0, 1.0, 2).astype(np.float32)
        return {agent: self.numbers[place : place + 1] for place, agent in enumerate(self.possible_agents)}

    def pay(self, actions: Any) -> Any:
        aim = self.numbers.sum()
        return {agent: -float((action[0] - aim) ** 2) for agent, action in actions.items()}


class Kinds(Aims):
    """The third agent has choices."""

    possible_agents = ("ann", "bob", "cat")
    action_spaces = {"ann": NUMBER, "bob": NUMBER, "cat": CHOICE}  # noqa: RUF012

    def observe(self) -> Any:
        self.numbers = self.rng.uniform(-1.0, 1.0, 3).astype(np.float32)
        return {agent: self.numbers[place : place + 1] for place, agent in enumerate(self.possible_agents)}

    def pay(self, actions: Any) -> Any:
        return {agent: -float(np.square(np.subtract(action, 0.5)).sum()) for agent, action in actions.items()}


@pytest.mark.parametrize("shared", [False, True], ids=["own policies", "a shared policy"])
@pytest.mark.parametrize("critic_obs", [None, "all_agents"])
def test_many_agents_learn_with_critics_of_their_own_observations_or_of_all(
    shared: bool, critic_obs: Any
) -> None:
    config = {**QUICK, "critic_obs": critic_obs, "multiagent": ONE if shared else EACH}
    with SAC(env=Aims, config=config) as algo:
        first = algo.get_weights()
        trained(algo, 2)
        for policy_id, own in algo.get_weights().items():
            # Observation and action; and the other agent's observation and flag.
            assert own["q1.0.weight"].shape[0] == (2 if critic_obs is None else 4)
            assert own["policy.0.weight"].shape[0] == 1
            assert not np.array_equal(first[policy_id]["q1.0.weight"], own["q1.0.weight"])


@pytest.mark.slow
def test_workers_sample_the_same_experience_and_teach_the_same_weights() -> None:
    ends = []
    for workers in (0, 2):
        config = {**QUICK, "num_workers": workers, "critic_obs": "all_agents", "multiagent": EACH}
        config["num_envs_per_worker"] = 4 // max(1, workers)
        with SAC(env=Aims, config=config) as algo:
            digest = trained(algo, 2)["digest"]
            ends.append((digest, weights_of(algo)))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_resumed_run_is_bit_identical(prioritized: bool, tmp_path: Path) -> None:
    config = {**QUICK, "n_step": 3, "replay_buffer_config": {"prioritized_replay": prioritized}}
    with SAC(env="Pendulum-v1", config=config) as algo:
        trained(algo, 2)
        saved = algo.save(tmp_path / "one")
        with SAC.from_checkpoint(saved) as again:
            other = again.save(tmp_path / "two")
            for file in ("weights.safetensors", "learners.safetensors"):
                assert (saved / file).read_bytes() == (other / file).read_bytes()
    resumed_twice(SAC, saved, 2)


def test_sac_dqn_and_ppo_train_policies_of_one_run() -> None:
    policies = {
        "ann": None, "bob": PolicySpec(algorithm="SAC", config=FEW), "cat": PolicySpec(algorithm="DQN", config=FEW),
    }  # fmt: skip
    config = {
        "train_batch_size": 64, "sgd_minibatch_size": 32, "seed": 1,
        "multiagent": {"policies": policies, "policy_mapping_fn": EACH["policy_mapping_fn"]},
    }  # fmt: skip
    with PPO(env=Kinds, config=config) as algo:
        result = trained(algo, 3)
        learned = result["info"]["learner"]
        assert learned["bob"]["learner_stats"]["alpha"] > 0.0
        assert learned["cat"]["learner_stats"]["epsilon"] < 1.0
        assert "kl" in learned["ann"]["learner_stats"]


FEW = {"train_batch_size": 16, "training_intensity": 4.0, "num_steps_sampled_before_learning_starts": 32}


def test_sac_learns_from_recorded_episodes(tmp_path: Path) -> None:
    path = tmp_path / "aims.parquet"
    rng = np.random.default_rng(0)
    record(lambda obs: rng.uniform(-2.0, 2.0, 1).astype(np.float32), Aims, path, episodes=60)
    config = {
        **QUICK, "input": str(path), "train_batch_size": 64, "training_intensity": 64.0, "lr": 5e-3, "multiagent": ONE,
        "evaluation_duration": 20, "evaluation_config": {"explore": False},
    }  # fmt: skip
    with SAC(env=Aims, config=config) as algo:
        before = algo.evaluate()["evaluation"]["episode_reward_mean"]
        trained(algo, 10)
        # Ten actions of an episode, each off by the other's number at best, whose square is 1/3 on average.
        assert before < -5.0 < algo.evaluate()["evaluation"]["episode_reward_mean"]


def test_two_policies_share_the_hidden_layers_of_their_actors_alone() -> None:
    together = PolicySpec(config={"model": {"shared_layers": "eyes", "fcnet_hiddens": [8]}})
    policies = {**EACH, "policies": {"ann": together, "bob": together}}
    with SAC(env=Aims, config={**QUICK, "multiagent": policies}) as algo:
        before = algo.get_weights()["ann"]
        algo.train()
        ann, bob = (algo.get_weights()[name] for name in ("ann", "bob"))
    assert (ann["policy.0.weight"] != before["policy.0.weight"]).any()
    same = {name for name in ann if np.array_equal(ann[name], bob[name])}
    assert same == {"policy.0.weight", "policy.0.bias"}


def test_a_policy_folder_acts_without_torch(tmp_path: Path) -> None:
    with SAC(env="Pendulum-v1", config=QUICK) as algo:
        wanted = algo.get_policy().act([1.0, 0.0, 0.5])
        algo.export_policy_checkpoint(tmp_path / "policy")
    code = (
        "import sys; from menv import Policy; "
        f"print(Policy.from_checkpoint({str(tmp_path / 'policy')!r}).act([1.0, 0.0, 0.5]), 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == [*str(wanted).split(), "False"]


@pytest.mark.parametrize(("settings", "what"), [
    ({"tau": 0.01, "target_network_update_freq": 100}, "target_network_update_freq"), ({"tau": 0.0}, "tau"),
    ({"initial_alpha": 0.0}, "initial_alpha"), ({"critic_obs": "mine"}, "critic_obs"),
    ({"critic_obs_size": 4}, "critic_obs_size"),
])  # fmt: skip
def test_impossible_settings_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        SACConfig(**settings)


def test_choices_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"SAC: .*Discrete") as caught:
        SAC(env="CartPole-v1")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", [{"use_lstm": True}, {"use_gru": True}, {"conv_filters": [[4, 3, 2]]}])
def test_other_networks_than_feed_forward_ones_are_refused(model: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"SAC: model.{next(iter(model))}"):
        SAC(env="Pendulum-v1", config={"model": model})


def test_dqn_says_what_trains_continuous_actions() -> None:
    with pytest.raises(ConfigError, match="SAC"):
        DQN(env="Pendulum-v1")
