"""DQN's settings and the classic keys that mean them."""

from typing import Any

import pytest

from menv import PolicySpec
from menv.algorithms import DQNConfig, PPOConfig, register_algorithm
from menv.algorithms.config.read_config import adopt, override, read_config
from menv.algorithms.config.stored_config import restored_config, stored_config
from menv.algorithms.dqn.dqn import DQNRecipe
from menv.errors import ConfigError
from menv.policy_map import PolicyMap


def test_classic_keys_and_sections_are_read() -> None:
    config = read_config(
        DQNConfig,
        {
            "lr": 5e-4,
            "n_step": 3,
            "train_batch_size": 32,
            "double_q": False,
            "replay_buffer_config": {"type": "MultiAgentPrioritizedReplayBuffer", "capacity": 1000},
            "exploration_config": {"type": "EpsilonGreedy", "epsilon_timesteps": 10},
        },
    )
    assert (config.lr, config.n_step, config.train_batch_size, config.double_q) == (5e-4, 3, 32, False)
    assert config.replay_buffer_config.prioritized_replay
    assert config.replay_buffer_config.capacity == 1000
    assert config.exploration_config.epsilon_timesteps == 10


def test_epsilon_falls_on_a_straight_line_and_stays() -> None:
    settings = DQNConfig(
        exploration_config={"initial_epsilon": 1.0, "final_epsilon": 0.2, "epsilon_timesteps": 100}  # type: ignore[arg-type]
    )
    assert [settings.epsilon_at(steps) for steps in (0, 25, 100, 500)] == pytest.approx([1.0, 0.8, 0.2, 0.2])


MEMORY = PolicySpec(config={"model": {"use_lstm": True, "max_seq_len": 11}})
PPO_MEMORY = PolicySpec(algorithm="PPO", config=MEMORY.config)
LONGER = PolicySpec(config={"model": {"max_seq_len": 30}})


@pytest.mark.parametrize(
    ("config", "num_envs", "length", "sample", "iteration"),
    [
        ({}, 1, 64, 64, 1000),
        ({}, 16, 4, 64, 1000),
        ({}, 1000, 4, 4000, 4000),
        ({"n_step": 8}, 64, 8, 512, 1000),
        ({"n_step": 8}, 2, 32, 64, 1000),
        ({"n_step": 8, "batch_mode": "complete_episodes"}, 64, 4, 256, 1000),
        (
            {"n_step": 5, "multiagent": {"policies": {"a": PolicySpec(config={"n_step": 9}), "b": None}}},
            64,
            9,
            576,
            1000,
        ),
        ({"model": {"use_gru": True, "max_seq_len": 12}}, 64, 12, 768, 1000),
        ({"multiagent": {"policies": {"a": MEMORY, "b": None}}}, 64, 11, 704, 1000),
        ({"multiagent": {"policies": {"a": (None, None, None, MEMORY.config)}}}, 64, 11, 704, 1000),
        ({"model": {"use_gru": True}, "multiagent": {"policies": {"a": LONGER}}}, 64, 30, 1920, 1920),
        ({"multiagent": {"policies": {"a": LONGER}}}, 64, 4, 256, 1000),
        ({"multiagent": {"policies": {"a": PPO_MEMORY}}}, 64, 4, 256, 1000),
        ({"rollout_fragment_length": 7}, 3, 7, 21, 1000),
        ({"rollout_fragment_length": 7, "min_sample_timesteps_per_iteration": 5}, 3, 7, 21, 21),
    ],
)
def test_learning_happens_every_few_steps_and_an_iteration_covers_many(
    config: dict[str, Any], num_envs: int, length: int, sample: int, iteration: int
) -> None:
    read = read_config(DQNConfig, config)
    assert read.fragment_length(num_envs) == length
    assert read.sample_size(num_envs) == sample
    assert read.iteration_size(num_envs) == iteration


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("n_step", {"n_step": 0}),
        ("n_step", {"n_step": 3, "rollout_fragment_length": 1}),
        ("n_step", {"n_step": 10**9}),
        ("target_network_update_freq", {"target_network_update_freq": 2.5}),
        ("gamma", {"gamma": 1.5}),
        ("grad_clip", {"grad_clip": "no"}),
        ("grad_clip", {"grad_clip": 0}),
        ("dueling", {"dueling": 1}),
        ("max_seq_len", {"model": {"use_lstm": True, "max_seq_len": 10**6}}),
        ("min_sample_timesteps_per_iteration", {"min_sample_timesteps_per_iteration": 0}),
        ("replay_buffer_config: capacity", {"replay_buffer_config": {"capacity": 0}}),
        ("capacity", {"replay_buffer_config": {"capacity": 10**9, "prioritized_replay": True}}),
        ("ReplayBuffer", {"replay_buffer_config": {"type": "Reservoir"}}),
        ("capacity", {"replay_buffer_config": {"capcity": 5}}),
        ("prioritized_replay", {"replay_buffer_config": {"prioritized_replay": -1}}),
        ("prioritized_replay_alpha", {"replay_buffer_config": {"prioritized_replay_alpha": 2.0}}),
        ("prioritized_replay_eps", {"replay_buffer_config": {"prioritized_replay_eps": 0}}),
        ("EpsilonGreedy", {"exploration_config": {"type": "Curiosity"}}),
        ("final_epsilon", {"exploration_config": {"final_epsilon": 1.2}}),
        ("exploration_config", {"exploration_config": 3}),
        ("clip_param", {"clip_param": 0.3}),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(name: str, config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(DQNConfig, config)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fragments_hold_the_sequences_of_an_own_algorithm_that_replays_experience() -> None:
    class Replaying(DQNRecipe):
        name = "Replaying"

    register_algorithm("Replaying", Replaying())
    policies = {"a": PolicySpec(algorithm="Replaying", config=MEMORY.config), "b": None}
    assert read_config(DQNConfig, {"multiagent": {"policies": policies}}).fragment_length(64) == 11


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        ({}, 3),
        ({"rollout_fragment_length": 2}, 2),
        ({"rollout_fragment_length": 7}, 3),
        ({"rollout_fragment_length": 2, "batch_mode": "complete_episodes"}, 3),
        ({"rollout_fragment_length": 2, "n_step": 9, "batch_mode": "complete_episodes"}, 9),
    ],
)
def test_targets_hold_three_rewards_or_what_fragments_have_where_nothing_is_said(
    config: dict[str, Any], steps: int
) -> None:
    assert read_config(DQNConfig, config).target_steps() == steps


