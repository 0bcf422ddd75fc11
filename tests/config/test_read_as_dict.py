"""Settings are read like the dict that classic configs were, and are changed in a copy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from menv.algorithms import DQN, PPO, PPOConfig
from menv.algorithms.dqn.dqn import DEFAULT_CONFIG as DQN_DEFAULTS
from menv.algorithms.ppo.ppo import DEFAULT_CONFIG


def test_settings_are_read_by_their_classic_names_and_sections_are_dicts() -> None:
    config = PPOConfig(env="CartPole-v1", lr=0.25, lambda_=0.5, model={"fcnet_hiddens": [8]})  # type: ignore[arg-type]
    assert (config["lr"], config["lambda"], config.get("lambda"), config.get("no")) == (0.25, 0.5, 0.5, None)
    assert "lambda" in config
    assert "num_rollout_workers" not in config
    assert list(config["model"]["fcnet_hiddens"]) == [8]
    assert config["multiagent"]["policies"] is None
    assert dict(config) == dict(config.items()) == config.to_dict()
    assert list(config.keys()) == list(config)
    with pytest.raises(KeyError, match=r"num_rollout_workers.*it is called 'num_workers' here"):
        config["num_rollout_workers"]
    with pytest.raises(
        AttributeError, match=r"no attribute 'num_rollout_workers'; it is called num_workers$"
    ):
        _ = config.num_rollout_workers  # type: ignore[attr-defined]


@pytest.mark.parametrize("defaults", [DEFAULT_CONFIG, PPO.get_default_config()])
def test_a_copy_of_the_defaults_is_changed_and_built_from(defaults: PPOConfig) -> None:
    changed = defaults.copy()
    changed["lr"] = 0.25
    changed["multiagent"]["policies"] = ["a", "b"]
    changed["multiagent"]["policy_mapping_fn"] = lambda agent_id, *args, **kwargs: "a"
    with PPO(env="CartPole-v1", config=changed) as algo:
        assert (algo.config["lr"], algo.config["multiagent"]["policies"]) == (0.25, ["a", "b"])
    assert defaults == PPOConfig()
    assert DQN.get_default_config() == DQN_DEFAULTS


def test_whoever_assigns_a_setting_is_told_how_it_is_changed() -> None:
    config: Any = PPOConfig()
    with pytest.raises(
        dataclasses.FrozenInstanceError, match=r"PPOConfig: lr is assigned to.*replace\(config, lr="
    ):
        config.lr = 0.1
    with pytest.raises(TypeError, match=r"config\['lr'\].*change a copy\(\)"):
        config["lr"] = 0.1


def test_all_three_parts_of_an_answer_are_fetched_without_a_state_too() -> None:
    with PPO(env="CartPole-v1", config={"seed": 1}) as algo:
        action, state, fetches = algo.compute_single_action([0.0] * 4, explore=False, full_fetch=True)
        assert (action, state) == (algo.compute_single_action([0.0] * 4, explore=False), [])
        assert "action_logp" in fetches