def test_a_policy_of_another_algorithm_has_the_common_settings_gamma_and_defaults_for_the_rest() -> None:
    main = PPOConfig(gamma=0.8, lr=1e-4, train_batch_size=200, clip_rewards=1.0)
    own = adopt(DQNConfig, main, {"n_step": 2}, "p")
    assert (own.gamma, own.lr, own.train_batch_size, own.n_step) == (0.8, 2e-3, 256, 2)
    assert own.clip_rewards == 1.0
    assert adopt(PPOConfig, DQNConfig(gamma=0.7), {}, "p").gamma == 0.7
    assert adopt(DQNConfig, main, {"gamma": 0.5}, "p").gamma == 0.5


MAIN: dict[str, Any] = {
    "exploration_config": {"epsilon_timesteps": 100, "final_epsilon": 0.0},
    "replay_buffer_config": {"capacity": 64, "prioritized_replay": True},
    "model": {"fcnet_hiddens": [8]},
}


def own_of_a_policy(below: DQNConfig, changes: dict[str, Any]) -> DQNConfig:
    return override(below, changes, "p")


def own_over_the_defaults_of_a_class(below: DQNConfig, changes: dict[str, Any]) -> DQNConfig:
    return read_config(DQNConfig, changes, default=below)


def own_over_a_checkpoint(below: DQNConfig, changes: dict[str, Any]) -> DQNConfig:
    found = restored_config(DQNConfig, stored_config(below, PolicyMap()), changes, env="CartPole-v1")
    assert isinstance(found, DQNConfig)
    return found


PUT_OVER = pytest.mark.parametrize(
    "put_over", [own_of_a_policy, own_over_the_defaults_of_a_class, own_over_a_checkpoint]
)


@PUT_OVER
def test_sections_are_put_over_others_key_by_key(put_over: Any) -> None:
    changes = {
        "exploration_config": {"final_epsilon": 0.1},
        "replay_buffer_config": {"prioritized_replay_alpha": 0.5},
        "model": {"fcnet_activation": "tanh"},
    }
    found = put_over(read_config(DQNConfig, MAIN), changes)
    exploration, buffer = found.exploration_config, found.replay_buffer_config
    assert (exploration.epsilon_timesteps, exploration.final_epsilon) == (100, 0.1)
    assert (buffer.capacity, buffer.prioritized_replay, buffer.prioritized_replay_alpha) == (64, True, 0.5)
    assert (found.model.fcnet_hiddens, found.model.fcnet_activation) == ((8,), "tanh")


@PUT_OVER
@pytest.mark.parametrize(
    ("before", "change", "prioritized"),
    [
        ({"type": "PrioritizedReplayBuffer"}, {"prioritized_replay": False}, False),
        ({"type": "ReplayBuffer"}, {"prioritized_replay": True}, True),
        ({"prioritized_replay": True}, {"type": "ReplayBuffer"}, False),
        ({"prioritized_replay": False}, {"type": "PrioritizedReplayBuffer"}, True),
        ({"type": "PrioritizedReplayBuffer"}, {"capacity": 5}, True),
    ],
)
def test_the_newer_setting_decides_whether_replay_is_prioritized(
    put_over: Any, before: dict[str, Any], change: dict[str, Any], prioritized: bool
) -> None:
    below = read_config(DQNConfig, {"replay_buffer_config": before})
    found = put_over(below, {"replay_buffer_config": change})
    assert found.replay_buffer_config.prioritized_replay is prioritized


def test_a_section_that_an_algorithm_lacks_is_unknown_to_its_policies() -> None:
    assert override(PPOConfig(), {"gamma": 0.5}, "p").gamma == 0.5
    with pytest.raises(ConfigError, match="exploration_config"):
        override(PPOConfig(), {"exploration_config": {"final_epsilon": 0.1}}, "p")
